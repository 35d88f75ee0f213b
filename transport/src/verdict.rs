//! The outcome of handling a received packet.

use crate::counters::Counters;

/// The outcome of handling one packet. Everything a peer does wrong ends here and never as an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It was handled; the answer may be a NAK.
    Handled,
    /// It was dropped without an answer and without effect.
    Dropped(DropReason),
}

macro_rules! drop_reasons {
    ($($(#[doc = $doc:literal])+ $variant:ident => $counter:ident,)+) => {
        /// Why a packet was dropped. Each reason has a counter of its own.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum DropReason {
            $($(#[doc = $doc])+ $variant,)+
        }

        impl DropReason {
            /// The name of the counter that counts it.
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
    /// Shorter than its headers, pad and ICRC say.
    Short => drop_short,
    /// A length or pad count that the opcode does not allow.
    BadLength => drop_bad_length,
    /// A transport version other than 0.
    BadVersion => drop_bad_version,
    /// An opcode that does not exist.
    UnknownOpcode => drop_unknown_opcode,
    /// Anything else that does not parse.
    Malformed => drop_malformed,
    /// A wrong ICRC.
    BadIcrc => rx_icrc_encapsulated,
    /// No such queue pair.
    UnknownQpn => drop_unknown_qpn,
    /// An opcode of another transport, or one that this side never receives.
    BadOpcodeForQp => drop_bad_opcode_for_qp,
    /// A state that receives nothing.
    BadState => drop_bad_state,
    /// A partition key that does not match.
    BadPkey => drop_bad_pkey,
    /// A Q_Key that does not match.
    BadQkey => drop_bad_qkey,
    /// Addresses other than those of the connection.
    BadAddress => drop_bad_address,
    /// Ahead of the expected PSN while a NAK is out.
    OutOfSequence => drop_out_of_sequence,
    /// A duplicate READ or atomic that cannot be answered again.
    DuplicateUnanswerable => drop_duplicate_unanswerable,
    /// An answer to something never sent.
    UnsentPsn => drop_unsent_psn,
    /// A response that was handled before.
    StaleResponse => drop_stale_response,
    /// A response behind a lost one.
    ResponseGap => drop_response_gap,
    /// A reserved AETH syndrome.
    ReservedSyndrome => drop_reserved_syndrome,
    /// No receive posted (UC, UD).
    NoReceive => drop_no_receive,
    /// Longer than the receive (UC, UD).
    ReceiveTooSmall => drop_receive_too_small,
    /// A key, range or permission (UC).
    Access => drop_access,
    /// Part of a message that began with a loss (UC).
    IncompleteMessage => drop_incomplete_message,
    /// Duplicated or overtaken in the network (UC).
    LatePacket => drop_late_packet,
    /// A switch cut its payload away, and nothing is to be asked for.
    Trimmed => drop_trimmed,
    /// No local queue pair joined the multicast group.
    NoMulticastMember => drop_no_multicast_member,
}
