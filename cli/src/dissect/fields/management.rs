//! Management datagrams on queue pair 1: the common header and the messages of connection management.

mod messages;
mod request;

use super::Show::{Decimal, Hex};
use super::{Field, Header, bytes, some};

pub(crate) use request::{IP_CM, REQ_PRIVATE_DATA};

use messages::{APR, DREP, DREQ, LAP, MRA, REJ, REP, RTU, SIDR_REP, SIDR_REQ};
use request::REQ;

pub(crate) static MAD: Header = Header {
    name: "MAD",
    title: "management datagram header",
    purpose: "Begins every management message; RoCE uses them to make and end connections.",
    rule: "IBTA 13.4.3",
    fields: &[
        Field::new(
            "BaseVersion",
            "infiniband.mad.baseversion",
            bytes(0, 1),
            Decimal,
            "Version of this header; 1.",
        ),
        Field::new(
            "MgmtClass",
            "infiniband.mad.mgmtclass",
            bytes(1, 1),
            Hex,
            "What kind of management it is; 7 is connection management.",
        )
        .note(management_class),
        Field::new(
            "ClassVersion",
            "infiniband.mad.classversion",
            bytes(2, 1),
            Decimal,
            "Version of the class; 2 for connection management.",
        ),
        Field::new(
            "Method",
            "infiniband.mad.method",
            bytes(3, 1),
            Hex,
            "What is done; connection management only sends (3).",
        ),
        Field::new(
            "Status",
            "infiniband.mad.status",
            bytes(4, 2),
            Hex,
            "How the request went, in responses of other classes; 0.",
        ),
        Field::new(
            "ClassSpecific",
            "infiniband.mad.classspecific",
            bytes(6, 2),
            Hex,
            "Unused by connection management; 0.",
        ),
        Field::new(
            "TransactionID",
            "infiniband.mad.transactionid",
            bytes(8, 8),
            Hex,
            "Chosen by whoever begins an exchange, and repeated in the answer, so that the two can be \
             matched.",
        ),
        Field::new("AttributeID", "infiniband.mad.attributeid", bytes(16, 2), Hex, "Which message it is.")
            .note(|id| some(cm_message(id as u16)?.name)),
        Field::reserved("roce.mad.reserved", bytes(18, 2)),
        Field::new(
            "AttributeModifier",
            "infiniband.mad.attributemodifier",
            bytes(20, 4),
            Hex,
            "0; some kernels carry options of theirs here.",
        ),
    ],
};

pub(crate) static MAD_DATA: Header = Header {
    name: "data",
    title: "content of the management datagram",
    purpose: "What the class and the attribute make of it.",
    rule: "IBTA 13.4",
    fields: &[],
};

/// The message that an attribute ID of connection management stands for.
pub(crate) fn cm_message(attribute_id: u16) -> Option<&'static Header> {
    Some(match attribute_id {
        0x0010 => &REQ,
        0x0011 => &MRA,
        0x0012 => &REJ,
        0x0013 => &REP,
        0x0014 => &RTU,
        0x0015 => &DREQ,
        0x0016 => &DREP,
        0x0017 => &SIDR_REQ,
        0x0018 => &SIDR_REP,
        0x0019 => &LAP,
        0x001a => &APR,
        _ => return None,
    })
}

/// Whether a request comes from rdma_cm, which marks its service IDs and begins the private data with a
/// header of its own.
pub(crate) fn is_rdma_cm(req: &[u8]) -> bool {
    matches!(req.get(8..14), Some([0, 0, 0, 0, 0x01, _]))
}

fn is_mapped(message: &[u8], gid: usize) -> bool {
    message.get(gid..gid + 12) == Some(&[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff])
}

fn is_ip6(header: &[u8]) -> bool {
    header.get(1).is_some_and(|byte| byte >> 4 == 6)
}

fn management_class(value: u64) -> Option<String> {
    some(match value {
        0x01 => "subnet management, by LID",
        0x03 => "subnet administration",
        0x04 => "performance management",
        0x06 => "device management",
        0x07 => "connection management",
        0x81 => "subnet management, by direct route",
        _ => return None,
    })
}

fn vendor(value: u64) -> Option<String> {
    match value {
        0x15b3 => some("Mellanox, NVIDIA"),
        0x02c9 => some("Mellanox"),
        _ => None,
    }
}

fn service(value: u64) -> Option<String> {
    let port = value & 0xffff;
    match value >> 16 {
        0x0106 => some(format!("rdma_cm, TCP port {port}")),
        0x0111 => some(format!("rdma_cm, UDP port {port}")),
        0x0002 => some(format!("rdma_cm, IPoIB port {port}")),
        0x013f => some(format!("rdma_cm, IB port {port}")),
        _ => None,
    }
}

fn service_type(value: u64) -> Option<String> {
    some(match value {
        0 => "reliable connection",
        1 => "unreliable connection",
        2 => "reliable datagram",
        _ => "see the extended type",
    })
}

fn mtu(value: u64) -> Option<String> {
    let mtu = roce_packet::PathMtu::from_code(value as u8)?;
    some(format!("{} bytes", mtu.bytes()))
}

/// The five-bit times of IBTA.
fn time_code(code: u64) -> Option<String> {
    let ns = 4096.0 * f64::powi(2.0, code.min(31) as i32);
    some(match ns {
        ns if ns < 1e6 => format!("{:.1} us", ns / 1e3),
        ns if ns < 1e9 => format!("{:.1} ms", ns / 1e6),
        ns => format!("{:.2} s", ns / 1e9),
    })
}

fn reject_reason(value: u64) -> Option<String> {
    some(match value {
        1 => "no queue pair available",
        2 => "no end-to-end context available",
        3 => "no resources available",
        4 => "timeout",
        5 => "unsupported request",
        6 => "invalid communication ID",
        7 => "invalid communication instance",
        8 => "invalid service ID: nobody listens",
        9 => "invalid transport type",
        10 => "stale connection",
        11 => "RDC does not exist",
        12 => "invalid primary GID",
        13 => "invalid primary LID",
        14 => "invalid primary SL",
        15 => "invalid primary traffic class",
        16 => "invalid primary hop limit",
        17 => "primary packet rate too high",
        18..=23 => "alternate path unacceptable",
        24 => "port and CM redirection",
        25 => "port redirection",
        26 => "path MTU unacceptable",
        27 => "insufficient responder resources",
        28 => "the application refused",
        29 => "RNR retry count unacceptable",
        30 => "duplicate local communication ID",
        31 => "class version not supported",
        32 => "invalid primary flow label",
        33 => "invalid alternate flow label",
        35 => "manufacturer's own",
        _ => return None,
    })
}

fn sidr_status(value: u64) -> Option<String> {
    some(match value {
        0 => "there it is",
        1 => "service ID not supported",
        2 => "refused",
        3 => "no queue pair",
        4 => "asked at the wrong place",
        5 => "class version not supported",
        _ => return None,
    })
}
