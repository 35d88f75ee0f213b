//! The engine: all queue pairs of one device, and the five calls that move their packets.

mod domains;
mod error;
mod objects;
mod posting;
mod qp;
mod queue_pairs;
mod receive;
mod telemetry;
mod timeouts;
mod transmit;
mod trimmed;
mod twins;
mod xrc;

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::net::IpAddr;

use rand_chacha::ChaCha12Rng;
use rand_core::{Rng, SeedableRng};
use roce_packet::{Psn, Qpn};
use slab::Slab;

pub use error::{CqError, DestroyError, PdError, SrqAttributes, SrqError};
pub use xrc::XrcdError;

use crate::Instant;
use crate::completion::{Ends, Notify, Occupancy, Wc};
use crate::config::EngineConfig;
use crate::congestion::{LineLimit, Notifier, Observation, ReadPace};
use crate::counters::Counters;
use crate::event::{AsyncEvent, Event, EventQueue};
use crate::ids::{CqId, MOST_QUEUES, SrqId};
use crate::memory::KeyTable;
use crate::number_map::NumberMap;
use crate::qp::{Failure, QpAttributes, QpState, QpType};
use crate::rc::RcState;
use crate::reason::Reason;
use crate::segment::KnownPath;
use crate::shared::Shared;
use crate::slot::ProcessSlot;
use crate::timer::{Timer, TimerQueue};
use domains::Domains;
use qp::{Halves, Qp};
use roce_congestion::parameters::Parameters as _;

/// Numbers that stay unused, so that a random draw soon finds a free one: 65,000 of 65,536 can be used.
const KEPT_FREE: usize = 536;

/// Returns how many QP numbers begin with this slot.
const fn numbers_of(slot: ProcessSlot) -> usize {
    1 << slot.bits_below()
}

/// All queue pairs of one device.
///
/// The engine owns no clock, socket, thread or random source: the caller passes the time, received datagrams
/// and transmit buffers with each call.
///
/// # The contract
///
/// Five calls move packets: [`handle`](Self::handle) and [`handle_timeout`](Self::handle_timeout) in,
/// [`poll_transmit`](Self::poll_transmit) and [`poll_timeout`](Self::poll_timeout) out, and the question
/// [`pending`](Self::pending). All other calls are verbs and queries.
///
/// 1. Make one input: [`handle`](Self::handle), [`handle_timeout`](Self::handle_timeout), or a verb such as
///    [`post_send`](Self::post_send). Several datagrams of one burst count as one input.
/// 2. Call [`poll_transmit`](Self::poll_transmit) and [`poll_event`](Self::poll_event) until each returns
///    `None`. A caller may stop sending after a number of packets, receive, and continue:
///    [`pending`](Self::pending) tells whether more packets may be waiting.
/// 3. Read [`poll_timeout`](Self::poll_timeout), and call `handle_timeout` at that time or earlier.
///
/// Step 1 never sends anything. `now` never goes backward; an earlier value is replaced by the latest one
/// seen. No call panics, whatever a peer sends.
#[derive(Debug)]
pub struct Engine {
    shared: Shared,
    qps: Slab<Box<Qp>>,
    /// Index into `qps` by QP number. An entry exists as long as its queue pair, so the index is always
    /// valid.
    numbers: NumberMap,
    pds: Domains,
    /// Indices of queue pairs that may have something to send.
    ready: VecDeque<usize>,
    /// Packets that the first queue pair in `ready` may still send in its turn.
    quantum_left: u32,
    /// Number of failures of queue pairs that this engine carried out.
    failures: u64,
    timers: TimerQueue,
    /// The time of the last call of [`Self::handle_timeout`].
    looked: Instant,
    /// Pending congestion notifications.
    notifier: Notifier,
    /// The rate limit of the link, if one is configured.
    line_limit: Option<LineLimit>,
    /// The path of the last received datagram.
    arrival: Option<KnownPath>,
    /// Memberships of queue pairs in multicast groups.
    groups: Vec<(IpAddr, Qpn)>,
    rng: ChaCha12Rng,
    /// Numbers of recently destroyed queue pairs, oldest first.
    retired: VecDeque<u32>,
}

/// Length of pieces with a rate of READs and without a length: one READ must not keep all others waiting.
const LONGEST_TURN: u32 = 128;
/// Upper limit of `max_cqe`, whatever the settings say: a queue of this size takes 1 GiB.
const MOST_CQE: usize = 1 << 24;

impl Engine {
    /// Creates an engine without any objects.
    #[must_use]
    pub fn new(mut config: EngineConfig) -> Self {
        config.max_outstanding_packets = config.max_outstanding_packets.clamp(1, (1 << 23) - 1);
        if (config.pulls.is_some() || !config.read_rate.is_unlimited()) && config.max_read_packets == 0 {
            config.max_read_packets = LONGEST_TURN;
        }
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
                reads: ReadPace::new(&config),
                config,
            },
            qps: Slab::new(),
            numbers: NumberMap::new(),
            pds: Domains::default(),
            ready: VecDeque::new(),
            quantum_left: 0,
            failures: 0,
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

    /// Returns the settings.
    #[must_use]
    pub fn config(&self) -> &EngineConfig {
        &self.shared.config
    }

    /// Sets the current time. It never goes backward, whatever the caller's clock does.
    #[inline]
    fn set_now(&mut self, now: Instant) {
        self.shared.now = self.shared.now.max(now);
    }

    /// Returns the congestion control state of a queue pair at `now`, or `None` if the queue pair has no
    /// congestion control.
    #[must_use]
    pub fn congestion(&self, now: Instant, qpn: Qpn) -> Option<Observation> {
        Some(self.qp(qpn)?.core.control.as_ref()?.observe(self.shared.now.max(now)))
    }

    /// Returns the number of events lost because more than [`EngineConfig::max_events`] were queued.
    #[must_use]
    pub fn events_lost(&self) -> u64 {
        self.shared.events.lost
    }

    /// Returns how often queue pairs have failed, other than by a change of their state by the program.
    #[inline]
    #[must_use]
    pub fn failures(&self) -> u64 {
        self.failures
    }

    /// Returns the next event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.shared.events.pop()
    }

    /// Moves completions into `out`, oldest first, up to its length.
    ///
    /// # Errors
    ///
    /// Returns an error if the completion queue does not exist, or if it overflowed and lost completions.
    #[inline]
    pub fn poll_cq(&mut self, cq: CqId, out: &mut [Wc]) -> Result<usize, CqError> {
        let queue = self.shared.cqs.get_mut(cq.index()).ok_or(CqError::Unknown)?;
        let count = queue.poll(out);
        if count == 0 && queue.overflowed() {
            return Err(CqError::Overflowed { capacity: queue.capacity() });
        }
        Ok(count)
    }

    /// Returns a handle that tells, without access to the engine, whether a completion queue has completions.
    /// Returns `None` if the queue does not exist.
    #[must_use]
    pub fn cq_occupancy(&self, cq: CqId) -> Option<Occupancy> {
        Some(self.shared.cqs.get(cq.index())?.occupancy.clone())
    }

    /// Requests one event at the next completion. A completion that is already in the queue raises no event:
    /// request the notification first, then poll once more.
    ///
    /// # Errors
    ///
    /// Returns an error if the completion queue does not exist.
    pub fn request_notification(&mut self, cq: CqId, notify: Notify) -> Result<(), CqError> {
        self.shared.cqs.get_mut(cq.index()).ok_or(CqError::Unknown)?.arm(notify);
        Ok(())
    }

    /// Returns the counters of the whole device.
    #[must_use]
    pub fn counters(&self) -> &Counters {
        &self.shared.counters
    }

    /// Returns the counters of one queue pair.
    #[must_use]
    pub fn qp_counters(&self, qpn: Qpn) -> Option<Counters> {
        self.qp(qpn).map(|qp| qp.core.counters.all())
    }

    /// Returns the number of packets that one queue pair has received.
    #[inline]
    #[must_use]
    pub fn received_packets(&self, qpn: Qpn) -> Option<u64> {
        self.qp(qpn).map(|qp| qp.core.counters.rdma_rx_packets)
    }

    /// Returns the current attributes of a queue pair, with its current PSNs.
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

    /// Returns the addresses of both ends of a connection, for messages. Returns `None` for UD and for a
    /// queue pair that is not connected.
    #[must_use]
    pub fn ends(&self, qpn: Qpn) -> Option<Ends> {
        let core = &self.qp(qpn)?.core;
        let path = core.attr.path.filter(|_| core.qp_type != QpType::Ud)?;
        Some(Ends { local: path.source, remote: path.destination })
    }

    /// Returns the first failure of a queue pair: the check that failed here or the NAK of its peer. Returns
    /// `None` if the queue pair has not failed since RESET, or since it left SQE.
    #[must_use]
    pub fn reason(&self, qpn: Qpn) -> Option<&Reason> {
        self.qp(qpn)?.core.reason.as_deref()
    }

    /// Returns the oldest unanswered PSN of an RC queue pair: all packets before it are acknowledged, and the
    /// responses to READs before it have arrived.
    #[must_use]
    pub fn unanswered_psn(&self, qpn: Qpn) -> Option<Psn> {
        match &self.qp(qpn)?.halves {
            Halves::Rc(requester, _) => Some(requester.oldest_unanswered()),
            Halves::Uc(..) | Halves::Ud(..) => None,
        }
    }

    /// Returns the state of an RC queue pair that is not among its attributes, for tools that show it.
    #[must_use]
    pub fn rc_state(&self, qpn: Qpn) -> Option<RcState> {
        let qp = self.qp(qpn)?;
        let Halves::Rc(requester, responder) = &qp.halves else { return None };
        let retries = [requester.retries_left, requester.rnr_retries_left];
        let timers = [Timer::Retry, Timer::Rnr].map(|timer| qp.core.deadlines.get(timer));
        Some(RcState { msn: responder.msn, retries, timers })
    }

    /// Tells whether this queue pair has received, since RESET, a packet that only its peer can have sent:
    /// one with the expected PSN, or the answer to a packet in flight. A congestion notification, a duplicate
    /// or a packet after a gap proves nothing, because anyone who knows the addresses and the QP number can
    /// send one.
    #[must_use]
    pub fn has_heard_peer(&self, qpn: Qpn) -> bool {
        self.qp(qpn).is_some_and(|qp| qp.core.has_heard_peer)
    }

    /// Returns the transport type of a queue pair.
    #[must_use]
    pub fn qp_type(&self, qpn: Qpn) -> Option<QpType> {
        self.qp(qpn).map(|qp| qp.core.qp_type)
    }

    /// Returns the numbers of all queue pairs.
    pub fn qp_numbers(&self) -> impl Iterator<Item = Qpn> + '_ {
        self.qps.iter().map(|(_, qp)| qp.core.number)
    }

    /// Returns the number of incomplete work requests in the send queue and in the receive queue.
    #[must_use]
    pub fn queue_depths(&self, qpn: Qpn) -> Option<(usize, usize)> {
        let qp = self.qp(qpn)?;
        Some((qp.halves.sq().len(), qp.core.rq.len()))
    }

    fn qp(&self, qpn: Qpn) -> Option<&Qp> {
        self.qps.get(self.numbers.get(qpn.get())?).map(Box::as_ref)
    }

    /// Adds a queue pair to the ready queue unless it is already there.
    #[inline]
    fn schedule(&mut self, index: usize) {
        if let Some(qp) = self.qps.get_mut(index)
            && !qp.scheduled
        {
            qp.scheduled = true;
            self.ready.push_back(index);
        }
    }

    /// Finishes the work on a queue pair: carries out a failure that one of its halves found, schedules it
    /// for sending, and updates its deadlines.
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
        self.failures += 1;
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
        // Flushing may overflow a completion queue, which sets another failure; the state is already reached.
        if let Some(qp) = self.qps.get_mut(index) {
            qp.core.failure = None;
        }
    }

    /// Returns the current attributes of a shared receive queue.
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
    /// Moves to the error state and flushes all work requests (IBTA 10.3.1, 10.8.1).
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

    /// Completes every send request: finished ones with their own status, the others as flushed.
    pub(crate) fn flush_sends(&mut self, shared: &mut Shared) {
        while let Some(wqe) = self.halves.sq_mut().pop() {
            if wqe.progress == crate::sq::Progress::Done {
                self.core.complete_send(shared, &wqe);
            } else {
                self.core.flush_send(shared, &wqe);
            }
        }
    }

    pub(crate) fn flush_receives(&mut self, shared: &mut Shared) {
        if let Some(receive) = self.halves.take_receive() {
            self.core.flush_recv(shared, receive.wr_id);
        }
        while let Some(wr_id) = self.core.rq.skip() {
            self.core.flush_recv(shared, wr_id);
        }
    }
}
