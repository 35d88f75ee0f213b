//! The receive path: all checks before a queue pair handles a packet.
//!
//! The order of checks: the packet parses, its ICRC is correct, its queue pair exists, its opcode fits the
//! transport and the state, and its partition key and addresses match. Then the requester or responder
//! compares the PSN. A packet that fails a check is dropped and counted, and has no other effect.
//!
//! Some information in a packet is neither request nor response: a congestion mark, in-band telemetry, the
//! hop limit, the peer's use of the Identification field, and the evidence that the peer is alive. The engine
//! uses such information only from packets that are proven to be from the peer ([`Qp::expects`]). Anyone who
//! knows the addresses and the QP number can send other packets.

use roce_packet::{
    Cnp, Datagram, Deth, Direction, Ecn, Envelope, Opcode, OpcodeInfo, ParseError, ParseErrorKind, Path, Psn,
    Qpn, Transport, icrc,
};

use roce_packet::icrc::Seed;

use super::Engine;
use super::qp::{Halves, Qp};
use crate::Instant;
use crate::congestion::Notifier;
use crate::counters::count;
use crate::integrity::Integrity;
use crate::io::{Body, Identification, MOST_SEGMENTS, Received};
use crate::qp::{PeerIdentification, QpCore, QpType};
use crate::segment::KnownPath;
use crate::shared::{AnswerOverPath, Shared};
use crate::verdict::{DropReason, Verdict};

impl Engine {
    /// Handles one received datagram and returns the outcome. Sends nothing: call
    /// [`poll_transmit`](Self::poll_transmit) after the datagrams of one burst.
    ///
    /// The queue pair returns the telemetry of data with its next acknowledgement; its congestion control
    /// uses the telemetry of an acknowledgement. No datagram is an error: an invalid one is dropped and
    /// counted, and the [`Verdict`] names the reason.
    #[inline]
    pub fn handle(&mut self, now: Instant, received: &Received<'_>) -> Verdict {
        self.set_now(now);
        match received.body {
            Body::Whole { .. } if self.shared.config.telemetry || received.telemetry.is_some() => {
                self.handle_with_telemetry(received)
            }
            Body::Whole { head, tail } => self.handle_sealed(received, head, tail),
            Body::Trimmed { headers } => self.handle_trimmed(received, headers),
        }
    }

    /// Handles a whole datagram, `head` and `tail`, that ends with its ICRC.
    #[inline(always)]
    pub(super) fn handle_sealed(&mut self, received: &Received<'_>, head: &[u8], tail: &[u8]) -> Verdict {
        let counters = &mut self.shared.counters;
        counters.rdma_rx_packets += 1;
        counters.rdma_rx_bytes += (head.len() + tail.len()) as u64;
        // By reference: moving the datagram out of the result takes longer than parsing it.
        let verdict = match &Datagram::parse(head, tail) {
            Ok(datagram) => match check_icrc(&mut self.arrival, received, datagram) {
                Some(integrity) if integrity != Integrity::Recovered => {
                    self.dispatch(received, datagram, integrity)
                }
                uncertain => self.handle_uncertain(received, datagram, uncertain),
            },
            Err(error) => {
                let is_refused = self.refuse_telemetry(received);
                Verdict::Dropped(if is_refused { DropReason::BadIcrc } else { parse_failure(*error) })
            }
        };
        self.count_verdict(received, verdict);
        verdict
    }

    /// Handles a packet whose ICRC is wrong or inconclusive. Random damage passes the check once in 65,536
    /// packets, and so does the end of a trailer that is taken for an ICRC.
    #[inline(never)]
    fn handle_uncertain(
        &mut self,
        received: &Received<'_>,
        datagram: &Datagram<'_>,
        integrity: Option<Integrity>,
    ) -> Verdict {
        let is_refused = self.refuse_telemetry(received);
        match integrity {
            Some(integrity) if !is_refused => self.dispatch(received, datagram, integrity),
            _ => Verdict::Dropped(DropReason::BadIcrc),
        }
    }

    /// Counts the outcome of a packet for the device. Only this function does so, because a multicast packet
    /// may reach several queue pairs but counts once.
    #[inline]
    pub(super) fn count_verdict(&mut self, received: &Received<'_>, verdict: Verdict) {
        match verdict {
            Verdict::Handled => self.shared.counters.rx_handled += 1,
            Verdict::Dropped(reason) => {
                tracing::trace!(dest_qpn = destination(received.head()), ?reason, "packet dropped");
                reason.count(&mut self.shared.counters);
            }
        }
    }

    #[inline]
    fn dispatch(
        &mut self,
        received: &Received<'_>,
        datagram: &Datagram<'_>,
        integrity: Integrity,
    ) -> Verdict {
        let number = datagram.bth().dest_qp;
        if number == Qpn::MULTICAST {
            return self.deliver_multicast(received, datagram, integrity);
        }
        let Some(index) = self.numbers.get(number.get()) else {
            if datagram.bth().opcode == Opcode::CNP {
                self.shared.counters.rp_cnp_ignored += 1;
            }
            return Verdict::Dropped(DropReason::UnknownQpn);
        };
        self.deliver(index, received, datagram, integrity)
    }

    #[inline]
    fn deliver(
        &mut self,
        index: usize,
        received: &Received<'_>,
        datagram: &Datagram<'_>,
        integrity: Integrity,
    ) -> Verdict {
        let Some(qp) = self.qps.get_mut(index) else { return Verdict::Dropped(DropReason::UnknownQpn) };
        let shared = &mut self.shared;
        // The device counters already include this packet.
        qp.core.counters.rdma_rx_packets += 1;
        qp.core.counters.rdma_rx_bytes += datagram.len() as u64;
        let verdict = match qp.admit(received, datagram, integrity) {
            Ok(()) => {
                let is_expected = qp.expects(datagram);
                let verdict = qp.handle(shared, received, datagram);
                if is_expected && qp.is_proof(verdict) {
                    qp.core.take_evidence(shared, integrity, datagram.info().direction);
                    if is_marked(received) {
                        let marked = Marked {
                            info: datagram.info(),
                            dest_qp: datagram.bth().dest_qp,
                            deth: datagram.deth(),
                            has_payload: datagram.payload_len() > 0,
                        };
                        notify(&mut self.notifier, shared, &mut qp.core, received, &marked);
                    }
                }
                verdict
            }
            Err(reason) => {
                if datagram.info().direction == Direction::Cnp {
                    count!(shared, qp.core, rp_cnp_ignored);
                }
                Verdict::Dropped(reason)
            }
        };
        match verdict {
            Verdict::Dropped(reason) => reason.count(qp.core.counters.others()),
            Verdict::Handled => {
                qp.core.counters.rx_handled += 1;
                self.settle(index);
            }
        }
        verdict
    }

    /// Gives a copy to each queue pair that joined the group. The packet counts as handled if at least one
    /// queue pair handled it.
    fn deliver_multicast(
        &mut self,
        received: &Received<'_>,
        datagram: &Datagram<'_>,
        integrity: Integrity,
    ) -> Verdict {
        let mut verdict = None;
        for member in 0..self.groups.len() {
            let Some(&(group, number)) = self.groups.get(member) else { break };
            if group != received.path.destination {
                continue;
            }
            let Some(index) = self.numbers.get(number.get()) else { continue };
            let outcome = self.deliver(index, received, datagram, integrity);
            if verdict != Some(Verdict::Handled) {
                verdict = Some(outcome);
            }
        }
        verdict.unwrap_or(Verdict::Dropped(DropReason::NoMulticastMember))
    }
}

/// Tells whether a switch marked the packet as having experienced congestion.
#[inline]
pub(super) fn is_marked(received: &Received<'_>) -> bool {
    received.path.ecn() == Ecn::CongestionExperienced
}

/// A packet with a congestion mark.
pub(super) struct Marked {
    pub(super) info: &'static OpcodeInfo,
    pub(super) dest_qp: Qpn,
    pub(super) deth: Option<Deth>,
    pub(super) has_payload: bool,
}

/// Handles a marked packet from the peer. If it carries data, its sender is notified by a CNP, or by the next
/// acknowledgement if both sides agreed on that.
pub(super) fn notify(
    notifier: &mut Notifier,
    shared: &mut Shared,
    core: &mut QpCore,
    received: &Received<'_>,
    marked: &Marked,
) {
    count!(shared, core, np_ecn_marked_roce_packets);
    let info = marked.info;
    if !marked.has_payload || info.direction == Direction::Cnp {
        return;
    }
    // A multicast address cannot be a source, so a notification has no destination.
    if marked.dest_qp == Qpn::MULTICAST {
        return;
    }
    // READ responses are not acknowledged, so a CNP reports their marks.
    if core.congestion.echo && core.qp_type.is_reliable() && info.direction == Direction::Request {
        core.echo_owed = true;
        return;
    }
    if marked.deth.is_some_and(|deth| deth.q_key != core.attr.qkey) {
        return;
    }
    let point = &shared.config.notification;
    if !point.cnp_enable {
        return;
    }
    let dest_qp = marked.deth.map_or(core.attr.dest_qpn, |deth| deth.source_qp);
    let cnp = Cnp { dest_qp, p_key: core.attr.p_key };
    // The CNP needs the hop limit for the whole way back, not what is left of that of the data packet.
    let path = Path { hop_limit: own_hop_limit(core), ..received.path };
    let own = (core.number, &mut core.cnp_pace);
    if !notifier.mark(shared.now, point, own, cnp, &path) {
        count!(shared, core, np_cnp_coalesced);
    }
}

/// Returns the hop limit of packets that this queue pair sends unprompted. A UD queue pair has no path, so it
/// uses the default.
fn own_hop_limit(core: &QpCore) -> u8 {
    let path = core.attr.path.filter(|_| core.qp_type != QpType::Ud);
    path.map_or(DEFAULT_HOP_LIMIT, |path| path.hop_limit)
}

/// The default hop limit of operating systems.
const DEFAULT_HOP_LIMIT: u8 = 64;

/// Returns the destination QP number of a datagram that is long enough to have one. For trace events.
fn destination(head: &[u8]) -> Option<u32> {
    let [high, middle, low] = head.get(5..8)?.first_chunk::<3>().copied()?;
    Some(u32::from_be_bytes([0, high, middle, low]))
}

pub(super) fn parse_failure(error: ParseError) -> DropReason {
    match error.kind {
        ParseErrorKind::Truncated => DropReason::Short,
        ParseErrorKind::BadLength => DropReason::BadLength,
        ParseErrorKind::BadVersion => DropReason::BadVersion,
        ParseErrorKind::UnknownOpcode => DropReason::UnknownOpcode,
        _ => DropReason::Malformed,
    }
}

/// Compares the ICRC. If the device did not see the Identification, the hint is tried first: zero, or the
/// index of the segment in its superpacket, as our own peers send it. Otherwise the single value that makes
/// the ICRC correct is computed, if it exists.
///
/// `arrival` is the path of the last datagram: most datagrams have the same path, whose part of the ICRC is
/// known.
#[inline(always)]
pub(super) fn check_icrc(
    arrival: &mut Option<KnownPath>,
    received: &Received<'_>,
    datagram: &Datagram<'_>,
) -> Option<Integrity> {
    if cfg!(fuzzing) {
        return Some(Integrity::Known);
    }
    let found = datagram.icrc();
    let (likeliest, is_known) = match received.identification {
        Identification::Unsealed => return Some(Integrity::Known),
        Identification::Known { identification, dont_fragment: true } => (identification, true),
        Identification::Known { identification, dont_fragment: false } => {
            let mut envelope = Envelope::new(&received.path, identification);
            envelope.dont_fragment = false;
            return (datagram.compute_icrc(&envelope) == found).then_some(Integrity::Known);
        }
        // Try the hint first: it is correct for all datagrams of our own peers, and recovering another value
        // takes as long as all other processing of a small datagram.
        Identification::Unknown { hint } => (hint, false),
    };
    let computed = datagram.compute_icrc_from(seed_of(arrival, &received.path), likeliest);
    if is_known {
        return (computed == found).then_some(Integrity::Known);
    }
    let mut identification = likeliest;
    if computed != found {
        if !received.path.source.is_ipv4() {
            return None;
        }
        let covered = datagram.len().saturating_sub(4);
        identification ^= icrc::identification_from_difference(computed ^ found, covered)?;
    }
    Some(match identification {
        0 => Integrity::Zero,
        // The hint is an index within the received buffer; a network may have split or joined the
        // superpacket.
        _ if identification == likeliest || identification < MOST_SEGMENTS => Integrity::Segment,
        _ => Integrity::Recovered,
    })
}

#[inline]
fn seed_of<'a>(arrival: &'a mut Option<KnownPath>, path: &Path) -> &'a Seed {
    if arrival.as_ref().is_none_or(|known| known.path() != path) {
        *arrival = None;
    }
    arrival.get_or_insert_with(|| KnownPath::new(*path)).seed()
}

impl Qp {
    /// Makes the checks that only need the attributes (IBTA 9.6.1).
    #[inline]
    fn admit(
        &mut self,
        received: &Received<'_>,
        datagram: &Datagram<'_>,
        integrity: Integrity,
    ) -> Result<(), DropReason> {
        self.admit_fields(received, datagram.info(), datagram.bth().p_key)?;
        if integrity == Integrity::Recovered && self.core.peer_identification == PeerIdentification::Zero {
            return Err(DropReason::BadIcrc);
        }
        Ok(())
    }

    /// Tells whether only the peer, or someone who can read its packets, can have sent this packet: it has
    /// the expected PSN, answers a packet in flight, or has the Q_Key. A CNP has none of these.
    #[inline]
    fn expects(&self, datagram: &Datagram<'_>) -> bool {
        self.awaits(datagram.info().direction, datagram.bth().psn)
    }

    /// Does what [`Self::expects`] does, for a packet of which only the headers are known.
    #[inline]
    pub(super) fn awaits(&self, direction: Direction, psn: Psn) -> bool {
        match (&self.halves, direction) {
            (_, Direction::Cnp) => false,
            (Halves::Rc(requester, _), Direction::Response) => requester.awaits(psn),
            (Halves::Rc(_, responder), Direction::Request) => responder.awaits(psn),
            (Halves::Uc(_, responder), Direction::Request) => responder.expected_psn() == psn,
            // The UD responder compares the Q_Key.
            (Halves::Ud(..), Direction::Request) => true,
            (_, Direction::Response) => false,
        }
    }

    /// Tells whether an expected packet with this verdict is from the peer. UC also drops packets that arrive
    /// in order: those of a message whose beginning was lost.
    #[inline]
    fn is_proof(&self, verdict: Verdict) -> bool {
        verdict == Verdict::Handled || matches!(self.halves, Halves::Uc(..))
    }

    /// Makes the checks of [`Self::admit`] except the one of the ICRC.
    #[inline]
    pub(super) fn admit_fields(
        &self,
        received: &Received<'_>,
        info: &OpcodeInfo,
        p_key: u16,
    ) -> Result<(), DropReason> {
        let core = &self.core;
        let transport = match core.qp_type {
            QpType::Rc => Transport::Rc,
            QpType::Uc => Transport::Uc,
            QpType::Ud => Transport::Ud,
            QpType::XrcSend | QpType::XrcRecv => Transport::Xrc,
        };
        // Each end of an XRC connection lacks one direction.
        let missing = match core.qp_type {
            QpType::XrcSend => Some(Direction::Request),
            QpType::XrcRecv => Some(Direction::Response),
            QpType::Rc | QpType::Uc | QpType::Ud => None,
        };
        let is_cnp = info.transport == Transport::Cnp;
        if info.transport != transport && !is_cnp || missing == Some(info.direction) {
            return Err(DropReason::BadOpcodeForQp);
        }
        let state = core.attr.state;
        let open = match info.direction {
            Direction::Request => state.responds(),
            Direction::Response => state.requests(),
            Direction::Cnp => state.responds(),
        };
        if !open {
            return Err(DropReason::BadState);
        }
        if !p_keys_match(core.attr.p_key, p_key) {
            return Err(DropReason::BadPkey);
        }
        if core.qp_type != QpType::Ud && !core.is_from_peer(&received.path) {
            return Err(DropReason::BadAddress);
        }
        Ok(())
    }

    #[inline]
    fn handle(&mut self, shared: &mut Shared, received: &Received<'_>, datagram: &Datagram<'_>) -> Verdict {
        let core = &mut self.core;
        match (&mut self.halves, datagram.info().direction) {
            (halves, Direction::Cnp) => {
                if let Halves::Rc(requester, _) = halves {
                    requester.notified(core, shared.now, received.path.source_port);
                }
                let control = core.control.as_mut().filter(|control| control.is_chosen());
                tracing::debug!(qpn = core.number.get(), handled = control.is_some(), "CNP received");
                match control {
                    Some(control) => {
                        control.notified(shared.now);
                        count!(shared, core, rp_cnp_handled);
                    }
                    None => count!(shared, core, rp_cnp_ignored),
                }
                Verdict::Handled
            }
            (Halves::Rc(requester, _), Direction::Response) => {
                if core.control.is_some() || requester.has_paths() {
                    let marked = datagram.bth().becn && core.congestion.echo;
                    shared.answer = Some(AnswerOverPath { hop_limit: received.path.hop_limit, marked });
                }
                let verdict = requester.handle_response(core, shared, datagram);
                if verdict == Verdict::Handled {
                    core.take_answer(shared);
                    if let Some(reads) = &mut shared.reads {
                        let marked = is_marked(received);
                        reads.on_response(shared.now, core.number, datagram, marked);
                    }
                }
                shared.answer = None;
                verdict
            }
            (Halves::Rc(_, responder), Direction::Request) => {
                let verdict = responder.handle_request(core, shared, datagram);
                if verdict == Verdict::Handled {
                    // Also for a repeated request: the way back of its first path may have failed.
                    responder.arrived_on(received.path.source_port);
                }
                verdict
            }
            (Halves::Uc(_, responder), Direction::Request) => {
                responder.handle_request(core, shared, datagram)
            }
            (Halves::Ud(_, responder), Direction::Request) => {
                responder.handle_request(core, shared, received, datagram)
            }
            (_, Direction::Response) => Verdict::Dropped(DropReason::BadOpcodeForQp),
        }
    }
}

/// Tells whether the lower 15 bits agree and at least one side is a full member (IBTA 10.9.1.1).
#[inline]
fn p_keys_match(own: u16, theirs: u16) -> bool {
    (own ^ theirs) & 0x7fff == 0 && (own | theirs) & 0x8000 != 0
}
