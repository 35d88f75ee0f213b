//! The responder of RC: checks and executes requests (IBTA 9.7.4, 9.7.5.1).

use alloc::boxed::Box;

use roce_packet::{AtomicEth, Datagram, FlushSelectivity, Msn, Operation, Position, Psn, Reth};

use super::owed::{Reply, Reports};
use super::refusal::Refusal;
use super::reorder::Reorder;
use super::resources::{Answer, Repeated, Resource, Resources, Sending};
use super::spread::AnswerPaths;
use crate::completion::WcStatus;
use crate::counters::count;
use crate::ids::RKey;
use crate::inbound::{Inbound, check_length};
use crate::memory::{Access, Memory, OutOfBounds};
use crate::qp::{Failure, QpCore};
use crate::reason::Invalid;
use crate::recovery::Recovery;
use crate::rq::Receive;
use crate::segment::packets;
use crate::shared::Shared;
use crate::verdict::{DropReason, Verdict};
use crate::wr::MAX_MESSAGE;

#[derive(Debug)]
pub(crate) struct RcResponder {
    /// The next expected PSN, and the number of finished messages.
    pub(super) epsn: Psn,
    pub(crate) msn: Msn,
    /// The newest PSN that an acknowledgement may carry, and the MSN at that PSN. It is never the PSN of a
    /// READ or an atomic, which only its response answers: a Soft-RoCE requester would take such an
    /// acknowledgement for the end of the READ, although none of its bytes arrived.
    pub(super) acknowledgeable: Option<(Psn, Msn)>,
    pub(super) inbound: Inbound,
    /// Whether a NAK for the expected PSN was sent: later packets are dropped until that PSN arrives.
    pub(super) nak_sent: bool,
    pub(super) resources: Resources,
    /// The pending acknowledgement or NAK. One is sufficient, because they are cumulative.
    pub(super) reply: Option<Reply>,
    /// Requests that arrived early, with selective repeat (`reorder`). Whether an RNR NAK paused the peer, so
    /// that no further reply is sent (`paused`).
    pub(super) reorder: Option<Box<Reorder>>,
    pub(super) paused: bool,
    pub(super) reports: Option<Box<Reports>>,
    /// Number of losses of READ responses that the peer reported; each may make it repeat many requests.
    pub(super) losses: u32,
    /// The paths of answers, if there are several.
    pub(super) paths: Option<AnswerPaths>,
}

impl RcResponder {
    pub(crate) fn new() -> Self {
        Self {
            epsn: Psn::new(0),
            msn: Msn::new(0),
            acknowledgeable: None,
            inbound: Inbound::Idle,
            nak_sent: false,
            resources: Resources::default(),
            reply: None,
            reorder: None,
            paused: false,
            reports: None,
            losses: 0,
            paths: None,
        }
    }

    pub(crate) fn reset(&mut self) {
        self.start(Psn::new(0), &Recovery::GoBackN, 0);
        self.resources.clear();
        self.paths = None;
    }

    /// Sets the first expected PSN, at the transition to RTR.
    pub(crate) fn start(&mut self, rq_psn: Psn, recovery: &Recovery, mtu: usize) {
        self.reorder = match recovery {
            Recovery::GoBackN => None,
            Recovery::SelectiveRepeat(settings) => Some(Box::new(Reorder::new(settings.cap(), mtu))),
        };
        self.paused = false;
        self.forget_reports();
        self.epsn = rq_psn;
        self.msn = Msn::new(0);
        self.acknowledgeable = Some((rq_psn.sub(1), self.msn));
        self.inbound = Inbound::Idle;
        self.nak_sent = false;
        self.reply = None;
    }

    /// Sets the number of responder resources (`max_dest_rd_atomic`).
    pub(crate) fn set_resources(&mut self, limit: u8) {
        self.resources.set_limit(limit);
    }

    pub(crate) fn expected_psn(&self) -> Psn {
        self.epsn
    }

    /// Tells whether a request with this PSN is executed or kept when it arrives: the expected one, or with
    /// selective repeat a later one that has not arrived.
    #[inline]
    pub(crate) fn awaits(&self, psn: Psn) -> bool {
        psn == self.epsn || self.reorder.as_ref().is_some_and(|reorder| reorder.is_missing(self.epsn, psn))
    }

    pub(crate) fn take_receive(&mut self) -> Option<Receive> {
        self.inbound.take_receive()
    }

    /// Handles a request packet.
    pub(crate) fn handle_request(
        &mut self,
        core: &mut QpCore,
        shared: &mut Shared,
        datagram: &Datagram<'_>,
    ) -> Verdict {
        let psn = datagram.bth().psn;
        if psn.before(self.epsn) {
            return self.duplicate(core, shared, datagram);
        }
        if psn != self.epsn {
            return if self.reorder.is_some() {
                self.keep_early(core, shared, datagram)
            } else {
                self.gap(core, shared)
            };
        }
        core.established(shared);
        if self.nak_sent {
            self.nak_sent = false;
            self.set_kept_aside();
            // An unsent NAK is obsolete, but the acknowledgement that it included is still pending.
            self.reply = self.reply.map(|_| Reply::Ack);
        }
        self.paused = false;
        match self.execute(core, shared, datagram) {
            Ok(()) if self.reorder.is_some() => self.catch_up(core, shared),
            Ok(()) => _ = self.nak_trimmed(core, shared),
            Err(refusal) => self.refuse(core, shared, psn, refusal),
        }
        Verdict::Handled
    }

    /// Handles a missing packet: sends one NAK per gap, then no further reply (IBTA 9.7.5.1.4).
    pub(super) fn gap(&mut self, core: &mut QpCore, shared: &mut Shared) -> Verdict {
        count!(shared, core, out_of_sequence);
        if self.nak_sent {
            return Verdict::Dropped(DropReason::OutOfSequence);
        }
        self.nak_sent = true;
        self.forget_reports();
        self.reply = Some(Reply::SequenceNak);
        Verdict::Handled
    }

    /// Handles a request that was already executed (IBTA 9.7.5.1.3).
    fn duplicate(&mut self, core: &mut QpCore, shared: &mut Shared, datagram: &Datagram<'_>) -> Verdict {
        count!(shared, core, duplicate_request);
        let psn = datagram.bth().psn;
        match datagram.info().operation {
            Operation::Send | Operation::Write => {
                // Only on request, as for new packets: Soft-RoCE permanently loses a request that is
                // acknowledged during its retransmission. Selective repeat expects an acknowledgement of each
                // packet.
                if datagram.bth().ack_req || self.reorder.is_some() {
                    self.owe_acknowledgement(core, shared);
                }
                Verdict::Handled
            }
            Operation::ReadRequest => self.duplicate_read(core, shared, psn, datagram.reth()),
            Operation::CompareSwap | Operation::FetchAdd | Operation::AtomicWrite | Operation::Flush => {
                let Some(resource) = self.resources.find(psn) else {
                    return Verdict::Dropped(DropReason::DuplicateUnanswerable);
                };
                if matches!(resource.answer, Answer::Read { .. }) {
                    return Verdict::Dropped(DropReason::DuplicateUnanswerable);
                }
                // The result was stored; the operation is never executed again.
                self.resources.send_again(psn, Sending { psn, va: 0, left: 0, begun: false });
                Verdict::Handled
            }
            Operation::ReadResponse
            | Operation::Acknowledge
            | Operation::AtomicAcknowledge
            | Operation::Resync
            | Operation::Cnp => Verdict::Dropped(DropReason::DuplicateUnanswerable),
        }
    }

    /// Handles a repeated READ, from its start or a later packet. Its range must lie within the range of the
    /// first request, under the same key.
    fn duplicate_read(
        &mut self,
        core: &mut QpCore,
        shared: &mut Shared,
        psn: Psn,
        reth: Option<Reth>,
    ) -> Verdict {
        const UNANSWERABLE: Verdict = Verdict::Dropped(DropReason::DuplicateUnanswerable);
        let unsent = self.resources.unsent().unwrap_or(psn);
        let (Some(resource), Some(reth)) = (self.resources.find(psn), reth) else { return UNANSWERABLE };
        let Answer::Read { va, rkey, len, .. } = resource.answer else { return UNANSWERABLE };
        let index = resource.first_psn.distance_to(psn);
        let skipped = u64::from(index) * core.mtu() as u64;
        let inside = u64::from(len).checked_sub(skipped).is_some_and(|left| u64::from(reth.dma_len) <= left);
        if !inside || reth.va != va.wrapping_add(skipped) || reth.rkey != rkey.0 {
            return UNANSWERABLE;
        }
        let again = Sending { psn, va: reth.va, left: reth.dma_len, begun: false };
        let repeated = resource.repeated_from(psn, unsent, shared.now, self.losses);
        // The response is the next to be sent, and has not left since the last request: the rate is too low.
        let is_next = self.resources.next().and_then(|next| next.sending).is_some_and(|it| it.psn == psn);
        let is_next = is_next && self.reorder.is_none();
        if let Some(reorder) = &self.reorder {
            // The peer asks for what it misses, which may be less than what is still to be sent.
            if !self.resources.send_part(again, core.mtu() as u32, reorder.cap()) {
                return UNANSWERABLE;
            }
        } else {
            self.resources.send_again(psn, again);
        }
        match repeated {
            // After an RNR NAK the peer repeats all unanswered requests, although nothing was lost.
            Repeated::Lost(loss) if !self.paused => {
                self.losses = self.losses.wrapping_add(1);
                core.lost_after(shared, &loss);
            }
            Repeated::Known | Repeated::Unsent if is_next => core.too_slow(shared.now),
            Repeated::Lost(_) | Repeated::OfFew | Repeated::Known | Repeated::Unsent => {}
        }
        Verdict::Handled
    }

    /// Executes the expected packet. After `Refusal::Rnr` nothing has changed except for the payload of
    /// earlier packets of the message, and the packet can be executed again. After another error the queue
    /// pair fails.
    pub(super) fn execute(
        &mut self,
        core: &mut QpCore,
        shared: &mut Shared,
        datagram: &Datagram<'_>,
    ) -> Result<(), Refusal> {
        let info = datagram.info();
        let continues = matches!(info.position, Position::Middle | Position::Last);
        let fits = match self.inbound {
            Inbound::Idle => !continues,
            Inbound::Send(_) => continues && info.operation == Operation::Send,
            Inbound::Write(_) => continues && info.operation == Operation::Write,
        };
        if !fits || !core.lets_in(info) {
            let problem = if fits { Invalid::NotAllowed } else { Invalid::Order };
            return Err(Refusal::invalid(datagram, problem));
        }
        if core.xrcd.is_some() {
            let begins = matches!(self.inbound, Inbound::Idle);
            let chosen = core.choose_srq(shared, datagram, begins);
            chosen.ok_or_else(|| Refusal::invalid(datagram, Invalid::SharedReceiveQueue))?;
        }
        match info.operation {
            Operation::Send => self.execute_send(core, shared, datagram)?,
            Operation::Write => self.execute_write(core, shared, datagram)?,
            Operation::ReadRequest => return self.execute_read(core, shared, datagram),
            Operation::CompareSwap => {
                return self.execute_atomic(core, shared, datagram, |memory, offset, eth| {
                    memory.compare_swap(offset, eth.compare, eth.swap_or_add)
                });
            }
            Operation::FetchAdd => {
                return self.execute_atomic(core, shared, datagram, |memory, offset, eth| {
                    memory.fetch_add(offset, eth.swap_or_add)
                });
            }
            Operation::AtomicWrite => return self.execute_atomic_write(core, shared, datagram),
            Operation::Flush => return self.execute_flush(core, shared, datagram),
            Operation::ReadResponse
            | Operation::Acknowledge
            | Operation::AtomicAcknowledge
            | Operation::Resync
            | Operation::Cnp => return Err(Refusal::invalid(datagram, Invalid::NotRequest)),
        }
        // The packet has the expected PSN.
        let psn = datagram.bth().psn;
        self.acknowledgeable = Some((psn, self.msn));
        self.epsn = psn.next();
        if datagram.bth().ack_req {
            self.owe_acknowledgement(core, shared);
        }
        Ok(())
    }

    fn execute_send(
        &mut self,
        core: &mut QpCore,
        shared: &mut Shared,
        datagram: &Datagram<'_>,
    ) -> Result<(), Refusal> {
        // Check first, so that a malformed packet does not consume a receive.
        check_length(datagram, core.mtu()).map_err(|error| Refusal::place(core, shared, datagram, error))?;
        if matches!(self.inbound, Inbound::Idle) {
            let receive = core.take_receive(shared).ok_or(Refusal::Rnr)?;
            self.inbound = Inbound::send(receive);
        }
        let placed = self.inbound.place(core, shared, datagram);
        let placed = placed.map_err(|error| Refusal::place(core, shared, datagram, error))?;
        let Some(ended) = placed else { return Ok(()) };
        self.msn = self.msn.next();
        let mut wc = ended.completion(core, datagram);
        if let Some(ieth) = datagram.ieth() {
            let rkey = RKey(ieth.rkey);
            if let Err(error) = shared.keys.invalidate(rkey, core.pd, core.number) {
                return Err(Refusal::Invalidate { wr_id: wc.wr_id, rkey, error });
            }
            wc.flags |= crate::completion::WcFlags::WITH_INV;
            wc.invalidated = rkey;
        }
        core.complete_recv(shared, wc, datagram.bth().solicited);
        Ok(())
    }

    fn execute_write(
        &mut self,
        core: &mut QpCore,
        shared: &mut Shared,
        datagram: &Datagram<'_>,
    ) -> Result<(), Refusal> {
        check_length(datagram, core.mtu()).map_err(|error| Refusal::place(core, shared, datagram, error))?;
        let reth = datagram.reth();
        if let Some(reth) = &reth {
            if reth.dma_len > MAX_MESSAGE {
                return Err(Refusal::invalid(datagram, Invalid::TooLong));
            }
            // Constructed in place: copying a recently written value stalls on the writes.
            self.inbound = Inbound::write(core, shared, reth)
                .map_err(|error| Refusal::place(core, shared, datagram, error))?;
        }
        if let Err(error) = self.inbound.check_place(datagram) {
            if reth.is_some() {
                self.inbound = Inbound::Idle;
            }
            return Err(Refusal::place(core, shared, datagram, error));
        }
        // Immediate data needs a receive; without one the packet is not executed.
        let receive = match datagram.imm_dt() {
            Some(_) => match core.take_receive(shared) {
                Some(receive) => Some(receive),
                None => {
                    if reth.is_some() {
                        self.inbound = Inbound::Idle;
                    }
                    return Err(Refusal::Rnr);
                }
            },
            None => None,
        };
        if reth.is_some() {
            count!(shared, core, rx_write_requests);
        }
        let placed = self.inbound.place(core, shared, datagram);
        let ended = match placed {
            Ok(ended) => ended,
            Err(error) => {
                let refusal = Refusal::place(core, shared, datagram, error);
                if let (Some(receive), Refusal::Nak(_, rule, _)) = (receive, &refusal) {
                    core.fail_recv(shared, receive.wr_id, WcStatus::LocalAccessError, *rule);
                    // The completion reports the error, so no event is needed.
                    core.fail(Failure::Reported);
                }
                return Err(refusal);
            }
        };
        if let Some(ended) = ended {
            self.msn = self.msn.next();
            if let Some(receive) = receive {
                let mut wc = ended.completion(core, datagram);
                wc.wr_id = receive.wr_id;
                core.complete_recv(shared, wc, datagram.bth().solicited);
            }
        }
        Ok(())
    }

    fn execute_read(
        &mut self,
        core: &mut QpCore,
        shared: &mut Shared,
        datagram: &Datagram<'_>,
    ) -> Result<(), Refusal> {
        let reth = datagram.reth().ok_or_else(|| Refusal::invalid(datagram, Invalid::Header))?;
        if reth.dma_len > MAX_MESSAGE {
            return Err(Refusal::invalid(datagram, Invalid::TooLong));
        }
        self.need_room(datagram)?;
        let mut binding = 0;
        if reth.dma_len > 0 {
            let range = (reth.va, u64::from(reth.dma_len));
            binding = shared
                .keys
                .resolve_remote(RKey(reth.rkey), core.pd, core.number, range, Access::REMOTE_READ)
                .map_err(|error| Refusal::access(datagram, error, (reth.rkey, reth.va, reth.dma_len)))?
                .binding();
        }
        count!(shared, core, rx_read_requests);
        let psns = packets(reth.dma_len, core.mtu());
        let psn = self.epsn;
        let rkey = RKey(reth.rkey);
        let answer = Answer::Read { pd: core.pd, va: reth.va, rkey, len: reth.dma_len, binding };
        self.keep(answer, psns, Sending { psn, va: reth.va, left: reth.dma_len, begun: false });
        Ok(())
    }

    fn execute_atomic(
        &mut self,
        core: &mut QpCore,
        shared: &mut Shared,
        datagram: &Datagram<'_>,
        apply: impl Fn(&dyn Memory, usize, &AtomicEth) -> Result<u64, OutOfBounds>,
    ) -> Result<(), Refusal> {
        let eth: Option<AtomicEth> = datagram.atomic_eth();
        let eth = eth.ok_or_else(|| Refusal::invalid(datagram, Invalid::Header))?;
        if !eth.va.is_multiple_of(8) {
            return Err(Refusal::invalid(datagram, Invalid::Misaligned));
        }
        self.need_room(datagram)?;
        let memory = shared
            .keys
            .resolve_remote(RKey(eth.rkey), core.pd, core.number, (eth.va, 8), Access::REMOTE_ATOMIC)
            .and_then(|resolved| Ok(apply(shared.keys.memory(&resolved)?, resolved.offset, &eth)?));
        let original = memory.map_err(|error| Refusal::access(datagram, error, (eth.rkey, eth.va, 8)))?;
        count!(shared, core, rx_atomic_requests);
        self.keep_single(Answer::Atomic { original });
        Ok(())
    }

    fn execute_atomic_write(
        &mut self,
        core: &mut QpCore,
        shared: &mut Shared,
        datagram: &Datagram<'_>,
    ) -> Result<(), Refusal> {
        let reth = datagram.reth().ok_or_else(|| Refusal::invalid(datagram, Invalid::Header))?;
        let (head, tail) = datagram.payload();
        let mut bytes = [0; 8];
        if head.len() + tail.len() != 8 || reth.dma_len != 8 || !reth.va.is_multiple_of(8) {
            let is_aligned = reth.va.is_multiple_of(8);
            let problem = if is_aligned { Invalid::Length } else { Invalid::Misaligned };
            return Err(Refusal::invalid(datagram, problem));
        }
        for (target, byte) in bytes.iter_mut().zip(head.iter().chain(tail)) {
            *target = *byte;
        }
        self.need_room(datagram)?;
        shared
            .keys
            .resolve_remote(RKey(reth.rkey), core.pd, core.number, (reth.va, 8), Access::REMOTE_WRITE)
            .and_then(|resolved| Ok(shared.keys.memory(&resolved)?.store(resolved.offset, bytes)?))
            .map_err(|error| Refusal::access(datagram, error, (reth.rkey, reth.va, 8)))?;
        count!(shared, core, rx_atomic_requests);
        self.keep_single(Answer::Empty);
        Ok(())
    }

    fn execute_flush(
        &mut self,
        core: &mut QpCore,
        shared: &mut Shared,
        datagram: &Datagram<'_>,
    ) -> Result<(), Refusal> {
        let (Some(feth), Some(reth)) = (datagram.feth(), datagram.reth()) else {
            return Err(Refusal::invalid(datagram, Invalid::Header));
        };
        let mut need = Access::empty();
        if feth.global_visibility {
            need |= Access::FLUSH_GLOBAL;
        }
        if feth.persistence {
            need |= Access::FLUSH_PERSISTENT;
        }
        let whole = match feth.selectivity {
            FlushSelectivity::Range => false,
            FlushSelectivity::WholeRegion => true,
            FlushSelectivity::Reserved(_) => return Err(Refusal::invalid(datagram, Invalid::Flush)),
        };
        if need.is_empty() || !core.attr.access.contains(need) {
            return Err(Refusal::invalid(datagram, Invalid::Flush));
        }
        self.need_room(datagram)?;
        shared
            .keys
            .flush(RKey(reth.rkey), core.pd, core.number, (reth.va, reth.dma_len), whole, need)
            .map_err(|error| Refusal::access(datagram, error, (reth.rkey, reth.va, reth.dma_len)))?;
        self.keep_single(Answer::Empty);
        Ok(())
    }

    /// Checks that one more READ or atomic can be kept until it is answered.
    fn need_room(&self, datagram: &Datagram<'_>) -> Result<(), Refusal> {
        if self.resources.has_room() {
            return Ok(());
        }
        Err(Refusal::invalid(datagram, Invalid::TooManyOutstanding))
    }

    fn keep_single(&mut self, answer: Answer) {
        let psn = self.epsn;
        self.keep(answer, 1, Sending { psn, va: 0, left: 0, begun: false });
    }

    /// Stores a request whose answer is more than an acknowledgement. The answer also acknowledges older
    /// packets.
    fn keep(&mut self, answer: Answer, psns: u32, sending: Sending) {
        self.msn = self.msn.next();
        let (first_psn, msn) = (self.epsn, self.msn);
        self.resources.push(Resource {
            first_psn,
            psns,
            msn,
            answer,
            sending: Some(sending),
            answered: false,
            train: None,
        });
        self.epsn = self.epsn.add(psns);
        if self.reply == Some(Reply::Ack) {
            self.reply = None;
        }
        // The peer would take a PSN that is half of all PSNs old for one that it sends soon.
        let expected = self.epsn;
        self.acknowledgeable = self.acknowledgeable.filter(|(newest, _)| newest.before(expected));
    }

    pub(super) fn owe_acknowledgement(&mut self, core: &mut QpCore, shared: &mut Shared) {
        if self.reply == Some(Reply::Ack) {
            count!(shared, core, acks_coalesced);
        } else if self.reply.is_none() || !self.nak_sent {
            self.reply = Some(Reply::Ack);
        }
        // Otherwise a NAK is pending, which acknowledges everything before it.
    }
}
