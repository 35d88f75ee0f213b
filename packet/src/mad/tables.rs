//! The field tables of the header and of all messages.

use core::fmt;

use super::common::{
    ACK_TIMEOUT, CM_TIMEOUT, local_comm_id, private_data_from, remote_comm_id, timeout_note,
};
pub use super::disconnect::{DREP, DREQ};
pub use super::ip_cm::IP_CM;
pub use super::reject::{MRA, REJ};
pub use super::reply::{REP, RTU};
pub use super::request::REQ;
pub use super::sidr::{SIDR_REP, SIDR_REQ};
use crate::fields::Show::{Bytes, Decimal, Flag, Hex, Ipv6};
use crate::fields::{Field, Header, bits, bytes, mask};

/// Returns the table of the message with this attribute ID of connection management.
#[must_use]
pub fn cm_message(attribute_id: u16) -> Option<&'static Header> {
    Some(match attribute_id {
        0x10 => &REQ,
        0x11 => &MRA,
        0x12 => &REJ,
        0x13 => &REP,
        0x14 => &RTU,
        0x15 => &DREQ,
        0x16 => &DREP,
        0x17 => &SIDR_REQ,
        0x18 => &SIDR_REP,
        0x19 => &LAP,
        0x1a => &APR,
        _ => return None,
    })
}

/// The fields of a LAP.
pub static LAP: Header = Header {
    name: "CM LAP",
    title: "load alternate path",
    purpose: "Offers a path to migrate to.",
    rule: "IBTA 12.8.1",
    fields: &[
        local_comm_id("roce.cm.lap.localcommid"),
        remote_comm_id("roce.cm.lap.remotecommid"),
        Field::reserved("roce.cm.lap.reserved0", bytes(8, 4)),
        Field::new("remote QPN", "roce.cm.lap.remoteqpn", bytes(12, 3), Hex)
            .means("The receiver's queue pair."),
        Field::new("response timeout", "roce.cm.lap.resptout", mask(15, 0xf8), Decimal)
            .note(timeout_note)
            .means(CM_TIMEOUT),
        Field::reserved("roce.cm.lap.reserved1", mask(15, 0x07)),
        Field::reserved("roce.cm.lap.reserved2", bytes(16, 4)),
        Field::new("local LID", "roce.cm.lap.locallid", bytes(20, 2), Hex).means("InfiniBand address."),
        Field::new("remote LID", "roce.cm.lap.remotelid", bytes(22, 2), Hex).means("InfiniBand address."),
        Field::new("local GID", "roce.cm.lap.localgid", bytes(24, 16), Ipv6)
            .means("The sender's end of the path."),
        Field::new("remote GID", "roce.cm.lap.remotegid", bytes(40, 16), Ipv6)
            .means("The receiver's end of the path."),
        Field::new("flow label", "roce.cm.lap.flowlabel", bits(56, 0, 20), Hex)
            .means("Both ends compute the UDP source port from it."),
        Field::reserved("roce.cm.lap.reserved3", bits(58, 4, 4)),
        Field::new("traffic class", "roce.cm.lap.tfcclass", bytes(59, 1), Hex).means("DSCP and ECN."),
        Field::new("hop limit", "roce.cm.lap.hoplim", bytes(60, 1), Decimal).means("TTL."),
        Field::reserved("roce.cm.lap.reserved4", mask(61, 0xc0)),
        Field::new("packet rate", "roce.cm.lap.pktrate", mask(61, 0x3f), Decimal)
            .means("InfiniBand's code of the path's rate; 0 in RoCE."),
        Field::new("SL", "roce.cm.lap.sl", mask(62, 0xf0), Decimal)
            .means("Service level: the VLAN priority of the connection."),
        Field::new("subnet local", "roce.cm.lap.subnetlocal", mask(62, 0x08), Flag)
            .means("Set if the path has no router."),
        Field::reserved("roce.cm.lap.reserved5", mask(62, 0x07)),
        Field::new("local ACK timeout", "roce.cm.lap.localacktout", mask(63, 0xf8), Decimal)
            .note(timeout_note)
            .means(ACK_TIMEOUT),
        Field::reserved("roce.cm.lap.reserved6", mask(63, 0x07)),
        private_data_from(64, "roce.cm.lap.private"),
    ],
};

/// The fields of an APR.
pub static APR: Header = Header {
    name: "CM APR",
    title: "alternate path response",
    purpose: "Accepts or refuses the offered path.",
    rule: "IBTA 12.8.2",
    fields: &[
        local_comm_id("roce.cm.apr.localcommid"),
        remote_comm_id("roce.cm.apr.remotecommid"),
        Field::new("info length", "roce.cm.apr.infolen", bytes(8, 1), Decimal)
            .means("Valid bytes of the additional information."),
        Field::new("status", "roce.cm.apr.status", bytes(9, 1), Decimal).means("0 if the path is accepted."),
        Field::reserved("roce.cm.apr.reserved", bytes(10, 2)),
        Field::new("additional information", "roce.cm.apr.info", bytes(12, 72), Bytes)
            .means("Depends on the status."),
        private_data_from(84, "roce.cm.apr.private"),
    ],
};

/// The fields of a [`MadView`](super::MadView).
pub static MAD: Header = Header {
    name: "MAD",
    title: "management datagram header",
    purpose: "Begins every management message; RoCE uses them to open and close connections.",
    rule: "IBTA 13.4.3",
    fields: &[
        Field::new("BaseVersion", "infiniband.mad.baseversion", bytes(0, 1), Decimal)
            .means("Version of this header; 1."),
        Field::new("MgmtClass", "infiniband.mad.mgmtclass", bytes(1, 1), Hex)
            .note(class_note)
            .means("Kind of management; 7 is connection management."),
        Field::new("ClassVersion", "infiniband.mad.classversion", bytes(2, 1), Decimal)
            .means("Version of the class; 2 for connection management."),
        Field::new("Method", "infiniband.mad.method", bytes(3, 1), Hex)
            .means("Method; connection management uses Send (3) only."),
        Field::new("Status", "infiniband.mad.status", bytes(4, 2), Hex)
            .means("Status of a response; 0 in connection management."),
        Field::new("ClassSpecific", "infiniband.mad.classspecific", bytes(6, 2), Hex)
            .means("Depends on the class; 0 in connection management."),
        Field::new("TransactionID", "infiniband.mad.transactionid", bytes(8, 8), Hex)
            .means("Chosen by the sender of a request; the response repeats it."),
        Field::new("AttributeID", "infiniband.mad.attributeid", bytes(16, 2), Hex)
            .note(|id, out| out.write_str(cm_message(id as u16).map_or("", |message| message.name)))
            .means("Type of the message."),
        Field::reserved("roce.mad.reserved", bytes(18, 2)),
        Field::new("AttributeModifier", "infiniband.mad.attributemodifier", bytes(20, 4), Hex)
            .means("0 in connection management; some kernels carry options here."),
    ],
};

/// The content of a management datagram of a class other than connection management.
pub static MAD_DATA: Header = Header {
    name: "data",
    title: "content of the management datagram",
    purpose: "Depends on the class and the attribute.",
    rule: "IBTA 13.4",
    fields: &[],
};

fn class_note(value: u64, out: &mut dyn fmt::Write) -> fmt::Result {
    out.write_str(match value {
        0x01 => "subnet management, by LID",
        0x03 => "subnet administration",
        0x04 => "performance management",
        0x06 => "device management",
        0x07 => "connection management",
        0x81 => "subnet management, by direct route",
        _ => "",
    })
}
