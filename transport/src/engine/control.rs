//! The verbs: making, changing and removing objects, and posting work.

use alloc::boxed::Box;
use alloc::sync::Arc;
use core::net::IpAddr;

use rand_core::Rng;
use roce_packet::{PathMtu, Qpn};

use super::{Engine, ProtectionDomain};
use crate::completion::CompletionQueue;
use crate::counters::Counters;
use crate::ids::{CqId, LKey, PdId, RKey, SrqId};
use crate::memory::{Access, KeyError, Memory, RegionAttributes, RegisterError, WindowBinding, WindowType};
use crate::qp::{
    AttrMask, CreateQpError, Halves, MAX_QP_WR, MAX_RD_ATOMIC, ModifyQpError, Qp, QpAttr, QpAttributes,
    QpCore, QpInit, QpState, QpType, transition,
};
use crate::rc::{RcRequester, RcResponder};
use crate::rq::{ReceiveQueue, SharedReceiveQueue};
use crate::sq::awaits_response;
use crate::time::Instant;
use crate::timer::Deadlines;
use crate::uc::{UcRequester, UcResponder};
use crate::ud::{UdRequester, UdResponder};
use crate::wr::{MAX_SGE, PostError, RecvWr, SendOp, SendWr};

/// What can go wrong with a protection domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PdError {
    /// It does not exist.
    #[error("there is no such protection domain")]
    Unknown,
    /// Something still belongs to it.
    #[error("{members} objects still belong to the protection domain; remove them first")]
    InUse {
        /// How many.
        members: usize,
    },
    /// The configured number is in use.
    #[error("all {limit} protection domains are in use")]
    TooMany {
        /// The configured limit.
        limit: usize,
    },
}

/// What can go wrong with a completion queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CqError {
    /// It does not exist.
    #[error("there is no such completion queue")]
    Unknown,
    /// Queue pairs still complete into it.
    #[error("{users} queue pair halves still complete into this completion queue; destroy them first")]
    InUse {
        /// How many halves of queue pairs.
        users: usize,
    },
    /// The configured number is in use.
    #[error("all {limit} completion queues are in use")]
    TooMany {
        /// The configured limit.
        limit: usize,
    },
    /// A capacity of 0, above the limit, or below what the queue holds now.
    #[error("a completion queue cannot have {have} entries here; {least} to {most} are possible")]
    Capacity {
        /// Asked for.
        have: usize,
        /// Smallest possible now.
        least: usize,
        /// Largest possible.
        most: usize,
    },
    /// It overflowed and completions were lost. Its queue pairs are in the error state or on the way there.
    #[error(
        "the completion queue with {capacity} entries overflowed and lost completions; make it larger or poll it more often"
    )]
    Overflowed {
        /// Its capacity.
        capacity: usize,
    },
}

/// What can go wrong with a shared receive queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SrqError {
    /// It does not exist.
    #[error("there is no such shared receive queue")]
    Unknown,
    /// The protection domain does not exist.
    #[error("there is no such protection domain")]
    UnknownProtectionDomain,
    /// Queue pairs still take from it.
    #[error("{users} queue pairs still take from this shared receive queue; destroy them first")]
    InUse {
        /// How many.
        users: usize,
    },
    /// The configured number is in use.
    #[error("all {limit} shared receive queues are in use")]
    TooMany {
        /// The configured limit.
        limit: usize,
    },
    /// A size out of range.
    #[error("{name} is {have}, the most is {limit}")]
    OutOfRange {
        /// The field.
        name: &'static str,
        /// Asked for.
        have: usize,
        /// Possible.
        limit: usize,
    },
}

/// What can go wrong when something is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DestroyError {
    /// No such queue pair.
    #[error("there is no such queue pair")]
    UnknownQp,
    /// Only UD queue pairs can be in multicast groups.
    #[error("only UD queue pairs can join multicast groups")]
    NotDatagram,
    /// No such key.
    #[error("{0}")]
    Key(KeyError),
    /// Windows are bound over the region.
    #[error("{windows} memory windows are bound over the region; unbind or invalidate them first")]
    WindowsBound {
        /// How many.
        windows: u32,
    },
}

/// What a shared receive queue is like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SrqAttributes {
    /// Capacity in work requests.
    pub max_wr: usize,
    /// The armed limit, 0 for none.
    pub limit: usize,
    /// Receives posted and not taken.
    pub posted: usize,
}

/// Protection domains, completion queues and shared receive queues.
impl Engine {
    /// Makes a protection domain.
    ///
    /// # Errors
    ///
    /// When the configured number is in use.
    pub fn allocate_pd(&mut self) -> Result<PdId, PdError> {
        let limit = self.shared.config.max_pd;
        if self.pds.len() >= limit {
            return Err(PdError::TooMany { limit });
        }
        Ok(PdId::from_index(self.pds.insert(ProtectionDomain::default())))
    }

    /// Removes a protection domain.
    ///
    /// # Errors
    ///
    /// While anything belongs to it.
    pub fn deallocate_pd(&mut self, pd: PdId) -> Result<(), PdError> {
        match self.pds.get(pd.index()).ok_or(PdError::Unknown)?.members {
            0 => {
                self.pds.remove(pd.index());
                Ok(())
            }
            members => Err(PdError::InUse { members }),
        }
    }

    fn join_pd(&mut self, pd: PdId) {
        if let Some(domain) = self.pds.get_mut(pd.index()) {
            domain.members += 1;
        }
    }

    fn leave_pd(&mut self, pd: PdId) {
        if let Some(domain) = self.pds.get_mut(pd.index()) {
            domain.members = domain.members.saturating_sub(1);
        }
    }

    /// Makes a completion queue of `capacity` entries.
    ///
    /// # Errors
    ///
    /// When the capacity or the number of queues is out of range.
    pub fn create_cq(&mut self, capacity: usize) -> Result<CqId, CqError> {
        let limit = self.shared.config.max_cq;
        if self.shared.cqs.len() >= limit {
            return Err(CqError::TooMany { limit });
        }
        let most = self.shared.config.max_cqe;
        if !(1..=most).contains(&capacity) {
            return Err(CqError::Capacity { have: capacity, least: 1, most });
        }
        Ok(CqId::from_index(self.shared.cqs.insert(CompletionQueue::new(capacity))))
    }

    /// Gives a completion queue another capacity; what it holds stays.
    ///
    /// # Errors
    ///
    /// When it holds more than would fit.
    pub fn resize_cq(&mut self, cq: CqId, capacity: usize) -> Result<(), CqError> {
        let most = self.shared.config.max_cqe;
        let queue = self.shared.cqs.get_mut(cq.index()).ok_or(CqError::Unknown)?;
        if capacity == 0 || capacity > most || !queue.resize(capacity) {
            return Err(CqError::Capacity { have: capacity, least: queue.len().max(1), most });
        }
        Ok(())
    }

    /// Removes a completion queue.
    ///
    /// # Errors
    ///
    /// While queue pairs complete into it.
    pub fn destroy_cq(&mut self, cq: CqId) -> Result<(), CqError> {
        match self.shared.cqs.get(cq.index()).ok_or(CqError::Unknown)?.users {
            0 => {
                self.shared.cqs.remove(cq.index());
                Ok(())
            }
            users => Err(CqError::InUse { users }),
        }
    }

    /// Makes a shared receive queue for `max_wr` receives of up to `max_sge` elements.
    ///
    /// # Errors
    ///
    /// When a size is out of range or the protection domain does not exist.
    pub fn create_srq(&mut self, pd: PdId, max_wr: usize, max_sge: usize) -> Result<SrqId, SrqError> {
        if !self.pds.contains(pd.index()) {
            return Err(SrqError::UnknownProtectionDomain);
        }
        let limit = self.shared.config.max_srq;
        if self.shared.srqs.len() >= limit {
            return Err(SrqError::TooMany { limit });
        }
        for (name, have, limit) in [("max_wr", max_wr, MAX_QP_WR), ("max_sge", max_sge, MAX_SGE)] {
            if have > limit {
                return Err(SrqError::OutOfRange { name, have, limit });
            }
        }
        let queue = ReceiveQueue::new(max_wr, max_sge);
        let position = self.shared.srqs.insert(SharedReceiveQueue { pd, queue, limit: 0, users: 0 });
        self.join_pd(pd);
        Ok(SrqId::from_index(position))
    }

    /// Arms the limit: one event when fewer than `limit` receives are left; 0 disarms.
    ///
    /// # Errors
    ///
    /// When the limit is above the capacity.
    pub fn arm_srq_limit(&mut self, srq: SrqId, limit: usize) -> Result<(), SrqError> {
        let queue = self.shared.srqs.get_mut(srq.index()).ok_or(SrqError::Unknown)?;
        let capacity = queue.queue.capacity();
        if limit > capacity {
            return Err(SrqError::OutOfRange { name: "limit", have: limit, limit: capacity });
        }
        queue.limit = limit;
        Ok(())
    }

    /// Removes a shared receive queue with whatever is posted in it.
    ///
    /// # Errors
    ///
    /// While queue pairs take from it.
    pub fn destroy_srq(&mut self, srq: SrqId) -> Result<(), SrqError> {
        match self.shared.srqs.get(srq.index()).ok_or(SrqError::Unknown)?.users {
            0 => {
                let removed = self.shared.srqs.remove(srq.index());
                self.leave_pd(removed.pd);
                Ok(())
            }
            users => Err(SrqError::InUse { users }),
        }
    }
}

/// Memory.
impl Engine {
    /// Registers memory. `addr` is the virtual address of its first byte in work requests and RETHs.
    ///
    /// # Errors
    ///
    /// When the access flags contradict each other, or the address range or the number of keys is out of
    /// range.
    pub fn register(
        &mut self,
        pd: PdId,
        addr: u64,
        memory: Arc<dyn Memory>,
        access: Access,
    ) -> Result<RegionAttributes, RegisterError> {
        if !self.pds.contains(pd.index()) {
            return Err(RegisterError::UnknownProtectionDomain);
        }
        let region = self.shared.keys.register(&mut self.rng, pd, addr, memory, access)?;
        self.join_pd(pd);
        Ok(region)
    }

    /// Revokes a region. Work requests that still use it fail with a protection error; the memory is
    /// not touched any more once this returns.
    ///
    /// # Errors
    ///
    /// When the key is unknown or windows are bound over the region.
    pub fn deregister(&mut self, lkey: LKey) -> Result<(), DestroyError> {
        let windows = self.shared.keys.windows_over(lkey).map_err(DestroyError::Key)?;
        if windows > 0 {
            return Err(DestroyError::WindowsBound { windows });
        }
        let pd = self.shared.keys.remove(lkey.0).map_err(DestroyError::Key)?;
        self.leave_pd(pd);
        Ok(())
    }

    /// The attributes of a region.
    ///
    /// # Errors
    ///
    /// When the key is unknown or names a window.
    pub fn query_region(&self, lkey: LKey) -> Result<RegionAttributes, KeyError> {
        self.shared.keys.region(lkey).map(|(_, region)| region)
    }

    /// Makes an unbound memory window.
    ///
    /// # Errors
    ///
    /// When the protection domain does not exist or all keys are in use.
    pub fn allocate_window(&mut self, pd: PdId, window_type: WindowType) -> Result<RKey, RegisterError> {
        if !self.pds.contains(pd.index()) {
            return Err(RegisterError::UnknownProtectionDomain);
        }
        let key = self.shared.keys.allocate_window(&mut self.rng, pd, window_type)?;
        self.join_pd(pd);
        Ok(key)
    }

    /// Binds a type 1 window and returns its new key; the old one is dead. A length of 0 unbinds it.
    ///
    /// # Errors
    ///
    /// When the window or region is unknown, of another protection domain, or lacks a permission.
    pub fn bind_window(&mut self, pd: PdId, window: RKey, binding: &WindowBinding) -> Result<RKey, KeyError> {
        self.shared.keys.bind(window, None, pd, None, binding)
    }

    /// Removes a window, bound or not.
    ///
    /// # Errors
    ///
    /// When the key is unknown or names a region.
    pub fn deallocate_window(&mut self, window: RKey) -> Result<(), DestroyError> {
        if self.shared.keys.region(LKey(window.0)).is_ok() {
            return Err(DestroyError::Key(KeyError::PermissionDenied));
        }
        let pd = self.shared.keys.remove(window.0).map_err(DestroyError::Key)?;
        self.leave_pd(pd);
        Ok(())
    }

    /// Keys in use.
    #[must_use]
    pub fn keys_in_use(&self) -> usize {
        self.shared.keys.len()
    }
}

/// Queue pairs.
impl Engine {
    /// Makes a queue pair in state RESET and returns its number.
    ///
    /// # Errors
    ///
    /// When something it refers to does not exist, a size is out of range, or all numbers are in use.
    pub fn create_qp(&mut self, init: &QpInit) -> Result<Qpn, CreateQpError> {
        self.check_init(init)?;
        let position = self.qps.vacant_key();
        let number = self.draw_number(position)?;
        let capabilities = &init.capabilities;
        let halves = match init.qp_type {
            QpType::Rc => Halves::Rc(RcRequester::new(capabilities), RcResponder::new()),
            QpType::Uc => Halves::Uc(UcRequester::new(capabilities), UcResponder::new()),
            QpType::Ud => Halves::Ud(UdRequester::new(capabilities), UdResponder),
        };
        let depth = if init.srq.is_some() { 0 } else { capabilities.max_recv_wr };
        let path_mtu = match init.qp_type {
            QpType::Ud => self.shared.config.port_mtu,
            _ => PathMtu::Mtu1024,
        };
        let core = QpCore {
            number,
            qp_type: init.qp_type,
            pd: init.pd,
            send_cq: init.send_cq,
            recv_cq: init.recv_cq,
            srq: init.srq,
            rq: ReceiveQueue::new(depth, capabilities.max_recv_sge),
            signal_all: init.signal_all,
            capabilities: *capabilities,
            attr: QpAttributes::new(path_mtu),
            counters: Counters::default(),
            deadlines: Deadlines::default(),
            failure: None,
            drain_pending: false,
            exact_icrcs: 0,
        };
        let qp = Qp { core, halves, requester_turn: false, scheduled: false, queued_deadline: None };
        self.qps.insert(Box::new(qp));
        // A queue pair waits in the ready queue at most once, so this makes room for good.
        self.ready.reserve(self.qps.len().saturating_sub(self.ready.len()));
        self.timers.reserve(position + 1);
        self.count_users(init, 1);
        self.join_pd(init.pd);
        Ok(number)
    }

    fn check_init(&self, init: &QpInit) -> Result<(), CreateQpError> {
        if !self.pds.contains(init.pd.index()) {
            return Err(CreateQpError::UnknownProtectionDomain);
        }
        let cqs = &self.shared.cqs;
        if !cqs.contains(init.send_cq.index()) || !cqs.contains(init.recv_cq.index()) {
            return Err(CreateQpError::UnknownCq);
        }
        if let Some(srq) = init.srq {
            let srq = self.shared.srqs.get(srq.index()).ok_or(CreateQpError::UnknownSrq)?;
            if srq.pd != init.pd {
                return Err(CreateQpError::SrqOfOtherDomain);
            }
        }
        init.capabilities.check()
    }

    /// A number nobody can guess: 8 bits of process slot, 16 random bits (0 and 1 are reserved).
    fn draw_number(&mut self, position: usize) -> Result<Qpn, CreateQpError> {
        let limit = self.shared.config.max_qp.min(65_000);
        if self.qps.len() >= limit {
            return Err(CreateQpError::TooManyQps { limit });
        }
        let slot = u32::from(self.shared.config.process_slot) << 16;
        // The limit keeps some numbers free, so a draw succeeds sooner or later.
        loop {
            let number = slot | self.rng.next_u32() & 0xffff;
            let reserved = number < 2 || number == Qpn::MULTICAST.get();
            if !reserved && self.numbers.insert(number, position) {
                return Ok(Qpn::new(number));
            }
        }
    }

    fn count_users(&mut self, init: &QpInit, change: isize) {
        for cq in [init.send_cq, init.recv_cq] {
            if let Some(queue) = self.shared.cqs.get_mut(cq.index()) {
                queue.users = queue.users.saturating_add_signed(change);
            }
        }
        if let Some(srq) = init.srq.and_then(|srq| self.shared.srqs.get_mut(srq.index())) {
            srq.users = srq.users.saturating_add_signed(change);
        }
    }

    /// Removes a queue pair in any state. Completions that it produced stay in their queues.
    ///
    /// # Errors
    ///
    /// When there is no such queue pair.
    pub fn destroy_qp(&mut self, qpn: Qpn) -> Result<(), DestroyError> {
        let index = self.numbers.remove(qpn.get()).ok_or(DestroyError::UnknownQp)?;
        let qp = self.qps.remove(index);
        self.ready.retain(|waiting| *waiting != index);
        self.groups.retain(|(_, member)| *member != qpn);
        self.shared.keys.release_owner(qpn);
        let core = &qp.core;
        let init = QpInit {
            qp_type: core.qp_type,
            pd: core.pd,
            send_cq: core.send_cq,
            recv_cq: core.recv_cq,
            srq: core.srq,
            capabilities: core.capabilities,
            signal_all: core.signal_all,
        };
        self.count_users(&init, -1);
        self.leave_pd(core.pd);
        Ok(())
    }

    /// Changes attributes and state, or nothing at all.
    ///
    /// # Errors
    ///
    /// When the transition does not exist, attributes are missing or out of place, or a value is out of
    /// range.
    pub fn modify_qp(&mut self, now: Instant, qpn: Qpn, attr: &QpAttr) -> Result<(), ModifyQpError> {
        self.set_now(now);
        let index = self.numbers.get(qpn.get()).ok_or(ModifyQpError::UnknownQp)?;
        let qp = self.qps.get_mut(index).ok_or(ModifyQpError::UnknownQp)?;
        let from = qp.core.attr.state;
        let to = attr.state.unwrap_or(from);
        check_modify(qp.core.qp_type, from, to, attr)?;
        qp.apply(attr);
        match to {
            QpState::Reset => {
                qp.reset();
                let (send_cq, recv_cq) = (qp.core.send_cq, qp.core.recv_cq);
                self.shared.discard_completions(send_cq, qpn);
                self.shared.discard_completions(recv_cq, qpn);
                self.shared.keys.release_owner(qpn);
            }
            QpState::Err => qp.enter_error(&mut self.shared),
            QpState::Rtr if from == QpState::Init => qp.start_receiving(),
            QpState::Rts if from == QpState::Rtr => qp.start_sending(),
            QpState::Sqd if from == QpState::Rts => qp.start_draining(&mut self.shared),
            // Whoever starts the queue again no longer waits for it to drain.
            QpState::Rts => qp.core.drain_pending = false,
            _ => {}
        }
        qp.core.attr.state = to;
        tracing::debug!(qpn = qpn.get(), from = from.name(), to = to.name(), "state");
        self.settle(index);
        Ok(())
    }

    /// Lets a UD queue pair receive what is sent to a multicast group.
    ///
    /// # Errors
    ///
    /// When there is no such queue pair, or it is not UD. Joining twice is one membership.
    pub fn attach_multicast(&mut self, qpn: Qpn, group: IpAddr) -> Result<(), DestroyError> {
        if self.qp(qpn).ok_or(DestroyError::UnknownQp)?.core.qp_type != QpType::Ud {
            return Err(DestroyError::NotDatagram);
        }
        if !self.groups.contains(&(group, qpn)) {
            self.groups.push((group, qpn));
        }
        Ok(())
    }

    /// Ends a membership.
    ///
    /// # Errors
    ///
    /// When there is no such queue pair.
    pub fn detach_multicast(&mut self, qpn: Qpn, group: IpAddr) -> Result<(), DestroyError> {
        self.qp(qpn).ok_or(DestroyError::UnknownQp)?;
        self.groups.retain(|member| *member != (group, qpn));
        Ok(())
    }
}

/// Work requests.
impl Engine {
    /// Queues a send request. It is sent at the next [`poll_transmit`](Self::poll_transmit).
    ///
    /// # Errors
    ///
    /// When the queue pair cannot take it; nothing is queued then.
    #[inline]
    pub fn post_send(&mut self, now: Instant, qpn: Qpn, wr: &SendWr<'_>) -> Result<(), PostError> {
        self.set_now(now);
        let index = self.numbers.get(qpn.get()).ok_or(PostError::UnknownQp)?;
        let qp = self.qps.get_mut(index).ok_or(PostError::UnknownQp)?;
        let state = qp.core.attr.state;
        if !state.accepts_send() {
            return Err(PostError::WrongState(state));
        }
        check_operation(&qp.core, wr)?;
        qp.halves.sq_mut().push(wr)?;
        if matches!(state, QpState::Err | QpState::Sqe) {
            qp.flush_sends(&mut self.shared);
        }
        self.schedule(index);
        Ok(())
    }

    /// Queues a list of send requests, in order.
    ///
    /// # Errors
    ///
    /// The position of the first request that was not taken and the reason; those before it are queued.
    pub fn post_send_list(
        &mut self,
        now: Instant,
        qpn: Qpn,
        list: &[SendWr<'_>],
    ) -> Result<(), (usize, PostError)> {
        for (position, wr) in list.iter().enumerate() {
            self.post_send(now, qpn, wr).map_err(|error| (position, error))?;
        }
        Ok(())
    }

    /// Queues a receive.
    ///
    /// # Errors
    ///
    /// When the queue pair cannot take it; nothing is queued then.
    #[inline]
    pub fn post_recv(&mut self, qpn: Qpn, wr: &RecvWr<'_>) -> Result<(), PostError> {
        let index = self.numbers.get(qpn.get()).ok_or(PostError::UnknownQp)?;
        let qp = self.qps.get_mut(index).ok_or(PostError::UnknownQp)?;
        if qp.core.srq.is_some() {
            return Err(PostError::UsesSrq);
        }
        let state = qp.core.attr.state;
        if !state.accepts_recv() {
            return Err(PostError::WrongState(state));
        }
        qp.core.rq.push(wr)?;
        if state == QpState::Err {
            qp.flush_receives_now(&mut self.shared);
        }
        Ok(())
    }

    /// Queues a receive in a shared receive queue.
    ///
    /// # Errors
    ///
    /// When the queue cannot take it; nothing is queued then.
    pub fn post_srq_recv(&mut self, srq: SrqId, wr: &RecvWr<'_>) -> Result<(), PostError> {
        self.shared.srqs.get_mut(srq.index()).ok_or(PostError::UnknownSrq)?.queue.push(wr)
    }
}

fn check_modify(qp_type: QpType, from: QpState, to: QpState, attr: &QpAttr) -> Result<(), ModifyQpError> {
    if let Some(believed) = attr.cur_state.filter(|believed| *believed != from) {
        return Err(ModifyQpError::CurrentState { actual: from, believed });
    }
    let rule = transition(qp_type, from, to).ok_or(ModifyQpError::Transition { qp_type, from, to })?;
    let given = attr.mask();
    let missing = rule.required - given;
    if !missing.is_empty() {
        return Err(ModifyQpError::Missing { from, to, missing });
    }
    let extra = given - rule.required - rule.optional - AttrMask::CUR_STATE;
    if !extra.is_empty() {
        return Err(ModifyQpError::NotAllowed { from, to, extra });
    }
    if attr.port == Some(0) {
        return Err(ModifyQpError::OutOfRange { name: "port", have: 0, limit: 1 });
    }
    let limits = [
        ("pkey_index", attr.pkey_index.map(u32::from), 0),
        ("port", attr.port.map(u32::from), 1),
        ("timeout", attr.timeout.map(u32::from), 31),
        ("retry_cnt", attr.retry_cnt.map(u32::from), 7),
        ("rnr_retry", attr.rnr_retry.map(u32::from), 7),
        ("max_rd_atomic", attr.max_rd_atomic.map(u32::from), u32::from(MAX_RD_ATOMIC)),
        ("max_dest_rd_atomic", attr.max_dest_rd_atomic.map(u32::from), u32::from(MAX_RD_ATOMIC)),
    ];
    for (name, value, limit) in limits {
        if let Some(have) = value.filter(|have| *have > limit) {
            return Err(ModifyQpError::OutOfRange { name, have, limit });
        }
    }
    Ok(())
}

/// Whether the transport has the operation, and whether the queue pair can carry it out (IBTA table 34).
fn check_operation(core: &QpCore, wr: &SendWr<'_>) -> Result<(), PostError> {
    if (core.qp_type == QpType::Ud) != wr.destination.is_some() {
        return Err(PostError::Destination);
    }
    let supported = match core.qp_type {
        QpType::Rc => true,
        QpType::Uc => matches!(
            wr.op,
            SendOp::Send | SendOp::SendWithImm(_) | SendOp::Write { .. } | SendOp::WriteWithImm { .. }
        ),
        QpType::Ud => matches!(wr.op, SendOp::Send | SendOp::SendWithImm(_)),
    };
    if !supported {
        return Err(PostError::UnsupportedOperation);
    }
    if awaits_response(&wr.op) && core.attr.max_rd_atomic == 0 && core.attr.state != QpState::Err {
        return Err(PostError::NoReadAtomicResources);
    }
    if core.qp_type == QpType::Ud {
        let have = payload_len(wr);
        let limit = core.mtu() as u64;
        if have > limit {
            return Err(PostError::MessageTooLong { have, limit });
        }
    }
    Ok(())
}

fn payload_len(wr: &SendWr<'_>) -> u64 {
    match wr.payload {
        crate::wr::Payload::Elements(elements) => {
            elements.iter().map(|element| u64::from(element.length)).sum()
        }
        crate::wr::Payload::Inline(bytes) => bytes.len() as u64,
    }
}

impl Qp {
    fn apply(&mut self, attr: &QpAttr) {
        fn set<T: Copy>(target: &mut T, value: Option<T>) {
            if let Some(value) = value {
                *target = value;
            }
        }
        let own = &mut self.core.attr;
        set(&mut own.en_sqd_async_notify, attr.en_sqd_async_notify);
        set(&mut own.access, attr.access);
        set(&mut own.qkey, attr.qkey);
        set(&mut own.path_mtu, attr.path_mtu);
        set(&mut own.timeout, attr.timeout);
        set(&mut own.retry_cnt, attr.retry_cnt);
        set(&mut own.rnr_retry, attr.rnr_retry);
        set(&mut own.rq_psn, attr.rq_psn);
        set(&mut own.sq_psn, attr.sq_psn);
        set(&mut own.max_rd_atomic, attr.max_rd_atomic);
        set(&mut own.max_dest_rd_atomic, attr.max_dest_rd_atomic);
        set(&mut own.min_rnr_timer, attr.min_rnr_timer);
        set(&mut own.dest_qpn, attr.dest_qpn);
        if attr.path.is_some() {
            own.path = attr.path;
        }
        if let Halves::Rc(_, responder) = &mut self.halves
            && let Some(limit) = attr.max_dest_rd_atomic
        {
            responder.set_resources(limit);
        }
    }

    /// Forgets everything without completions (IBTA 10.3.1).
    fn reset(&mut self) {
        match &mut self.halves {
            Halves::Rc(requester, responder) => {
                requester.reset();
                responder.reset();
            }
            Halves::Uc(requester, responder) => {
                requester.sq.clear();
                responder.start(roce_packet::Psn::new(0));
            }
            Halves::Ud(requester, _) => requester.sq.clear(),
        }
        let core = &mut self.core;
        core.rq.clear();
        core.deadlines.clear();
        core.failure = None;
        core.drain_pending = false;
        core.exact_icrcs = 0;
        let path_mtu = core.attr.path_mtu;
        core.attr = QpAttributes::new(path_mtu);
    }

    fn start_receiving(&mut self) {
        let psn = self.core.attr.rq_psn;
        match &mut self.halves {
            Halves::Rc(_, responder) => responder.start(psn),
            Halves::Uc(_, responder) => responder.start(psn),
            Halves::Ud(..) => {}
        }
    }

    fn start_sending(&mut self) {
        let psn = self.core.attr.sq_psn;
        match &mut self.halves {
            Halves::Rc(requester, _) => {
                requester.start(psn);
                requester.reload_retries(&self.core);
            }
            Halves::Uc(requester, _) => requester.start(psn),
            Halves::Ud(requester, _) => requester.start(psn),
        }
    }

    /// Going to SQD: what was started is finished, and then an event tells it, if it is wanted.
    fn start_draining(&mut self, shared: &mut crate::shared::Shared) {
        let drained = match &self.halves {
            Halves::Rc(requester, _) => requester.is_drained(),
            Halves::Uc(requester, _) => requester.is_drained(),
            Halves::Ud(..) => true,
        };
        self.core.drain_pending = !drained;
        if drained && self.core.attr.en_sqd_async_notify {
            shared.events.push_async(crate::event::AsyncEvent::SqDrained(self.core.number));
        }
    }

    fn flush_receives_now(&mut self, shared: &mut crate::shared::Shared) {
        use crate::completion::{Cause, WcStatus};
        while let Some(receive) = self.core.rq.pop() {
            self.core.fail_recv(shared, receive.wr_id, WcStatus::WrFlushError, Cause::Flushed);
        }
    }
}
