//! The record of one connection or SIDR request.

use roce_packet::mad::{
    CmDreq, CmMad, CmMessage, CmMessageKind, CmMra, CmRej, CmTimeout, CommId, MAD_LEN, RejReason, ServiceId,
    private_data,
};
use roce_packet::{Path, Qpn};

use super::{CmOffer, CmQpParameters, CmState, CmTiming};
use crate::Instant;

/// The destination of the messages of a connection.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Route {
    /// The path from this end to the peer.
    pub(super) path: Path,
    pub(super) qpn: Qpn,
}

/// The repetition of messages, with the limits applied.
#[derive(Clone, Copy, Debug)]
pub(super) struct Repetition {
    pub(super) interval_ns: u64,
    pub(super) retries: u8,
    /// Round-trip time in nanoseconds.
    pub(super) round_trip_ns: u64,
    /// The packet lifetime: the maximum time that a packet takes to arrive.
    pub(super) lifetime: CmTimeout,
}

/// Minimum interval of repetitions, whatever timeout a peer requests.
const SHORTEST_INTERVAL_NS: u64 = 1_000_000;
/// Maximum time of all repetitions of one message, whatever timeout a peer requests.
const LONGEST_EXCHANGE_NS: u64 = 140_000_000_000;
/// Maximum additional time for a peer that requests more time: twice the service timeout of the Linux kernel.
const LONGEST_DELAY_NS: u64 = 140_000_000_000;
/// Maximum time to wait for a peer that has not answered and may not be sent more messages.
const LONGEST_SILENCE_NS: u64 = 20_000_000_000;
/// Messages that may be sent to an address for each request from it, until its peer has proven to receive
/// them. All messages have the same length, so this is the rule of QUIC: at most three times the received
/// bytes (RFC 9000, 8.1).
const MESSAGES_PER_REQUEST: u32 = 3;

impl Repetition {
    pub(super) fn new(timing: &CmTiming, longest: CmTimeout) -> Self {
        // The minimum also applies if the longest wait is set below it.
        let interval_ns = timing.interval_ns().min(longest.nanos()).max(SHORTEST_INTERVAL_NS);
        let most = (LONGEST_EXCHANGE_NS / interval_ns).saturating_sub(1);
        Self {
            interval_ns,
            retries: timing.max_retries.min(15).min(u8::try_from(most).unwrap_or(u8::MAX)),
            round_trip_ns: (2 * timing.packet_lifetime.nanos()).min(longest.nanos()),
            lifetime: timing.packet_lifetime,
        }
    }

    /// Returns the time after which the peer has stopped waiting.
    pub(super) fn all_ns(&self) -> u64 {
        self.interval_ns.saturating_mul(u64::from(self.retries) + 1)
    }
}

/// The attributes that both ends agree on, as far as they are known.
#[derive(Clone, Copy, Debug)]
pub(super) struct Terms {
    /// The offer of this end. On the passive side it is empty until the application accepts.
    pub(super) own: CmOffer,
    /// The attributes for the queue pair. They are complete once the peer's offer is known.
    pub(super) parameters: CmQpParameters,
    /// The resources and the depth in the peer's REQ (passive side).
    pub(super) peer_resources: u8,
    pub(super) peer_depth: u8,
}

#[derive(Debug)]
pub(super) struct Connection {
    pub(super) id: CommId,
    pub(super) state: CmState,
    /// Whether this end sent the REQ.
    pub(super) active: bool,
    /// Whether the application has released the connection, so that it raises no events.
    pub(super) silent: bool,
    /// The ID of the peer.
    pub(super) remote: Option<CommId>,
    pub(super) route: Route,
    /// The transaction ID of the handshake.
    pub(super) transaction_id: u64,
    pub(super) service_id: ServiceId,
    /// Whether the request waits for the application and counts against the listener's backlog.
    pub(super) pending: bool,
    pub(super) terms: Option<Terms>,
    pub(super) repetition: Repetition,
    pub(super) retries_left: u8,
    pub(super) deadline: Option<Instant>,
    /// The last message of this end, to be repeated by the timer or for a duplicate.
    pub(super) last: Option<CmMad>,
    /// Number of messages that may still be sent to a peer that has not answered; `None` once it has.
    pub(super) credit: Option<u32>,
    /// The time until which a silent peer is awaited once nothing more may be sent to it.
    pub(super) silent_from: Instant,
    /// The latest time until which the peer is awaited, however often it requests more time.
    pub(super) latest: Instant,
}

impl Connection {
    pub(super) fn new(
        id: CommId,
        route: Route,
        service_id: ServiceId,
        repetition: Repetition,
        now: Instant,
    ) -> Self {
        Self {
            id,
            state: CmState::Idle,
            active: true,
            silent: false,
            remote: None,
            route,
            transaction_id: 0,
            service_id,
            pending: false,
            terms: None,
            repetition,
            retries_left: 0,
            deadline: None,
            last: None,
            credit: None,
            silent_from: now,
            latest: now.plus_nanos(repetition.all_ns().saturating_add(LONGEST_DELAY_NS)),
        }
    }

    /// Adds credit for a request from the address of the peer, unless the peer has already answered.
    pub(super) fn earn_credit(&mut self, now: Instant) {
        if let Some(credit) = &mut self.credit {
            *credit = credit.saturating_add(MESSAGES_PER_REQUEST);
            self.silent_from = now.plus_nanos(LONGEST_SILENCE_NS);
        }
    }

    /// Tells whether the peer may not be sent more messages and has been silent for too long.
    pub(super) fn is_forsaken(&self, now: Instant) -> bool {
        self.credit == Some(0) && now >= self.silent_from
    }

    /// Records an answer with an ID that only this end's messages contain: the peer receives its messages.
    pub(super) fn has_answered(&mut self) {
        self.credit = None;
    }

    /// Returns the queue pair number of the peer, as long as the connection holds that queue pair.
    pub(super) fn peer_qpn(&self) -> Option<Qpn> {
        let known = self.remote.is_some() && !self.state.lingers();
        self.terms.as_ref().filter(|_| known).map(|terms| terms.parameters.dest_qpn)
    }

    /// Returns how long late packets may arrive after the end: the local ACK timeout.
    pub(super) fn timewait_ns(&self) -> u64 {
        self.terms.as_ref().map_or(self.repetition.round_trip_ns, |terms| terms.parameters.timeout.nanos())
    }

    /// Tells whether the peer may not know the ID of this end: on the passive side, before its REP is
    /// answered.
    pub(super) fn may_be_unknown_to_peer(&self) -> bool {
        let is_early = matches!(self.state, CmState::ReqReceived | CmState::MraReqSent | CmState::RepSent);
        !self.active && is_early
    }

    pub(super) fn remote_id(&self) -> CommId {
        self.remote.unwrap_or_default()
    }

    pub(super) fn rej(&self, rejected: CmMessageKind, reason: RejReason, data: &[u8]) -> CmMad {
        let rej = rej((self.id, self.remote_id()), rejected, reason, data);
        CmMad::new(self.transaction_id, CmMessage::Rej(rej))
    }

    /// Returns the REJ after a timeout. The peer's ID may be unknown, so the REJ contains the adapter's GUID.
    /// The peer finds the connection by this GUID and the ID of this end (IBTA 12.6.7.2, reason 4).
    pub(super) fn rej_timeout(&self, rejected: CmMessageKind, ca_guid: u64) -> CmMad {
        let mut mad = self.rej(rejected, RejReason::TIMEOUT, &[]);
        if let CmMessage::Rej(rej) = &mut mad.message {
            rej.info = private_data(&ca_guid.to_be_bytes());
            rej.info_length = 8;
        }
        mad
    }

    pub(super) fn mra(&self, received: CmMessageKind, service_timeout: CmTimeout) -> CmMad {
        let mra = CmMra {
            local_comm_id: self.id,
            remote_comm_id: self.remote_id(),
            received,
            service_timeout,
            private_data: [0; CmMra::PRIVATE_DATA],
        };
        CmMad::new(self.transaction_id, CmMessage::Mra(mra))
    }

    pub(super) fn dreq(&self, transaction_id: u64, data: &[u8]) -> CmMad {
        let remote_qpn = self.terms.as_ref().map_or(Qpn::default(), |terms| terms.parameters.dest_qpn);
        let dreq = CmDreq {
            local_comm_id: self.id,
            remote_comm_id: self.remote_id(),
            remote_qpn,
            private_data: private_data(data),
        };
        CmMad::new(transaction_id, CmMessage::Dreq(dreq))
    }
}

/// Returns a REJ without additional information, from the end with the first ID to that with the second.
pub(super) fn rej(
    (local_comm_id, remote_comm_id): (CommId, CommId),
    rejected: CmMessageKind,
    reason: RejReason,
    data: &[u8],
) -> CmRej {
    let (info_length, info, private_data) = (0, [0; CmRej::INFO], private_data(data));
    CmRej { local_comm_id, remote_comm_id, rejected, info_length, reason, info, private_data }
}

/// Returns the bytes of a datagram.
pub(super) fn bytes_of(mad: &CmMad) -> [u8; MAD_LEN] {
    let mut bytes = [0; MAD_LEN];
    mad.emit(&mut bytes);
    bytes
}

/// Returns the local ACK timeout for a path and a peer: twice the `lifetime` of packets on the path plus the
/// `ack_delay` of the peer, rounded up to a code (IBTA 12.7.34).
pub(super) fn local_ack_timeout(lifetime: CmTimeout, ack_delay: CmTimeout) -> CmTimeout {
    let (there_and_back, delay) = (lifetime.code() + 1, ack_delay.code());
    let code = if there_and_back >= delay {
        there_and_back + u8::from(delay >= there_and_back.saturating_sub(1))
    } else {
        delay + u8::from(there_and_back >= delay.saturating_sub(1))
    };
    CmTimeout::new(code.min(31))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A ConnectX and the kernel's RXE announce these timeouts for a lifetime of 16.
    #[test]
    fn ack_timeouts_of_real_nics() {
        let timeout =
            |lifetime, delay| local_ack_timeout(CmTimeout::new(lifetime), CmTimeout::new(delay)).code();
        assert_eq!(timeout(16, 16), 18);
        assert_eq!(timeout(16, 15), 17);
        assert_eq!(timeout(4, 20), 20);
        assert_eq!(timeout(18, 20), 21);
        assert_eq!(timeout(31, 31), 31);
    }

    #[test]
    fn limits_of_repetition() {
        let timing = |response, lifetime, max_retries| CmTiming {
            response_timeout: CmTimeout::new(response),
            packet_lifetime: CmTimeout::new(lifetime),
            max_retries,
        };
        let longest = CmTimeout::new(24);
        assert_eq!(Repetition::new(&timing(0, 0, 3), longest).interval_ns, SHORTEST_INTERVAL_NS);
        let endless = Repetition::new(&timing(31, 31, 255), longest);
        assert_eq!((endless.interval_ns, endless.retries), (longest.nanos(), 1));
        assert_eq!(endless.all_ns(), 2 * longest.nanos());
        assert!(endless.all_ns() <= LONGEST_EXCHANGE_NS);
        // The values of the kernel are kept: 16 times 4.8 s.
        let kernel = Repetition::new(&timing(20, 16, 15), longest);
        assert_eq!((kernel.interval_ns, kernel.retries), (timing(20, 16, 15).interval_ns(), 15));
    }
}
