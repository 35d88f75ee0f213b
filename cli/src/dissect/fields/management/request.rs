//! The request for a connection, and what rdma_cm puts into it (IBTA 12.6.5, A11).

use super::super::Show::{Bytes, Decimal, Flag, Hex, Ipv4, Ipv6};
use super::super::{Field, Header, bits, bytes, mask};
use super::messages::{
    CM_TIMEOUT, GUID, INITIATOR_DEPTH, LOCAL_ID, PRIVATE, QPN, RESPONDER_RESOURCES, RNR_RETRY, START_PSN,
    UNUSED_IN_ROCE,
};
use super::{is_ip6, is_mapped, mtu, service, service_type, time_code, vendor};

pub(super) static REQ: Header = Header {
    name: "CM REQ",
    title: "request for a connection",
    purpose: "Asks a listener for a connection and offers everything the peer must know of this end.",
    rule: "IBTA 12.6.5",
    fields: &[
        Field::new("local comm ID", "infiniband.cm.req", bytes(0, 4), Hex, LOCAL_ID),
        Field::new(
            "vendor ID",
            "roce.cm.req.vendorid",
            bytes(5, 3),
            Hex,
            "Manufacturer of the sender's adapter.",
        )
        .note(vendor),
        Field::new(
            "service ID",
            "infiniband.cm.req.serviceid",
            bytes(8, 8),
            Hex,
            "What the listener is known by; rdma_cm puts a port number into it.",
        )
        .note(service),
        Field::new("local CA GUID", "infiniband.cm.req.localcaguid", bytes(16, 8), Hex, GUID),
        Field::new("local Q_Key", "infiniband.cm.req.localqkey", bytes(28, 4), Hex, UNUSED_IN_ROCE),
        Field::new("local QPN", "infiniband.cm.req.localqpn", bytes(32, 3), Hex, QPN),
        Field::new(
            "responder resources",
            "infiniband.cm.req.responderres",
            bytes(35, 1),
            Decimal,
            RESPONDER_RESOURCES,
        ),
        Field::new("local EECN", "infiniband.cm.req.localeecn", bytes(36, 3), Hex, UNUSED_IN_ROCE),
        Field::new("initiator depth", "infiniband.cm.req.initdepth", bytes(39, 1), Decimal, INITIATOR_DEPTH),
        Field::new("remote EECN", "infiniband.cm.req.remoteeecn", bytes(40, 3), Hex, UNUSED_IN_ROCE),
        Field::new(
            "remote response timeout",
            "infiniband.cm.req.remoteresptout",
            mask(43, 0xf8),
            Decimal,
            CM_TIMEOUT,
        )
        .note(time_code),
        Field::new(
            "transport service",
            "infiniband.cm.req.transpsvctype",
            mask(43, 0x06),
            Decimal,
            "0 reliable connection, 1 unreliable connection, 3 see the extended type.",
        )
        .note(service_type),
        Field::new(
            "flow control",
            "infiniband.cm.req.e2eflowctrl",
            mask(43, 0x01),
            Flag,
            "Set if the sender heeds credits.",
        ),
        Field::new("starting PSN", "infiniband.cm.req.startpsn", bytes(44, 3), Decimal, START_PSN),
        Field::new(
            "local response timeout",
            "infiniband.cm.req.localresptout",
            mask(47, 0xf8),
            Decimal,
            CM_TIMEOUT,
        )
        .note(time_code),
        Field::new(
            "retry count",
            "infiniband.cm.req.retrcount",
            mask(47, 0x07),
            Decimal,
            "How often the receiver of this message is to send a lost packet again, 0 to 7.",
        ),
        Field::new("P_Key", "infiniband.cm.req.pkey", bytes(48, 2), Hex, "Partition of the connection."),
        Field::new(
            "path MTU",
            "infiniband.cm.req.pppmtu",
            mask(50, 0xf0),
            Decimal,
            "Code of the most payload bytes in a packet; both ends must use the same.",
        )
        .note(mtu),
        Field::new("RDC exists", "infiniband.cm.req.rdcexist", mask(50, 0x08), Flag, UNUSED_IN_ROCE),
        Field::new("RNR retry count", "infiniband.cm.req.rnrretrcount", mask(50, 0x07), Decimal, RNR_RETRY),
        Field::new(
            "max CM retries",
            "infiniband.cm.req.maxcmretr",
            mask(51, 0xf0),
            Decimal,
            "How often this message is sent again at most.",
        ),
        Field::new(
            "SRQ",
            "infiniband.cm.req.srq",
            mask(51, 0x08),
            Flag,
            "Set if the sender receives from a shared queue.",
        ),
        Field::new(
            "extended transport",
            "infiniband.cm.req.ext_transport",
            mask(51, 0x07),
            Decimal,
            "1 for an extended reliable connection.",
        ),
        Field::new(
            "primary local LID",
            "infiniband.cm.req.prim_locallid",
            bytes(52, 2),
            Hex,
            "InfiniBand address; 0xffff in RoCE.",
        ),
        Field::new(
            "primary remote LID",
            "infiniband.cm.req.prim_remotelid",
            bytes(54, 2),
            Hex,
            "InfiniBand address; 0xffff in RoCE.",
        ),
        Field::new(
            "primary local GID",
            "infiniband.cm.req.prim_localgid_ipv4",
            bytes(68, 4),
            Ipv4,
            "The sender's end of the path.",
        )
        .when(|req| is_mapped(req, 56)),
        Field::new(
            "primary local GID",
            "infiniband.cm.req.prim_localgid",
            bytes(56, 16),
            Ipv6,
            "The sender's end of the path.",
        )
        .when(|req| !is_mapped(req, 56)),
        Field::new(
            "primary remote GID",
            "infiniband.cm.req.prim_remotegid_ipv4",
            bytes(84, 4),
            Ipv4,
            "The receiver's end of the path.",
        )
        .when(|req| is_mapped(req, 72)),
        Field::new(
            "primary remote GID",
            "infiniband.cm.req.prim_remotegid",
            bytes(72, 16),
            Ipv6,
            "The receiver's end of the path.",
        )
        .when(|req| !is_mapped(req, 72)),
        Field::new(
            "primary flow label",
            "infiniband.cm.req.prim_flowlabel",
            bits(88, 0, 20),
            Hex,
            "Both ends make the UDP source port of the connection from it.",
        ),
        Field::reserved("infiniband.cm.req.prim_reserved0", bits(90, 4, 6)),
        Field::new(
            "primary packet rate",
            "infiniband.cm.req.prim_pktrate",
            mask(91, 0x3f),
            Decimal,
            "InfiniBand's code of the path's speed; RoCE leaves it 0.",
        ),
        Field::new(
            "primary traffic class",
            "infiniband.cm.req.prim_tfcclass",
            bytes(92, 1),
            Hex,
            "DSCP and ECN for the connection.",
        ),
        Field::new(
            "primary hop limit",
            "infiniband.cm.req.prim_hoplim",
            bytes(93, 1),
            Decimal,
            "TTL for the connection.",
        ),
        Field::new(
            "primary SL",
            "infiniband.cm.req.prim_sl",
            mask(94, 0xf0),
            Decimal,
            "Service level; becomes the VLAN priority.",
        ),
        Field::new(
            "primary subnet local",
            "infiniband.cm.req.prim_subnetlocal",
            mask(94, 0x08),
            Flag,
            "Set if no router is on the path.",
        ),
        Field::new(
            "primary local ACK timeout",
            "infiniband.cm.req.prim_localacktout",
            mask(95, 0xf8),
            Decimal,
            "Code t for a time of 4.096 us times 2^t, after which a packet counts as lost.",
        )
        .note(time_code),
        Field::new(
            "alternate path",
            "roce.cm.req.alternate_path",
            bytes(96, 44),
            Bytes,
            "A second path to migrate to, shaped like the first; zeros if there is none.",
        ),
        Field::new("private data", "infiniband.cm.req.private", bytes(140, 92), Bytes, PRIVATE),
    ],
};

/// Where the private data of a request begins.
pub(crate) const REQ_PRIVATE_DATA: usize = 140;

/// What rdma_cm makes of the private data of a request: a header, then what the application gave.
pub(crate) static IP_CM: Header = Header {
    name: "IP CM",
    title: "rdma_cm header in the private data",
    purpose: "Tells the listener the IP addresses and the port of the one who connects.",
    rule: "IBTA A11",
    fields: &[
        Field::new(
            "major version",
            "infiniband.cm.req.ip_cm.majv",
            mask(0, 0xf0),
            Decimal,
            "Version of the header; 0.",
        ),
        Field::new(
            "minor version",
            "infiniband.cm.req.ip_cm.minv",
            mask(0, 0x0f),
            Decimal,
            "Version of the header; 0.",
        ),
        Field::new("IP version", "infiniband.cm.req.ip_cm.ipv", mask(1, 0xf0), Decimal, "4 or 6."),
        Field::reserved("infiniband.cm.req.ip_cm.reserved", mask(1, 0x0f)),
        Field::new(
            "source port",
            "infiniband.cm.req.ip_cm.sport",
            bytes(2, 2),
            Decimal,
            "Port of the one who connects.",
        ),
        Field::new(
            "source address",
            "infiniband.cm.req.ip_cm.sip4",
            bytes(16, 4),
            Ipv4,
            "Address of the one who connects.",
        )
        .when(|header| !is_ip6(header)),
        Field::new(
            "source address",
            "infiniband.cm.req.ip_cm.sip6",
            bytes(4, 16),
            Ipv6,
            "Address of the one who connects.",
        )
        .when(is_ip6),
        Field::new(
            "destination address",
            "infiniband.cm.req.ip_cm.dip4",
            bytes(32, 4),
            Ipv4,
            "Address of the listener.",
        )
        .when(|header| !is_ip6(header)),
        Field::new(
            "destination address",
            "infiniband.cm.req.ip_cm.dip6",
            bytes(20, 16),
            Ipv6,
            "Address of the listener.",
        )
        .when(is_ip6),
        Field::new("private data", "infiniband.cm.req.ip_cm.private", bytes(36, 56), Bytes, PRIVATE),
    ],
};
