//! The other messages of connection management (IBTA 12.6 to 12.11).

use super::super::Show::{Bytes, Decimal, Flag, Hex, Ipv6};
use super::super::transport::q_key;
use super::super::{Field, Header, bits, bytes, mask};
use super::{reject_reason, service, sidr_status, time_code};

pub(super) const LOCAL_ID: &str =
    "What the sender calls this connection; the peer names it so in every later message.";
pub(super) const REMOTE_ID: &str = "What the receiver calls this connection, as its first message said.";
pub(super) const PRIVATE: &str = "Bytes that the application gave along; their meaning is its own.";
pub(super) const START_PSN: &str =
    "The PSN of the first packet that the sender of this message will send, 24 bits.";
pub(super) const RESPONDER_RESOURCES: &str =
    "How many READs and atomics of the peer the sender is ready to hold at once.";
pub(super) const INITIATOR_DEPTH: &str =
    "How many READs and atomics the sender would like to have under way at once.";
pub(super) const RNR_RETRY: &str =
    "How often the receiver of this message is to retry after \"not ready\"; 7 is for ever.";
pub(super) const QPN: &str = "The queue pair that the sender will use for the connection.";
pub(super) const GUID: &str =
    "World-wide number of the sender's adapter, usually made from its Ethernet address.";
pub(super) const UNUSED_IN_ROCE: &str = "Belongs to a transport that RoCE does not have; 0.";
pub(super) const CM_TIMEOUT: &str =
    "Code t for a time of 4.096 us times 2^t, after which a message is sent again.";

pub(super) static REP: Header = Header {
    name: "CM REP",
    title: "reply to a request",
    purpose: "Accepts the connection and tells what the requester must know of this end.",
    rule: "IBTA 12.6.8",
    fields: &[
        Field::new("local comm ID", "infiniband.cm.rep", bytes(0, 4), Hex, LOCAL_ID),
        Field::new("remote comm ID", "infiniband.cm.rep.remotecommid", bytes(4, 4), Hex, REMOTE_ID),
        Field::new("local Q_Key", "infiniband.cm.rep.localqkey", bytes(8, 4), Hex, UNUSED_IN_ROCE),
        Field::new("local QPN", "infiniband.cm.rep.localqpn", bytes(12, 3), Hex, QPN),
        Field::new("local EECN", "infiniband.cm.rep.localeecn", bytes(16, 3), Hex, UNUSED_IN_ROCE),
        Field::new("starting PSN", "infiniband.cm.rep.startpsn", bytes(20, 3), Decimal, START_PSN),
        Field::new(
            "responder resources",
            "infiniband.cm.rep.respres",
            bytes(24, 1),
            Decimal,
            RESPONDER_RESOURCES,
        ),
        Field::new("initiator depth", "infiniband.cm.rep.initdepth", bytes(25, 1), Decimal, INITIATOR_DEPTH),
        Field::new(
            "target ACK delay",
            "infiniband.cm.rep.tgtackdelay",
            mask(26, 0xf8),
            Decimal,
            "Code t for 4.096 us times 2^t: how long the sender may take to acknowledge.",
        )
        .note(time_code),
        Field::new(
            "failover accepted",
            "infiniband.cm.rep.failoveracc",
            mask(26, 0x06),
            Decimal,
            "What became of the alternate path: 0 accepted, 1 not supported, 2 refused.",
        ),
        Field::new(
            "flow control",
            "infiniband.cm.rep.e2eflowctrl",
            mask(26, 0x01),
            Flag,
            "Set if the sender heeds credits.",
        ),
        Field::new("RNR retry count", "infiniband.cm.rep.rnrretrcount", mask(27, 0xe0), Decimal, RNR_RETRY),
        Field::new(
            "SRQ",
            "infiniband.cm.rep.srq",
            mask(27, 0x10),
            Flag,
            "Set if the sender receives from a shared queue.",
        ),
        Field::reserved("infiniband.cm.rep.reserved", mask(27, 0x0f)),
        Field::new("local CA GUID", "infiniband.cm.rep.localcaguid", bytes(28, 8), Hex, GUID),
        Field::new("private data", "infiniband.cm.rep.private", bytes(36, 196), Bytes, PRIVATE),
    ],
};

pub(super) static RTU: Header = Header {
    name: "CM RTU",
    title: "ready to use",
    purpose: "Ends the handshake: the requester is ready to receive.",
    rule: "IBTA 12.6.9",
    fields: &[
        Field::new("local comm ID", "infiniband.cm.rtu.localcommid", bytes(0, 4), Hex, LOCAL_ID),
        Field::new("remote comm ID", "infiniband.cm.rtu.remotecommid", bytes(4, 4), Hex, REMOTE_ID),
        Field::new("private data", "infiniband.cm.rtu.private", bytes(8, 224), Bytes, PRIVATE),
    ],
};

pub(super) static REJ: Header = Header {
    name: "CM REJ",
    title: "rejection",
    purpose: "Refuses a connection, or gives up on one that was being made.",
    rule: "IBTA 12.6.7",
    fields: &[
        Field::new("local comm ID", "infiniband.cm.rej.localcommid", bytes(0, 4), Hex, LOCAL_ID),
        Field::new("remote comm ID", "infiniband.cm.rej.remotecommid", bytes(4, 4), Hex, REMOTE_ID),
        Field::new(
            "message rejected",
            "infiniband.cm.rej.msgrej",
            mask(8, 0xc0),
            Decimal,
            "What is refused: 0 REQ, 1 REP, 2 something else.",
        ),
        Field::new(
            "reject info length",
            "infiniband.cm.rej.rejinfolen",
            mask(9, 0xfe),
            Decimal,
            "Bytes of additional information that count.",
        ),
        Field::new("reason", "infiniband.cm.rej.reason", bytes(10, 2), Decimal, "Why.").note(reject_reason),
        Field::new(
            "additional information",
            "infiniband.cm.rej.ari",
            bytes(12, 72),
            Bytes,
            "Depends on the reason, for example the value that would do.",
        ),
        Field::new("private data", "infiniband.cm.rej.private", bytes(84, 148), Bytes, PRIVATE),
    ],
};

pub(super) static DREQ: Header = Header {
    name: "CM DREQ",
    title: "request to disconnect",
    purpose: "Ends a connection; either side may send it.",
    rule: "IBTA 12.6.10",
    fields: &[
        Field::new("local comm ID", "infiniband.cm.dreq.localcommid", bytes(0, 4), Hex, LOCAL_ID),
        Field::new("remote comm ID", "infiniband.cm.dreq.remotecommid", bytes(4, 4), Hex, REMOTE_ID),
        Field::new(
            "remote QPN",
            "infiniband.cm.req.remoteqpneecn",
            bytes(8, 3),
            Hex,
            "The receiver's queue pair that is to be disconnected.",
        ),
        Field::new("private data", "infiniband.cm.dreq.private", bytes(12, 220), Bytes, PRIVATE),
    ],
};

pub(super) static DREP: Header = Header {
    name: "CM DREP",
    title: "reply to a disconnect",
    purpose: "Confirms that the connection has ended.",
    rule: "IBTA 12.6.11",
    fields: &[
        Field::new("local comm ID", "infiniband.cm.drsp.localcommid", bytes(0, 4), Hex, LOCAL_ID),
        Field::new("remote comm ID", "infiniband.cm.drsp.remotecommid", bytes(4, 4), Hex, REMOTE_ID),
        Field::new("private data", "infiniband.cm.drsp.private", bytes(8, 224), Bytes, PRIVATE),
    ],
};

pub(super) static MRA: Header = Header {
    name: "CM MRA",
    title: "message receipt acknowledgement",
    purpose: "Asks for patience: the message arrived, the answer takes longer.",
    rule: "IBTA 12.6.6",
    fields: &[
        Field::new("local comm ID", "roce.cm.mra.localcommid", bytes(0, 4), Hex, LOCAL_ID),
        Field::new("remote comm ID", "roce.cm.mra.remotecommid", bytes(4, 4), Hex, REMOTE_ID),
        Field::new(
            "message",
            "roce.cm.mra.message",
            mask(8, 0xc0),
            Decimal,
            "What arrived: 0 REQ, 1 REP, 2 LAP.",
        ),
        Field::new(
            "service timeout",
            "roce.cm.mra.servicetout",
            mask(9, 0xf8),
            Decimal,
            "Code t for 4.096 us times 2^t, within which the answer will come.",
        )
        .note(time_code),
        Field::new("private data", "roce.cm.mra.private", bytes(10, 222), Bytes, PRIVATE),
    ],
};

pub(super) static SIDR_REQ: Header = Header {
    name: "CM SIDR_REQ",
    title: "request to resolve a service ID",
    purpose: "Asks which queue pair answers datagrams for a service.",
    rule: "IBTA 12.11.1",
    fields: &[
        Field::new(
            "request ID",
            "roce.cm.sidr_req.requestid",
            bytes(0, 4),
            Hex,
            "Number by which the reply is matched.",
        ),
        Field::new("P_Key", "roce.cm.sidr_req.pkey", bytes(4, 2), Hex, "Partition that is asked for."),
        Field::new(
            "service ID",
            "roce.cm.sidr_req.serviceid",
            bytes(8, 8),
            Hex,
            "The service that is asked for.",
        )
        .note(service),
        Field::new("private data", "roce.cm.sidr_req.private", bytes(16, 216), Bytes, PRIVATE),
    ],
};

pub(super) static SIDR_REP: Header = Header {
    name: "CM SIDR_REP",
    title: "reply with the queue pair of a service",
    purpose: "Tells which queue pair and Q_Key datagrams for a service need.",
    rule: "IBTA 12.11.2",
    fields: &[
        Field::new(
            "request ID",
            "roce.cm.sidr_rep.requestid",
            bytes(0, 4),
            Hex,
            "The number of the request.",
        ),
        Field::new(
            "status",
            "roce.cm.sidr_rep.status",
            bytes(4, 1),
            Decimal,
            "Whether the service is there.",
        )
        .note(sidr_status),
        Field::new(
            "info length",
            "roce.cm.sidr_rep.infolen",
            bytes(5, 1),
            Decimal,
            "Bytes of additional information that count.",
        ),
        Field::new("QPN", "roce.cm.sidr_rep.qpn", bytes(8, 3), Hex, "Where datagrams for the service go."),
        Field::new("service ID", "roce.cm.sidr_rep.serviceid", bytes(12, 8), Hex, "The service.")
            .note(service),
        Field::new(
            "Q_Key",
            "roce.cm.sidr_rep.qkey",
            bytes(20, 4),
            Hex,
            "The key that those datagrams must carry.",
        )
        .note(q_key),
        Field::new(
            "additional information",
            "roce.cm.sidr_rep.info",
            bytes(24, 72),
            Bytes,
            "Depends on the status.",
        ),
        Field::new("private data", "roce.cm.sidr_rep.private", bytes(96, 136), Bytes, PRIVATE),
    ],
};

pub(super) static LAP: Header = Header {
    name: "CM LAP",
    title: "load alternate path",
    purpose: "Offers a path to migrate to.",
    rule: "IBTA 12.8.1",
    fields: &[
        Field::new("local comm ID", "roce.cm.lap.localcommid", bytes(0, 4), Hex, LOCAL_ID),
        Field::new("remote comm ID", "roce.cm.lap.remotecommid", bytes(4, 4), Hex, REMOTE_ID),
        Field::new("remote QPN", "roce.cm.lap.remoteqpn", bytes(12, 3), Hex, "The receiver's queue pair."),
        Field::new("response timeout", "roce.cm.lap.resptout", mask(15, 0xf8), Decimal, CM_TIMEOUT)
            .note(time_code),
        Field::new("local LID", "roce.cm.lap.locallid", bytes(20, 2), Hex, "InfiniBand address."),
        Field::new("remote LID", "roce.cm.lap.remotelid", bytes(22, 2), Hex, "InfiniBand address."),
        Field::new("local GID", "roce.cm.lap.localgid", bytes(24, 16), Ipv6, "The sender's end of the path."),
        Field::new(
            "remote GID",
            "roce.cm.lap.remotegid",
            bytes(40, 16),
            Ipv6,
            "The receiver's end of the path.",
        ),
        Field::new(
            "flow label",
            "roce.cm.lap.flowlabel",
            bits(56, 0, 20),
            Hex,
            "Both ends make the UDP source port from it.",
        ),
        Field::new("traffic class", "roce.cm.lap.tfcclass", bytes(59, 1), Hex, "DSCP and ECN."),
        Field::new("hop limit", "roce.cm.lap.hoplim", bytes(60, 1), Decimal, "TTL."),
        Field::new(
            "local ACK timeout",
            "roce.cm.lap.localacktout",
            mask(63, 0xf8),
            Decimal,
            "Code t for a time of 4.096 us times 2^t, after which a packet counts as lost.",
        )
        .note(time_code),
        Field::new("private data", "roce.cm.lap.private", bytes(64, 168), Bytes, PRIVATE),
    ],
};

pub(super) static APR: Header = Header {
    name: "CM APR",
    title: "alternate path response",
    purpose: "Takes or refuses the path that was offered.",
    rule: "IBTA 12.8.2",
    fields: &[
        Field::new("local comm ID", "roce.cm.apr.localcommid", bytes(0, 4), Hex, LOCAL_ID),
        Field::new("remote comm ID", "roce.cm.apr.remotecommid", bytes(4, 4), Hex, REMOTE_ID),
        Field::new(
            "info length",
            "roce.cm.apr.infolen",
            bytes(8, 1),
            Decimal,
            "Bytes of additional information that count.",
        ),
        Field::new("status", "roce.cm.apr.status", bytes(9, 1), Decimal, "0 if the path was taken."),
        Field::new(
            "additional information",
            "roce.cm.apr.info",
            bytes(12, 72),
            Bytes,
            "Depends on the status.",
        ),
        Field::new("private data", "roce.cm.apr.private", bytes(84, 148), Bytes, PRIVATE),
    ],
};
