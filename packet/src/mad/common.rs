//! Fields and descriptions that the tables of several messages contain.

use core::fmt;

use super::CmTimeout;
use super::header::CM_LEN;
use crate::fields::Show::{Bytes, Hex};
use crate::fields::{Field, bytes};

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
