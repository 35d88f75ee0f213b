//! The field tables of the messages: the common fields, and the two messages that are only displayed.

use core::fmt;

pub use super::disconnect::{DREP, DREQ};
pub use super::ip_cm::IP_CM;
pub use super::reject::{MRA, REJ};
pub use super::reply::{REP, RTU};
pub use super::request::REQ;
pub use super::sidr::{SIDR_REP, SIDR_REQ};
use super::{CM_LEN, CmTimeout, ServiceId};
pub use super::{MAD, MAD_DATA};
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

pub(super) const PRIVATE: &str = "Bytes of the application.";
pub(super) const STARTING_PSN: &str =
    "PSN of the first packet that the sender of this message wants to receive; the peer begins with it.";
pub(super) const RESPONDER_RESOURCES: &str =
    "READs and atomics of the peer that the sender can hold at once.";
pub(super) const INITIATOR_DEPTH: &str = "READs and atomics that the sender wants to have outstanding.";
pub(super) const RNR_RETRY: &str =
    "How often the receiver of this message retries after an RNR NAK; 7 is no limit.";
pub(super) const QPN: &str = "The sender's queue pair for the connection.";
pub(super) const CA_GUID: &str =
    "World-wide number of the sender's adapter, usually made from its Ethernet address.";
pub(super) const NOT_IN_ROCE: &str = "Belongs to a transport that RoCE does not have; 0.";
pub(super) const CM_TIMEOUT: &str =
    "Code t for 4.096 us times 2^t: the message is sent again after this time.";
pub(super) const ACK_TIMEOUT: &str =
    "Code t for 4.096 us times 2^t: a packet counts as lost after this time.";

pub(super) const fn local_comm_id(key: &'static str) -> Field {
    Field::new("local comm ID", key, bytes(0, 4), Hex)
        .means("Number of the connection at the sender; the peer repeats it in later messages.")
}

pub(super) const fn remote_comm_id(key: &'static str) -> Field {
    Field::new("remote comm ID", key, bytes(4, 4), Hex).means("Number of the connection at the receiver.")
}

/// Returns the field of private data from `first` to the end of the message.
pub(super) const fn private_data_from(first: usize, key: &'static str) -> Field {
    Field::new("private data", key, bytes(first, CM_LEN.saturating_sub(first)), Bytes).means(PRIVATE)
}

pub(super) fn timeout_note(code: u64, out: &mut dyn fmt::Write) -> fmt::Result {
    write!(out, "{}", CmTimeout::new(code as u8))
}

pub(super) fn service_note(value: u64, out: &mut dyn fmt::Write) -> fmt::Result {
    match ServiceId(value).port() {
        Some((space, port)) => write!(out, "{} port {port}", space.name()),
        None => Ok(()),
    }
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
