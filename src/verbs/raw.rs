//! Verbs on identifiers, for callers that manage their objects themselves, such as a C library.
//!
//! The handles of [`verbs`](super) keep their dependencies alive, so no object is destroyed too early. The
//! verbs of this module do not. Destroying an object in use fails without an effect, as with libibverbs:
//! [`VerbsError::errno`] is `EBUSY`. Identifiers are valid only in their own context.
//!
//! ```
//! # use roce::verbs::example::ends;
//! # let (near, _far) = ends()?;
//! use roce::verbs::*;
//! let raw = near.context.raw();
//! let pd = raw.allocate_pd()?;
//! let srq = raw.create_srq(pd, 64, 1)?;
//! assert_eq!(raw.deallocate_pd(pd).unwrap_err().errno(), 16, "EBUSY");
//! raw.destroy_srq(srq)?;
//! raw.deallocate_pd(pd)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod connections;
pub mod listing;
mod shared;
mod xrc;

use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};

use roce_packet::{Path, Qpn};
use roce_transport::{
    CqId, DestroyError, Instant, Notify, Occupancy, PdId, ProcessSlot, QpAttr, QpAttributes, QpInit,
    QpOptions, QpState, RecvWr, SendWr, SrqAttributes, SrqId, Wc, with_causes,
};

use super::{CompletionChannel, Context, PathOptions, VerbsError};
use crate::driver::PortHolder;
use crate::runtime::{Runtime, State};

pub use connections::{RawConnect, RawRequest};
pub(super) use shared::bind_window;

/// The verbs of a context on identifiers, see the [module](self).
#[derive(Clone, Copy, Debug)]
pub struct Raw<'a> {
    context: &'a Context,
}

/// A completion queue, with the data that a poll needs without the lock of the context.
#[derive(Debug)]
pub struct RawCq {
    id: CqId,
    occupancy: Occupancy,
    /// Whether a notification was requested, so that the next poll is the last one before the caller sleeps.
    is_last_look: AtomicBool,
}

impl RawCq {
    pub(super) const fn occupancy(&self) -> &Occupancy {
        &self.occupancy
    }

    /// Returns the identifier of the queue in events of its channel.
    #[must_use]
    pub const fn id(&self) -> CqId {
        self.id
    }
}

impl Context {
    /// Returns the verbs on identifiers.
    #[must_use]
    pub const fn raw(&self) -> Raw<'_> {
        Raw { context: self }
    }
}

/// Engines.
impl<'a> Raw<'a> {
    /// Returns engine 0.
    fn runtime(self) -> &'a Runtime {
        self.context.runtime()
    }

    /// Returns the engine that has this completion queue.
    #[inline]
    fn of_cq(self, cq: CqId) -> &'a Runtime {
        self.context.of_slot(cq.slot())
    }

    /// Returns the engine that has this shared receive queue.
    #[inline]
    fn of_srq(self, srq: SrqId) -> &'a Runtime {
        self.context.of_slot(srq.slot())
    }

    /// Returns the engine that has this queue pair.
    #[inline]
    fn of_qp(self, qpn: Qpn) -> &'a Runtime {
        self.context.of_qp(qpn)
    }
}

/// Completion queues.
impl Raw<'_> {
    /// Creates a completion queue of `capacity` entries in engine 0. Its events go to `channel`, if one is
    /// given.
    ///
    /// # Errors
    ///
    /// Fails if the capacity or the number of queues is out of range, or if the channel belongs to another
    /// context.
    pub fn create_cq(
        self,
        capacity: usize,
        channel: Option<&CompletionChannel>,
    ) -> Result<RawCq, VerbsError> {
        self.create_cq_on(0, capacity, channel)
    }

    /// Creates a completion queue in another engine, to which its queue pairs will belong.
    ///
    /// # Errors
    ///
    /// Fails like [`create_cq`](Self::create_cq), or if the context does not have this engine.
    pub fn create_cq_on(
        self,
        engine: usize,
        capacity: usize,
        channel: Option<&CompletionChannel>,
    ) -> Result<RawCq, VerbsError> {
        if channel.is_some_and(|channel| !channel.is_of(self.context)) {
            return Err(VerbsError::OtherContext("the completion channel"));
        }
        let runtime = self.context.engine(engine)?;
        if let Some(channel) = channel {
            channel.note_engine(engine);
        }
        let (id, occupancy) = {
            let engine = &mut runtime.lock().nic.engine;
            let id = engine.create_cq(capacity)?;
            (id, engine.cq_occupancy(id).unwrap_or_default())
        };
        runtime.completion_events.insert(id, channel.map(CompletionChannel::events));
        Ok(RawCq { id, occupancy, is_last_look: AtomicBool::new(false) })
    }

    /// Destroys a completion queue with its entries.
    ///
    /// # Errors
    ///
    /// Fails if queue pairs use the queue.
    pub fn destroy_cq(self, cq: &RawCq) -> Result<(), VerbsError> {
        let runtime = self.of_cq(cq.id);
        runtime.lock().nic.engine.destroy_cq(cq.id)?;
        runtime.completion_events.remove(cq.id);
        Ok(())
    }

    /// Moves completions to `out`, oldest first. Makes progress if the queue has fewer than `out` has room
    /// for. A poll of an empty queue takes no lock while another thread has it. After many polls without a
    /// packet, it checks the device only every 4 µs.
    ///
    /// # Errors
    ///
    /// Fails if the queue overflowed and lost completions, or if the device failed.
    #[inline]
    pub fn poll_cq(self, cq: &RawCq, out: &mut [Wc]) -> Result<usize, VerbsError> {
        self.begin_poll(cq).map_or(Ok(0), |poll| poll.finish(out))
    }

    /// Begins a [`poll_cq`](Self::poll_cq), for callers that allocate room for completions only if there may
    /// be some. Returns `None` if the queue is empty and the poll has no check of the device to make.
    #[inline]
    pub fn begin_poll<'a>(self, cq: &'a RawCq) -> Option<PollInProgress<'a>>
    where
        Self: 'a,
    {
        let runtime = self.of_cq(cq.id);
        // The last poll before a sleep must not keep the background thread away.
        let is_last_look =
            cq.is_last_look.load(Ordering::Relaxed) && cq.is_last_look.swap(false, Ordering::Relaxed);
        let (state, now) = if cq.occupancy.is_occupied() || is_last_look {
            if !is_last_look {
                runtime.note_poll();
            }
            let state = runtime.lock();
            // Read after locking, because the thread may have waited for the lock.
            let now = state.nic.now();
            (state, now)
        } else {
            runtime.begin_check()?
        };
        Some(PollInProgress { runtime, state, cq, now, is_last_look })
    }

    /// Requests one event in the channel, for the next completion or the next solicited one. Completions that
    /// are already in the queue cause no event: request the event, poll once more, then wait.
    ///
    /// # Errors
    ///
    /// Fails if the queue does not exist.
    pub fn request_notification(self, cq: &RawCq, notify: Notify) -> Result<(), VerbsError> {
        let runtime = self.of_cq(cq.id);
        let mut state = runtime.lock();
        state.nic.engine.request_notification(cq.id, notify)?;
        let now = state.nic.now();
        state.transmit_postponed(now);
        drop(state);
        cq.is_last_look.store(true, Ordering::Relaxed);
        runtime.note_end_of_polling();
        Ok(())
    }

    /// Changes the capacity of a queue and keeps its entries.
    ///
    /// # Errors
    ///
    /// Fails if the queue holds more entries than would fit, or if the capacity is out of range.
    pub fn resize_cq(self, cq: &RawCq, capacity: usize) -> Result<(), VerbsError> {
        Ok(self.of_cq(cq.id).lock().nic.engine.resize_cq(cq.id, capacity)?)
    }
}

/// A poll that holds the lock of the state.
pub struct PollInProgress<'a> {
    runtime: &'a Runtime,
    state: crate::runtime::Locked<'a>,
    cq: &'a RawCq,
    now: Instant,
    is_last_look: bool,
}

impl std::fmt::Debug for PollInProgress<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("PollInProgress").field("cq", &self.cq.id).finish_non_exhaustive()
    }
}

impl PollInProgress<'_> {
    /// Receives packets if there is room in `out`, and moves completions to it. Returns their number.
    ///
    /// # Errors
    ///
    /// Fails like [`Raw::poll_cq`].
    pub fn finish(self, out: &mut [Wc]) -> Result<usize, VerbsError> {
        let Self { runtime, mut state, cq, now, is_last_look } = self;
        let mut found = state.nic.engine.poll_cq(cq.id, out)?;
        let mut is_in_vain = false;
        if found < out.len() {
            // An application that is about to sleep posts nothing soon, so nothing is postponed.
            let has_arrived =
                if is_last_look { state.progress() } else { state.progress_for(now, &cq.occupancy) };
            runtime.note_check(&mut state, has_arrived);
            is_in_vain = !has_arrived;
            found += state.nic.engine.poll_cq(cq.id, &mut out[found..])?;
            if found == 0
                && let Some(error) = state.nic.failure()
            {
                return Err(VerbsError::DeviceFailed(with_causes(error).to_string()));
            }
        } else {
            state.transmit_postponed(now);
        }
        // An application with more outstanding requests polls for them anyway.
        let is_last = |wc: &Wc| state.nic.engine.queue_depths(wc.qpn).is_some_and(|(sends, _)| sends == 0);
        let may_linger =
            !is_last_look && out[..found].last().is_some_and(is_last) && !cq.occupancy.is_occupied();
        let stay = may_linger.then(|| state.begin_to_linger(now)).flatten();
        drop(state);
        if is_in_vain && !is_last_look && found == 0 {
            runtime.share_processor();
        }
        if let Some(stay) = stay {
            runtime.linger(stay);
        }
        Ok(found)
    }
}

/// Shared receive queues.
impl Raw<'_> {
    /// Creates a shared receive queue in engine 0, for `max_wr` receives of up to `max_sge` elements.
    ///
    /// # Errors
    ///
    /// Fails if a size or the number of queues is out of range.
    pub fn create_srq(self, pd: PdId, max_wr: usize, max_sge: usize) -> Result<SrqId, VerbsError> {
        self.create_srq_on(0, pd, max_wr, max_sge)
    }

    /// Creates a shared receive queue in another engine, for queue pairs of that engine.
    ///
    /// # Errors
    ///
    /// Fails like [`create_srq`](Self::create_srq), or if the context does not have this engine.
    pub fn create_srq_on(
        self,
        engine: usize,
        pd: PdId,
        max_wr: usize,
        max_sge: usize,
    ) -> Result<SrqId, VerbsError> {
        Ok(self.context.engine(engine)?.lock().nic.engine.create_srq(pd, max_wr, max_sge)?)
    }

    /// Destroys a shared receive queue with the receives that are posted in it.
    ///
    /// # Errors
    ///
    /// Fails if queue pairs use the queue.
    pub fn destroy_srq(self, srq: SrqId) -> Result<(), VerbsError> {
        Ok(self.of_srq(srq).lock().nic.engine.destroy_srq(srq)?)
    }

    /// Posts a receive.
    ///
    /// # Errors
    ///
    /// Fails if the queue is full or the request has too many elements.
    pub fn post_srq_recv(self, srq: SrqId, wr: &RecvWr<'_>) -> Result<(), VerbsError> {
        Ok(self.of_srq(srq).lock().nic.engine.post_srq_recv(srq, wr)?)
    }

    /// Arms the limit. One [`AsyncEvent::SrqLimitReached`](super::AsyncEvent) follows when fewer receives are
    /// left; 0 disarms.
    ///
    /// # Errors
    ///
    /// Fails if the limit is above the capacity.
    pub fn arm_srq_limit(self, srq: SrqId, limit: usize) -> Result<(), VerbsError> {
        Ok(self.of_srq(srq).lock().nic.engine.arm_srq_limit(srq, limit)?)
    }

    /// Changes the capacity of a queue and keeps the posted receives.
    ///
    /// # Errors
    ///
    /// Fails if more receives are posted than would fit, or if the capacity is out of range.
    pub fn resize_srq(self, srq: SrqId, max_wr: usize) -> Result<(), VerbsError> {
        Ok(self.of_srq(srq).lock().nic.engine.resize_srq(srq, max_wr)?)
    }

    /// Returns the attributes of a queue, or `None` if it does not exist.
    #[must_use]
    pub fn query_srq(self, srq: SrqId) -> Option<SrqAttributes> {
        self.of_srq(srq).lock().nic.engine.query_srq(srq)
    }
}

/// Queue pairs.
impl Raw<'_> {
    /// Creates a queue pair in state RESET, in the engine of its queues.
    ///
    /// # Errors
    ///
    /// Fails if a size or the number of queue pairs is out of range, if an object in `init` does not exist,
    /// or if the queues belong to several engines.
    pub fn create_qp(self, init: &QpInit, options: &QpOptions) -> Result<Qpn, VerbsError> {
        let own = init.send_cq.slot();
        self.check_same_engine("receive completion queue", own, init.recv_cq.slot())?;
        if let Some(srq) = init.srq {
            self.check_same_engine("shared receive queue", own, srq.slot())?;
        }
        Ok(self.context.of_slot(own).lock().nic.engine.create_qp_with(init, options)?)
    }

    /// Fails if a queue belongs to another engine than the send completion queue.
    fn check_same_engine(
        self,
        what: &'static str,
        own: ProcessSlot,
        other: ProcessSlot,
    ) -> Result<(), VerbsError> {
        let [engine, other] = [own, other].map(|slot| self.context.index_of_slot(slot));
        if engine == other { Ok(()) } else { Err(VerbsError::OtherEngine { what, other, engine }) }
    }

    /// Destroys a queue pair after sending its pending responses, such as an acknowledgement.
    ///
    /// # Errors
    ///
    /// Fails if the queue pair does not exist.
    pub fn destroy_qp(self, qpn: Qpn) -> Result<(), VerbsError> {
        let mut state = self.of_qp(qpn).lock();
        if state.nic.engine.query_qp(qpn).is_none() {
            return Err(DestroyError::UnknownQp.into());
        }
        state.transmit_owed();
        let nic = &mut state.nic;
        // While the queue pair exists: when the last member leaves a group, the device leaves it.
        nic.leave_all_groups(qpn);
        nic.release_source_ports(PortHolder::QueuePair(qpn));
        Ok(nic.engine.destroy_qp(qpn)?)
    }

    /// Changes attributes and state, or nothing at all. A queue pair in RESET releases its source port.
    ///
    /// # Errors
    ///
    /// Fails if the transition does not exist, if attributes are missing or not allowed, or if the path MTU
    /// exceeds that of the link.
    pub fn modify_qp(self, qpn: Qpn, attr: &QpAttr) -> Result<(), VerbsError> {
        self.modify_in_steps(&mut self.of_qp(qpn).lock(), qpn, std::slice::from_ref(attr))
    }

    /// Makes all of these changes or none.
    pub(super) fn modify_in_steps(
        self,
        state: &mut State,
        qpn: Qpn,
        steps: &[QpAttr],
    ) -> Result<(), VerbsError> {
        for mtu in steps.iter().filter_map(|step| step.path_mtu) {
            self.context.check_path_mtu(mtu)?;
        }
        let now = state.nic.now();
        state.nic.modify_qp(now, qpn, steps)?;
        if steps.iter().any(|step| step.state == Some(QpState::Reset)) {
            state.nic.release_source_ports(PortHolder::QueuePair(qpn));
        }
        state.transmit_at(now);
        Ok(())
    }

    /// Returns the current attributes of a queue pair, or `None` if it does not exist.
    #[must_use]
    pub fn query_qp(self, qpn: Qpn) -> Option<QpAttributes> {
        self.of_qp(qpn).lock().nic.engine.query_qp(qpn)
    }

    /// Returns the path of a queue pair to its peer, for [`QpAttr::path`]. The queue pair holds the source
    /// port of the path until it goes to RESET or is destroyed.
    ///
    /// # Errors
    ///
    /// Fails if the device has no address of this family, or not this GID.
    pub fn path_of_qp(
        self,
        qpn: Qpn,
        peer: Qpn,
        destination: IpAddr,
        options: &PathOptions,
    ) -> Result<Path, VerbsError> {
        let nic = &mut self.of_qp(qpn).lock().nic;
        let path = nic.path_to(destination, PortHolder::QueuePair(qpn), (qpn, peer), options);
        path.map_err(VerbsError::io("cannot create a path to the peer"))
    }

    /// Posts a send request. The packets usually leave at once, within flow and congestion control. If the
    /// application posts several requests between two polls, they may wait for each other. They leave with 32
    /// requests or 64 KiB, with the next poll, or when the background thread sends them.
    ///
    /// # Errors
    ///
    /// Fails if the queue pair cannot accept the request. Nothing is queued then.
    #[inline]
    pub fn post_send(self, qpn: Qpn, wr: &SendWr<'_>) -> Result<(), VerbsError> {
        let mut state = self.of_qp(qpn).lock();
        let now = state.nic.now();
        state.nic.engine.post_send(now, qpn, wr)?;
        state.transmit_posted(now, 1, wr.payload.len());
        Ok(())
    }

    /// Posts a chain of send requests. Their packets leave as with [`post_send`](Self::post_send).
    ///
    /// # Errors
    ///
    /// Fails with [`VerbsError::PostList`] for the first request that was not accepted. The requests before
    /// it stay queued.
    pub fn post_send_list(self, qpn: Qpn, list: &[SendWr<'_>]) -> Result<(), VerbsError> {
        let mut state = self.of_qp(qpn).lock();
        let now = state.nic.now();
        let posted = state.nic.engine.post_send_list(now, qpn, list);
        let bytes = list.iter().map(|wr| wr.payload.len()).fold(0, u64::saturating_add);
        state.transmit_posted(now, list.len(), bytes);
        posted.map_err(|(position, error)| VerbsError::PostList { position, error })
    }

    /// Posts a receive, from state INIT on.
    ///
    /// # Errors
    ///
    /// Fails if the queue pair cannot accept the receive. Nothing is queued then.
    #[inline]
    pub fn post_recv(self, qpn: Qpn, wr: &RecvWr<'_>) -> Result<(), VerbsError> {
        Ok(self.of_qp(qpn).lock().nic.engine.post_recv(qpn, wr)?)
    }

    /// Joins a multicast group with a UD queue pair. A second join of the same group has no effect.
    ///
    /// # Errors
    ///
    /// Fails if the queue pair is not UD, or if the device cannot join.
    pub fn attach_multicast(self, qpn: Qpn, group: IpAddr) -> Result<(), VerbsError> {
        let joined = self.of_qp(qpn).lock().nic.join_group(qpn, group);
        joined.map_err(|error| VerbsError::group("cannot join a multicast group", error))
    }

    /// Leaves a multicast group. Other queue pairs of the context remain members.
    ///
    /// # Errors
    ///
    /// Fails if the device cannot leave.
    pub fn detach_multicast(self, qpn: Qpn, group: IpAddr) -> Result<(), VerbsError> {
        let left = self.of_qp(qpn).lock().nic.leave_group(qpn, group);
        left.map_err(|error| VerbsError::group("cannot leave a multicast group", error))
    }
}
