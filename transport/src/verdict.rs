//! The outcome of handling a received packet.

use crate::counters::Counters;

/// The outcome of handling one packet. Every error of a peer results in a verdict and never in an `Err`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The packet was handled; the answer may be a NAK.
    Handled,
    /// The packet was dropped without an answer and without effect.
    Dropped(DropReason),
}

macro_rules! drop_reasons {
    ($($(#[doc = $doc:literal])+ $variant:ident => $counter:ident,)+) => {
        /// The reason why a packet was dropped. Each reason has its own counter.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum DropReason {
            $($(#[doc = $doc])+ $variant,)+
        }

        impl DropReason {
            /// Returns the name of the counter of this reason.
            #[must_use]
            pub const fn counter(self) -> &'static str {
                match self { $(Self::$variant => stringify!($counter),)+ }
            }

            /// Counts one packet, for the device or for a queue pair.
            pub(crate) fn count(self, counters: &mut Counters) {
                match self { $(Self::$variant => counters.$counter = counters.$counter.wrapping_add(1),)+ }
            }
        }
    };
}

drop_reasons! {
    /// The packet is shorter than required by its headers, padding and ICRC.
    Short => drop_short,
    /// The opcode does not allow the length or pad count.
    BadLength => drop_bad_length,
    /// The transport version is not 0.
    BadVersion => drop_bad_version,
    /// The opcode does not exist.
    UnknownOpcode => drop_unknown_opcode,
    /// The packet does not parse for another reason.
    Malformed => drop_malformed,
    /// The ICRC is wrong.
    BadIcrc => rx_icrc_encapsulated,
    /// The queue pair does not exist.
    UnknownQpn => drop_unknown_qpn,
    /// The opcode belongs to another transport, or this side never receives it.
    BadOpcodeForQp => drop_bad_opcode_for_qp,
    /// The queue pair is in a state that does not receive.
    BadState => drop_bad_state,
    /// The partition key does not match.
    BadPkey => drop_bad_pkey,
    /// The Q_Key does not match.
    BadQkey => drop_bad_qkey,
    /// The addresses are not those of the connection.
    BadAddress => drop_bad_address,
    /// The packet is ahead of the expected PSN after a NAK was sent.
    OutOfSequence => drop_out_of_sequence,
    /// The duplicate READ or atomic cannot be answered again.
    DuplicateUnanswerable => drop_duplicate_unanswerable,
    /// The response is for a PSN that was never sent.
    UnsentPsn => drop_unsent_psn,
    /// The response was already handled.
    StaleResponse => drop_stale_response,
    /// The response follows a lost one.
    ResponseGap => drop_response_gap,
    /// The AETH syndrome is reserved.
    ReservedSyndrome => drop_reserved_syndrome,
    /// No receive is posted (UC, UD).
    NoReceive => drop_no_receive,
    /// The message is longer than the receive (UC, UD).
    ReceiveTooSmall => drop_receive_too_small,
    /// The key, range or permission is wrong (UC).
    Access => drop_access,
    /// The packet belongs to a message whose beginning was lost (UC).
    IncompleteMessage => drop_incomplete_message,
    /// The packet was duplicated or overtaken in the network (UC).
    LatePacket => drop_late_packet,
    /// A switch trimmed the packet, and no retransmission is needed.
    Trimmed => drop_trimmed,
    /// No local queue pair joined the multicast group.
    NoMulticastMember => drop_no_multicast_member,
}
