//! The verbs that post work requests.

use super::Engine;
use super::qp::Qp;
use crate::Instant;
use crate::ids::SrqId;
use crate::qp::{QpCore, QpState, QpType};
use crate::shared::Shared;
use crate::wr::{PostError, RecvWr, SendWr};
use roce_packet::Qpn;

/// Work requests.
impl Engine {
    /// Queues a send request. The next [`poll_transmit`](Self::poll_transmit) sends it.
    ///
    /// # Errors
    ///
    /// Returns an error if the queue pair cannot accept the request; nothing is queued then.
    #[inline]
    pub fn post_send(&mut self, now: Instant, qpn: Qpn, wr: &SendWr<'_>) -> Result<(), PostError> {
        self.set_now(now);
        let index = self.numbers.get(qpn.get()).ok_or(PostError::UnknownQp)?;
        let qp = self.qps.get_mut(index).ok_or(PostError::UnknownQp)?;
        qp.post_send(&mut self.shared, wr)?;
        self.schedule(index);
        Ok(())
    }

    /// Queues a list of send requests, in order.
    ///
    /// # Errors
    ///
    /// Returns the position of the first rejected request and the reason; the requests before it are queued.
    pub fn post_send_list(
        &mut self,
        now: Instant,
        qpn: Qpn,
        list: &[SendWr<'_>],
    ) -> Result<(), (usize, PostError)> {
        let Some((first, others)) = list.split_first() else { return Ok(()) };
        self.post_send(now, qpn, first).map_err(|error| (0, error))?;
        // Look up the queue pair once for all other requests. It is already scheduled.
        let qp = self.numbers.get(qpn.get()).and_then(|index| self.qps.get_mut(index));
        let qp = qp.ok_or((1, PostError::UnknownQp))?;
        for (position, wr) in (1..).zip(others) {
            qp.post_send(&mut self.shared, wr).map_err(|error| (position, error))?;
        }
        Ok(())
    }

    /// Queues a receive.
    ///
    /// # Errors
    ///
    /// Returns an error if the queue pair cannot accept the receive; nothing is queued then.
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
            qp.flush_receives(&mut self.shared);
        }
        Ok(())
    }

    /// Queues a receive in a shared receive queue.
    ///
    /// # Errors
    ///
    /// Returns an error if the queue cannot accept the receive; nothing is queued then.
    pub fn post_srq_recv(&mut self, srq: SrqId, wr: &RecvWr<'_>) -> Result<(), PostError> {
        self.shared.srqs.get_mut(srq.index()).ok_or(PostError::UnknownSrq)?.queue.push(wr)
    }
}

impl Qp {
    #[inline]
    fn post_send(&mut self, shared: &mut Shared, wr: &SendWr<'_>) -> Result<(), PostError> {
        let state = self.core.attr.state;
        if !state.accepts_send() {
            return Err(PostError::WrongState(state));
        }
        check_operation(&self.core, wr)?;
        self.halves.sq_mut().push(wr)?;
        if matches!(state, QpState::Err | QpState::Sqe) {
            self.flush_sends(shared);
        }
        Ok(())
    }
}

/// Checks that the transport supports the operation and that the queue pair can execute it.
fn check_operation(core: &QpCore, wr: &SendWr<'_>) -> Result<(), PostError> {
    if (core.qp_type == QpType::Ud) != wr.destination.is_some() {
        return Err(PostError::Destination);
    }
    if !wr.op.is_supported_by(core.qp_type) {
        return Err(PostError::UnsupportedOperation);
    }
    if wr.op.awaits_response() && core.attr.max_rd_atomic == 0 && core.attr.state != QpState::Err {
        return Err(PostError::NoReadAtomicResources);
    }
    if core.qp_type == QpType::Ud {
        let have = wr.payload.len();
        let limit = core.mtu() as u64;
        if have > limit {
            return Err(PostError::MessageTooLong { have, limit });
        }
    }
    Ok(())
}
