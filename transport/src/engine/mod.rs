//! The engine: all queue pairs of one device, and the five kinds of call that drive them.

mod domains;
mod objects;
mod posting;
mod qp;
mod queue_pairs;
mod receive;
mod telemetry;
mod transmit;
mod trimmed;
mod twins;
mod xrc;

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::net::IpAddr;
use core::time::Duration;

use rand_chacha::ChaCha12Rng;
use rand_core::{Rng, SeedableRng};
use roce_packet::{Psn, Qpn};
use slab::Slab;

pub use objects::{CqError, DestroyError, PdError, SrqAttributes, SrqError};
pub use xrc::XrcdError;

use crate::completion::{Ends, Notify, Occupancy, Wc};
use crate::config::EngineConfig;
use crate::congestion::{LineLimit, Notifier, Observation};
use crate::counters::Counters;
use crate::event::{AsyncEvent, Event, EventQueue};
use crate::ids::{CqId, MOST_QUEUES, SrqId};
use crate::memory::KeyTable;
use crate::number_map::NumberMap;
use crate::parameters::Parameters as _;
use crate::qp::{Failure, QpAttributes, QpState, QpType};
use crate::segment::KnownPath;
use crate::shared::Shared;
use crate::time::Instant;
use crate::timer::{Timer, TimerQueue};
use domains::Domains;
use qp::{Halves, Qp};
use queue_pairs::{KEPT_FREE, numbers_of};

/// All queue pairs of one device.
///
/// It owns no clock, socket, thread or randomness: the caller passes the time with every call,
/// datagrams in and buffers for datagrams out.
///
/// # The contract
///
/// 1. Make one input: [`handle_datagram`](Self::handle_datagram), [`handle_timeout`](Self::handle_timeout), or a
///    verb such as [`post_send`](Self::post_send). Several datagrams of one burst count as one input.
/// 2. Call [`poll_transmit`](Self::poll_transmit) until it gives `None`, and
///    [`poll_event`](Self::poll_event) until it gives `None`. A caller may stop sending after a number of packets, receive,
///    and continue: [`may_transmit`](Self::may_transmit) says whether more waits.
/// 3. Read [`poll_timeout`](Self::poll_timeout), and call `handle_timeout` then or at any time before.
///
/// Nothing is sent from inside step 1. `now` never goes backward; an earlier one is taken as the latest
/// seen. No call panics, whatever a peer sends.
#[derive(Debug)]
pub struct Engine {
    shared: Shared,
    qps: Slab<Box<Qp>>,
    /// The place in `qps` of every number: entered and removed together with its queue pair, so the place is occupied.
    numbers: NumberMap,
    pds: Domains,
    /// Queue pairs that may have something to send.
    ready: VecDeque<usize>,
    /// How many packets the first of them may still send before the next has its turn.
    quantum_left: u32,
    timers: TimerQueue,
    /// The last call of [`Self::handle_timeout`].
    looked: Instant,
    /// Notifications of congestion that are to leave.
    notifier: Notifier,
    /// The limit of the link, if the settings have one.
    line_limit: Option<LineLimit>,
    /// The path that the last datagram came on.
    arrival: Option<KnownPath>,
    /// Queue pairs that joined multicast groups.
    groups: Vec<(IpAddr, Qpn)>,
    rng: ChaCha12Rng,
    /// Numbers of the queue pairs removed last, oldest first.
    retired: VecDeque<u32>,
}

/// The most completions that one queue can hold, whatever the settings say: a gigabyte.
const MOST_CQE: usize = 1 << 24;

/// Nobody sleeps for so long on purpose: callers wake at least twice in this time.
const CERTAIN_PAUSE: Duration = Duration::from_secs(1);

impl Engine {
    /// An engine without any objects.
    #[must_use]
    pub fn new(mut config: EngineConfig) -> Self {
        config.max_outstanding_packets = config.max_outstanding_packets.clamp(1, (1 << 23) - 1);
        config.max_cqe = config.max_cqe.min(MOST_CQE);
        config.max_qp = config.max_qp.min(numbers_of(config.process_slot) - KEPT_FREE);
        config.max_cq = config.max_cq.min(MOST_QUEUES);
        config.max_srq = config.max_srq.min(MOST_QUEUES);
        config.notification = config.notification.in_range();
        let mut rng = ChaCha12Rng::from_seed(config.seed);
        let first_variant = rng.next_u32().to_le_bytes()[0];
        let line_limit = LineLimit::new(&config);
        Self {
            shared: Shared {
                now: Instant::ZERO,
                paused: 0,
                keys: KeyTable::new(config.max_mr.min(1 << 20), first_variant),
                cqs: Slab::new(),
                srqs: Slab::new(),
                srq_numbers: NumberMap::new(),
                xrcds: Slab::new(),
                events: EventQueue::new(config.max_events),
                counters: Counters::default(),
                telemetry_in: None,
                telemetry_out: None,
                answer: None,
                config,
            },
            qps: Slab::new(),
            numbers: NumberMap::new(),
            pds: Domains::default(),
            ready: VecDeque::new(),
            quantum_left: 0,
            timers: TimerQueue::default(),
            looked: Instant::ZERO,
            notifier: Notifier::default(),
            line_limit,
            arrival: None,
            groups: Vec::new(),
            rng,
            retired: VecDeque::new(),
        }
    }

    /// The settings.
    #[must_use]
    pub fn config(&self) -> &EngineConfig {
        &self.shared.config
    }

    /// Time never goes backward here, whatever the caller's clock does.
    #[inline]
    fn set_now(&mut self, now: Instant) {
        self.shared.now = self.shared.now.max(now);
    }

    /// Handles every expired deadline. An early call has no effect.
    #[inline]
    pub fn handle_timeout(&mut self, now: Instant) {
        self.set_now(now);
        self.looked = self.shared.now;
        if self.timers.next().is_some_and(|deadline| deadline <= self.shared.now) {
            self.handle_expired();
        }
    }

    /// Notes that nobody looked at the device for `pause` before `now`, for example because this process was stopped or had no processor.
    ///
    /// Timers of retransmission stand still for this time: a peer is given time to answer while this side can see the answer. Call it
    /// before the datagrams that have arrived are handed over, and [`handle_timeout`](Self::handle_timeout) after all of them.
    ///
    /// Pauses of less than a second count for seven eighths of the time since the last call of `handle_timeout`. So a caller that reports a pause although it
    /// only looks rarely still notices the loss of a peer, after eight times the usual time.
    pub fn handle_pause(&mut self, now: Instant, pause: Duration) {
        self.set_now(now);
        let since = self.shared.now.since(self.looked);
        let most = if pause < CERTAIN_PAUSE { since - since / 8 } else { since };
        let pause = pause.min(most).as_nanos() as u64;
        if pause > 0 {
            self.shared.paused = self.shared.paused.saturating_add(pause);
            self.shared.counters.timer_pauses += 1;
        }
    }

    fn handle_expired(&mut self) {
        let (now, watched) = (self.shared.now, self.shared.watched());
        while let Some(index) = self.timers.pop_due(now) {
            let Some(qp) = self.qps.get_mut(index) else { continue };
            // It is enough to look at the queue pair again.
            qp.core.deadlines.take_due(Timer::Pace, now);
            if let Halves::Rc(requester, _) = &mut qp.halves {
                if qp.core.deadlines.take_due(Timer::Rnr, now) {
                    requester.on_rnr_timer();
                }
                if qp.core.deadlines.take_due(Timer::Retry, watched) {
                    requester.on_retry_timer(&mut qp.core, &mut self.shared);
                }
                if qp.core.deadlines.take_due(Timer::Probe, watched) {
                    requester.on_probe_timer(&mut qp.core, &mut self.shared);
                }
            }
            self.settle(index);
        }
    }

    /// When [`handle_timeout`](Self::handle_timeout) is to be called next. May be earlier than anything that
    /// will happen then.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        // A notification that is due and has not left waits for the device or the link, not for its own time.
        let notification = self.notifier.next().filter(|at| *at > self.shared.now);
        let waits = !self.ready.is_empty() || self.notifier.next().is_some();
        let link = self.line_limit.as_ref().filter(|_| waits).and_then(LineLimit::free_at);
        // In numbers: an optimized comparison of options reads the value of those that have none, which memcheck reports.
        let nanos = |time: Option<Instant>| time.map_or(u64::MAX, Instant::as_nanos);
        let earliest = nanos(self.timers.next()).min(nanos(notification)).min(nanos(link));
        (earliest != u64::MAX).then(|| Instant::from_nanos(earliest))
    }

    /// What the congestion control of a queue pair shows at `now`; `None` where there is none.
    #[must_use]
    pub fn congestion(&self, now: Instant, qpn: Qpn) -> Option<Observation> {
        Some(self.qp(qpn)?.core.control.as_ref()?.observe(self.shared.now.max(now)))
    }

    /// Events that were lost because more than [`EngineConfig::max_events`] waited to be fetched.
    #[must_use]
    pub fn events_lost(&self) -> u64 {
        self.shared.events.lost
    }

    /// The next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.shared.events.pop()
    }

    /// Moves completions out, oldest first, up to the length of `out`.
    ///
    /// # Errors
    ///
    /// When there is no such completion queue, or when it overflowed and lost completions.
    #[inline]
    pub fn poll_cq(&mut self, cq: CqId, out: &mut [Wc]) -> Result<usize, CqError> {
        let queue = self.shared.cqs.get_mut(cq.index()).ok_or(CqError::Unknown)?;
        let count = queue.poll(out);
        if count == 0 && queue.overflowed() {
            return Err(CqError::Overflowed { capacity: queue.capacity() });
        }
        Ok(count)
    }

    /// Whether a completion queue has something to give, to be read without the engine; `None` where there is no such queue.
    #[must_use]
    pub fn cq_occupancy(&self, cq: CqId) -> Option<Occupancy> {
        Some(self.shared.cqs.get(cq.index())?.occupancy.clone())
    }

    /// Asks for one event at the next completion. A completion that is already in the queue raises none:
    /// ask first, then poll once more.
    ///
    /// # Errors
    ///
    /// When there is no such completion queue.
    pub fn request_notification(&mut self, cq: CqId, notify: Notify) -> Result<(), CqError> {
        self.shared.cqs.get_mut(cq.index()).ok_or(CqError::Unknown)?.arm(notify);
        Ok(())
    }

    /// The counters of the whole device.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.shared.counters
    }

    /// The counters of one queue pair.
    #[must_use]
    pub fn qp_counters(&self, qpn: Qpn) -> Option<&Counters> {
        self.qp(qpn).map(|qp| &qp.core.counters)
    }

    /// The attributes in force, with the PSNs as they are now.
    #[must_use]
    pub fn query_qp(&self, qpn: Qpn) -> Option<QpAttributes> {
        let qp = self.qp(qpn)?;
        let mut attr = qp.core.attr;
        (attr.sq_psn, attr.rq_psn) = match &qp.halves {
            Halves::Rc(requester, responder) => (requester.next_psn(), responder.expected_psn()),
            Halves::Uc(requester, responder) => (requester.next_psn(), responder.expected_psn()),
            Halves::Ud(requester, _) => (requester.next_psn(), attr.rq_psn),
        };
        Some(attr)
    }

    /// The addresses of the two ends of a connection, for texts; `None` for UD, and for a queue pair that is not connected.
    #[must_use]
    pub fn ends(&self, qpn: Qpn) -> Option<Ends> {
        let core = &self.qp(qpn)?.core;
        let path = core.attr.path.filter(|_| core.qp_type != QpType::Ud)?;
        Some(Ends { local: path.source, remote: path.destination })
    }

    /// The oldest PSN of an RC queue pair that its peer has not answered: everything before it is acknowledged, and the responses
    /// to READs before it have arrived.
    #[must_use]
    pub fn unanswered_psn(&self, qpn: Qpn) -> Option<Psn> {
        match &self.qp(qpn)?.halves {
            Halves::Rc(requester, _) => Some(requester.oldest_unanswered()),
            Halves::Uc(..) | Halves::Ud(..) => None,
        }
    }

    /// Whether a packet has come for this queue pair since RESET that only its peer can have sent: with the expected PSN, or
    /// the answer to a packet in flight. A notification of congestion, a duplicate or a packet behind a gap shows nothing,
    /// because anyone who knows the addresses and the queue pair number can send one.
    #[must_use]
    pub fn has_heard_peer(&self, qpn: Qpn) -> bool {
        self.qp(qpn).is_some_and(|qp| qp.core.has_heard_peer)
    }

    /// The transport of a queue pair.
    #[must_use]
    pub fn qp_type(&self, qpn: Qpn) -> Option<QpType> {
        self.qp(qpn).map(|qp| qp.core.qp_type)
    }

    /// The numbers of all queue pairs.
    pub fn qp_numbers(&self) -> impl Iterator<Item = Qpn> + '_ {
        self.qps.iter().map(|(_, qp)| qp.core.number)
    }

    /// Work requests in the send queue and in the receive queue that have not completed.
    #[must_use]
    pub fn queue_depths(&self, qpn: Qpn) -> Option<(usize, usize)> {
        let qp = self.qp(qpn)?;
        Some((qp.halves.sq().len(), qp.core.rq.len()))
    }

    fn qp(&self, qpn: Qpn) -> Option<&Qp> {
        self.qps.get(self.numbers.get(qpn.get())?).map(Box::as_ref)
    }

    /// Puts a queue pair into the ready queue, once.
    #[inline]
    fn schedule(&mut self, index: usize) {
        if let Some(qp) = self.qps.get_mut(index)
            && !qp.scheduled
        {
            qp.scheduled = true;
            self.ready.push_back(index);
        }
    }

    /// After a queue pair was worked on: carries out a failure that one of its halves met, lets it send,
    /// and sees to its deadlines.
    #[inline]
    fn settle(&mut self, index: usize) {
        let Some(mut qp) = self.qps.get_mut(index) else { return };
        if qp.core.failure.is_some() {
            self.carry_out_failure(index);
            let Some(again) = self.qps.get_mut(index) else { return };
            qp = again;
        }
        if !qp.scheduled {
            qp.scheduled = true;
            self.ready.push_back(index);
        }
        self.timers.set(index, qp.core.deadlines.next(self.shared.paused));
    }

    fn carry_out_failure(&mut self, index: usize) {
        let Some(qp) = self.qps.get_mut(index) else { return };
        let Some(failure) = qp.core.failure.take() else { return };
        match failure {
            Failure::SendQueue
                if qp.core.attr.state == QpState::Rts || qp.core.attr.state == QpState::Sqd =>
            {
                qp.core.attr.state = QpState::Sqe;
                qp.flush_sends(&mut self.shared);
            }
            Failure::SendQueue => qp.flush_sends(&mut self.shared),
            Failure::Reported => qp.enter_error(&mut self.shared),
            Failure::Event(event) => {
                qp.enter_error(&mut self.shared);
                self.shared.events.push_async(event);
            }
        }
        // Flushing may have overflowed a completion queue, which asks for the state that it is in now.
        if let Some(qp) = self.qps.get_mut(index) {
            qp.core.failure = None;
        }
    }

    /// What a shared receive queue is like now.
    #[must_use]
    pub fn query_srq(&self, srq: SrqId) -> Option<SrqAttributes> {
        self.shared.srqs.get(srq.index()).map(|srq| SrqAttributes {
            max_wr: srq.queue.capacity(),
            max_sge: srq.queue.max_elements(),
            limit: srq.limit,
            posted: srq.queue.len(),
        })
    }
}

impl Qp {
    /// Moves to the error state and flushes everything (IBTA 10.3.1, 10.8.1).
    pub(crate) fn enter_error(&mut self, shared: &mut Shared) {
        if self.core.attr.state == QpState::Err {
            self.flush_sends(shared);
            return;
        }
        let (qpn, from) = (self.core.number.get(), self.core.attr.state.name());
        let _error = tracing::debug_span!("error", qpn, from).entered();
        tracing::debug!(qpn, from, "to ERR");
        self.core.attr.state = QpState::Err;
        self.core.deadlines.clear();
        self.core.drain_pending = false;
        self.flush_sends(shared);
        self.flush_receives(shared);
        if self.core.srq.is_some() {
            shared.events.push_async(AsyncEvent::LastWqeReached(self.core.number));
        }
    }

    /// Completes every send request: finished ones as they ended, the others as flushed.
    pub(crate) fn flush_sends(&mut self, shared: &mut Shared) {
        while let Some(wqe) = self.halves.sq_mut().pop() {
            use crate::completion::{Cause, WcStatus};
            if wqe.progress == crate::sq::Progress::Done {
                self.core.complete_send(shared, &wqe);
            } else {
                self.core.fail_send(shared, &wqe, WcStatus::WrFlushError, Cause::Flushed);
            }
        }
    }

    pub(crate) fn flush_receives(&mut self, shared: &mut Shared) {
        use crate::completion::{Cause, WcStatus};
        let in_use = self.halves.take_receive();
        let (status, cause) = (WcStatus::WrFlushError, Cause::Flushed);
        if let Some(receive) = in_use {
            self.core.fail_recv(shared, receive.wr_id, status, cause);
        }
        while let Some(wr_id) = self.core.rq.skip() {
            self.core.fail_recv(shared, wr_id, status, cause);
        }
    }
}
