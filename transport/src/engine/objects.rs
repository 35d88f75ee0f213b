//! The verbs for protection domains, completion queues, shared receive queues and memory.

use alloc::sync::Arc;

use super::{CqError, DestroyError, Engine, PdError, SrqError};
use crate::completion::CompletionQueue;
use crate::ids::{CqId, LKey, PdId, RKey, SrqId};
use crate::memory::{
    Access, ChangeError, KeyError, Memory, RegionAttributes, RegionChange, RegisterError, WindowBinding,
    WindowType,
};
use crate::qp::MAX_QP_WR;
use crate::rq::{ReceiveQueue, SharedReceiveQueue};
use crate::wr::MAX_SGE;

/// Protection domains, completion queues and shared receive queues.
impl Engine {
    /// Creates a protection domain.
    ///
    /// # Errors
    ///
    /// Returns an error if the configured number of protection domains is in use.
    pub fn allocate_pd(&mut self) -> Result<PdId, PdError> {
        let limit = self.shared.config.max_pd;
        if self.pds.len() >= limit {
            return Err(PdError::TooMany { limit });
        }
        Ok(self.pds.insert())
    }

    /// Removes a protection domain.
    ///
    /// # Errors
    ///
    /// Returns an error while objects belong to the protection domain.
    pub fn deallocate_pd(&mut self, pd: PdId) -> Result<(), PdError> {
        match self.pds.get(pd).ok_or(PdError::Unknown)?.members {
            0 => {
                self.pds.remove(pd);
                Ok(())
            }
            members => Err(PdError::InUse { members }),
        }
    }

    pub(super) fn join_pd(&mut self, pd: PdId) {
        if let Some(domain) = self.pds.get_mut(pd) {
            domain.members += 1;
        }
    }

    pub(super) fn leave_pd(&mut self, pd: PdId) {
        if let Some(domain) = self.pds.get_mut(pd) {
            domain.members = domain.members.saturating_sub(1);
        }
    }

    /// Creates a completion queue with `capacity` entries.
    ///
    /// # Errors
    ///
    /// Returns an error if the capacity or the number of queues is out of range.
    pub fn create_cq(&mut self, capacity: usize) -> Result<CqId, CqError> {
        let limit = self.shared.config.max_cq;
        if self.shared.cqs.len() >= limit {
            return Err(CqError::TooMany { limit });
        }
        let most = self.shared.config.max_cqe;
        if !(1..=most).contains(&capacity) {
            return Err(CqError::Capacity { have: capacity, least: 1, most });
        }
        let position = self.shared.cqs.insert(CompletionQueue::new(capacity));
        Ok(CqId::new(self.shared.config.process_slot, position))
    }

    /// Changes the capacity of a completion queue and keeps its completions.
    ///
    /// # Errors
    ///
    /// Returns an error if the queue holds more completions than the new capacity.
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
    /// Returns an error while queue pairs complete into the queue.
    pub fn destroy_cq(&mut self, cq: CqId) -> Result<(), CqError> {
        match self.shared.cqs.get(cq.index()).ok_or(CqError::Unknown)?.users {
            0 => {
                self.shared.cqs.remove(cq.index());
                Ok(())
            }
            users => Err(CqError::InUse { users }),
        }
    }

    /// Creates a shared receive queue for `max_wr` receives of up to `max_sge` elements.
    ///
    /// # Errors
    ///
    /// Returns an error if a size is out of range or the protection domain does not exist.
    pub fn create_srq(&mut self, pd: PdId, max_wr: usize, max_sge: usize) -> Result<SrqId, SrqError> {
        if !self.pds.contains(pd) {
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
        let position =
            self.shared.srqs.insert(SharedReceiveQueue { pd, queue, limit: 0, users: 0, xrc: None });
        self.join_pd(pd);
        Ok(SrqId::new(self.shared.config.process_slot, position))
    }

    /// Arms the limit: one event is raised when fewer than `limit` receives are left. 0 disarms the limit.
    ///
    /// # Errors
    ///
    /// Returns an error if the limit is above the capacity.
    pub fn arm_srq_limit(&mut self, srq: SrqId, limit: usize) -> Result<(), SrqError> {
        let queue = self.shared.srqs.get_mut(srq.index()).ok_or(SrqError::Unknown)?;
        let capacity = queue.queue.capacity();
        if limit > capacity {
            return Err(SrqError::OutOfRange { name: "limit", have: limit, limit: capacity });
        }
        queue.limit = limit;
        Ok(())
    }

    /// Changes the capacity of a shared receive queue and keeps its receives. An armed limit is reduced to
    /// the new capacity.
    ///
    /// # Errors
    ///
    /// Returns an error if more receives are posted than the new capacity, or the capacity is out of range.
    pub fn resize_srq(&mut self, srq: SrqId, max_wr: usize) -> Result<(), SrqError> {
        if max_wr > MAX_QP_WR {
            return Err(SrqError::OutOfRange { name: "max_wr", have: max_wr, limit: MAX_QP_WR });
        }
        let shared = self.shared.srqs.get_mut(srq.index()).ok_or(SrqError::Unknown)?;
        if !shared.queue.resize(max_wr) {
            let posted = shared.queue.len();
            return Err(SrqError::TooSmall { have: max_wr, posted });
        }
        shared.limit = shared.limit.min(max_wr);
        Ok(())
    }

    /// Removes a shared receive queue and the receives posted in it.
    ///
    /// # Errors
    ///
    /// Returns an error while queue pairs take receives from the queue.
    pub fn destroy_srq(&mut self, srq: SrqId) -> Result<(), SrqError> {
        match self.shared.srqs.get(srq.index()).ok_or(SrqError::Unknown)?.users {
            0 => {
                let removed = self.shared.srqs.remove(srq.index());
                if let Some(xrc) = removed.xrc {
                    self.leave_targets(srq, xrc);
                }
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
    /// Returns an error if the access flags contradict each other, or the address range or the number of keys
    /// is out of range.
    pub fn register(
        &mut self,
        pd: PdId,
        addr: u64,
        memory: Arc<dyn Memory>,
        access: Access,
    ) -> Result<RegionAttributes, RegisterError> {
        if !self.pds.contains(pd) {
            return Err(RegisterError::UnknownProtectionDomain);
        }
        let region = self.shared.keys.register(&mut self.rng, pd, addr, memory, access)?;
        self.join_pd(pd);
        Ok(region)
    }

    /// Changes the protection domain, the memory or the access rights of a region, which keeps its keys.
    /// Messages in progress and work requests fail if the new attributes do not allow them.
    ///
    /// # Errors
    ///
    /// Returns an error if the key is unknown or names a window, or if windows are bound over the region.
    /// Also returns an error if [`register`](Self::register) would refuse the protection domain, the rights
    /// or the range. The region is unchanged after an error.
    pub fn change_region(
        &mut self,
        lkey: LKey,
        change: RegionChange,
    ) -> Result<RegionAttributes, ChangeError> {
        if change.pd.is_some_and(|pd| !self.pds.contains(pd)) {
            return Err(RegisterError::UnknownProtectionDomain.into());
        }
        let new_pd = change.pd;
        let changed = self.shared.keys.change(lkey, change)?;
        if let Some(new_pd) = new_pd {
            self.join_pd(new_pd);
            self.leave_pd(changed.old_pd);
        }
        Ok(changed.attributes)
    }

    /// Revokes a region. Work requests that still use it fail with a protection error. Once this returns, the
    /// engine does not access the memory any more.
    ///
    /// # Errors
    ///
    /// Returns an error if the key is unknown or windows are bound over the region.
    pub fn deregister(&mut self, lkey: LKey) -> Result<(), DestroyError> {
        let windows = self.shared.keys.windows_over(lkey).map_err(DestroyError::Key)?;
        if windows > 0 {
            return Err(DestroyError::WindowsBound { windows });
        }
        let pd = self.shared.keys.remove(lkey.0).map_err(DestroyError::Key)?;
        self.leave_pd(pd);
        Ok(())
    }

    /// Revokes a region like [`deregister`](Self::deregister), but also while windows are bound over it. Once
    /// this returns, the keys of the region are invalid. Each window still gives access to its part of the
    /// memory until it is unbound.
    ///
    /// # Errors
    ///
    /// Returns an error if the key is unknown or names a window.
    pub fn release_region(&mut self, lkey: LKey) -> Result<(), DestroyError> {
        let pd = self.shared.keys.release(lkey).map_err(DestroyError::Key)?;
        self.leave_pd(pd);
        Ok(())
    }

    /// Returns the attributes of a region.
    ///
    /// # Errors
    ///
    /// Returns an error if the key is unknown or names a window.
    pub fn query_region(&self, lkey: LKey) -> Result<RegionAttributes, KeyError> {
        self.shared.keys.region(lkey).map(|(_, region)| region)
    }

    /// Creates an unbound memory window.
    ///
    /// # Errors
    ///
    /// Returns an error if the protection domain does not exist or all keys are in use.
    pub fn allocate_window(&mut self, pd: PdId, window_type: WindowType) -> Result<RKey, RegisterError> {
        if !self.pds.contains(pd) {
            return Err(RegisterError::UnknownProtectionDomain);
        }
        let key = self.shared.keys.allocate_window(&mut self.rng, pd, window_type)?;
        self.join_pd(pd);
        Ok(key)
    }

    /// Binds a type 1 window and returns its new key; the old key is invalid. A length of 0 unbinds the
    /// window.
    ///
    /// # Errors
    ///
    /// Returns an error if the window or region is unknown, in another protection domain, or lacks a right.
    pub fn bind_window(&mut self, pd: PdId, window: RKey, binding: &WindowBinding) -> Result<RKey, KeyError> {
        self.shared.keys.bind(window, None, pd, None, binding)
    }

    /// Returns the current key of a window, given any variant of its key. After a failed binding it differs
    /// from the key that the owner of the window expects.
    ///
    /// # Errors
    ///
    /// Returns an error if the key is unknown or names a region.
    pub fn window_key(&self, window: RKey) -> Result<RKey, KeyError> {
        self.shared.keys.window_key(window)
    }

    /// Removes a bound or unbound window.
    ///
    /// # Errors
    ///
    /// Returns an error if the key is unknown or names a region.
    pub fn deallocate_window(&mut self, window: RKey) -> Result<(), DestroyError> {
        if self.shared.keys.region(LKey(window.0)).is_ok() {
            return Err(DestroyError::Key(KeyError::PermissionDenied));
        }
        let pd = self.shared.keys.remove(window.0).map_err(DestroyError::Key)?;
        self.leave_pd(pd);
        Ok(())
    }

    /// Returns the number of keys in use.
    #[must_use]
    pub fn keys_in_use(&self) -> usize {
        self.shared.keys.len()
    }
}
