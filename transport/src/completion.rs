//! Completion queues and work completions.

use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;
use core::net::IpAddr;
use core::sync::atomic::{AtomicBool, Ordering};

use bitflags::bitflags;
use roce_packet::{ImmDt, Qpn};

use crate::ids::RKey;
use crate::reason::Rule;
pub use crate::status::{Cause, WcStatus};

/// The operation of a completion.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum WcOpcode {
    /// SEND, with or without immediate data or invalidate.
    #[default]
    Send,
    /// WRITE, with or without immediate data.
    RdmaWrite,
    /// READ.
    RdmaRead,
    /// COMPARE SWAP.
    CompareSwap,
    /// FETCH ADD.
    FetchAdd,
    /// ATOMIC WRITE.
    AtomicWrite,
    /// FLUSH.
    Flush,
    /// A bind of a memory window.
    BindWindow,
    /// A local invalidate.
    LocalInvalidate,
    /// A SEND arrived.
    Recv,
    /// A WRITE with immediate data arrived.
    RecvRdmaWithImm,
}

bitflags! {
    /// The optional contents of a completion. The bit values are those of libibverbs.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct WcFlags: u32 {
        /// The first 40 bytes of the buffer contain the GRH area (UD).
        const GRH = 1;
        /// [`Wc::imm`] is valid.
        const WITH_IMM = 2;
        /// [`Wc::invalidated`] is valid.
        const WITH_INV = 8;
    }
}

/// A work completion.
///
/// After an error only `wr_id`, `status`, `cause`, `qpn` and `src_qp` are valid.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wc {
    /// Identifier from the work request.
    pub wr_id: u64,
    /// The result.
    pub status: WcStatus,
    /// The cause of a failure, called `vendor_err` in libibverbs.
    pub cause: Cause,
    /// The operation.
    pub opcode: WcOpcode,
    /// Bytes received or read. For a UD receive, 40 more than the message.
    pub byte_len: u32,
    /// Immediate data, as the four bytes in the packet.
    pub imm: ImmDt,
    /// The key that the peer invalidated.
    pub invalidated: RKey,
    /// The local queue pair.
    pub qpn: Qpn,
    /// The sender's queue pair. After an error, the peer's queue pair for a connection, and 0 for UD.
    pub src_qp: Qpn,
    /// The valid optional contents.
    pub flags: WcFlags,
    /// The headers of a UD datagram, encoded in this field as RNICs do: 10 with an IPv4 header, 9 with an
    /// IPv6 header, and 0 with a GRH, which is RoCE v1. Bit 3 means a UDP header, the lower bits the network
    /// header.
    pub service_level: u8,
}

/// A work request that failed.
///
/// Its text names both ends of the connection, as far as they are known: the numbers of both queue pairs
/// after [`Wc::result`], and with [`ends`](Self::ends) their addresses as well.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "work request {} {} ended with {}, {:?}{}",
    .wc.wr_id,
    OfQueuePair(self),
    .wc.status.name(),
    .wc.cause,
    Because(self)
)]
pub struct WorkError {
    /// The completion of the work request.
    pub wc: Wc,
    /// The addresses of the queue pair and its peer. [`Engine::ends`](crate::Engine::ends) returns them.
    pub ends: Option<Ends>,
    /// The check that failed, or for a flushed request the check of the first failure of the queue pair.
    /// [`Engine::reason`](crate::Engine::reason) returns it.
    pub rule: Option<Rule>,
}

/// The addresses of the two ends of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ends {
    /// The local address.
    pub local: IpAddr,
    /// The address of the peer.
    pub remote: IpAddr,
}

/// The queue pair of a failed work request and its peer, for the text.
struct OfQueuePair<'a>(&'a WorkError);

impl fmt::Display for OfQueuePair<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let WorkError { wc, ends, .. } = self.0;
        let (own, peer) = (wc.qpn.get(), wc.src_qp.get());
        match (ends, peer) {
            (Some(Ends { local, remote }), _) => {
                write!(formatter, "of queue pair {own} at {local} towards queue pair {peer} at {remote}")
            }
            (None, 0) => write!(formatter, "of queue pair {own}"),
            (None, _) => write!(formatter, "of queue pair {own} towards queue pair {peer}"),
        }
    }
}

/// The check that failed, for the text.
struct Because<'a>(&'a WorkError);

impl fmt::Display for Because<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.0.rule, self.0.wc.cause) {
            (None, _) => Ok(()),
            (Some(rule), Cause::Flushed) => write!(formatter, " (the queue pair failed before: {rule})"),
            (Some(rule), _) => write!(formatter, " ({rule})"),
        }
    }
}

impl Wc {
    /// Returns this completion if the work request succeeded.
    ///
    /// # Errors
    ///
    /// Returns an error if the work request failed.
    pub const fn result(self) -> Result<Self, WorkError> {
        match self.status {
            WcStatus::Success => Ok(self),
            _ => Err(WorkError { wc: self, ends: None, rule: None }),
        }
    }
}

/// The completions that raise an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notify {
    /// The next completion.
    Next,
    /// The next completion that the sender solicited, or that failed.
    Solicited,
}

/// Tells whether polling a completion queue would return anything, without access to the engine: a thread
/// that polls an empty queue need not wait for another thread that runs the engine. Clones refer to the same
/// queue.
#[derive(Clone, Debug, Default)]
pub struct Occupancy(Arc<OwnLine>);

/// A flag alone in its cache line, and in the pair of lines that a processor fetches together. Otherwise the
/// flag of another engine, which another thread uses, may be adjacent in memory, and both change with each
/// completion.
#[derive(Debug, Default)]
#[repr(align(128))]
struct OwnLine(AtomicBool);

impl Occupancy {
    /// Tells whether [`Engine::poll_cq`](crate::Engine::poll_cq) would return completions or an error.
    #[inline]
    #[must_use]
    pub fn is_occupied(&self) -> bool {
        self.0.0.load(Ordering::Acquire)
    }

    #[inline]
    fn set(&self, occupied: bool) {
        self.0.0.store(occupied, Ordering::Release);
    }
}

/// The effects of queueing a completion.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Pushed {
    /// Whether the queue was armed for this completion.
    pub(crate) notify: bool,
    /// Whether the queue overflowed for the first time.
    pub(crate) overflowed: bool,
    /// Whether this completion is lost, because the queue is full or has overflowed before.
    pub(crate) is_lost: bool,
}

/// A bounded queue of completions. Its ring is allocated once.
#[derive(Debug)]
pub(crate) struct CompletionQueue {
    ring: Vec<Wc>,
    head: usize,
    len: usize,
    armed: Option<Notify>,
    overflowed: bool,
    pub(crate) occupancy: Occupancy,
    /// Number of queue pairs that complete into this queue. The queue cannot be destroyed unless it is 0.
    pub(crate) users: usize,
}

impl CompletionQueue {
    pub(crate) fn new(capacity: usize) -> Self {
        let ring = alloc::vec![Wc::default(); capacity];
        let occupancy = Occupancy::default();
        Self { ring, head: 0, len: 0, armed: None, overflowed: false, occupancy, users: 0 }
    }

    pub(crate) fn capacity(&self) -> usize {
        self.ring.len()
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn overflowed(&self) -> bool {
        self.overflowed
    }

    pub(crate) fn arm(&mut self, notify: Notify) {
        // A request for the next completion includes solicited ones, so a later request does not narrow it.
        if self.armed != Some(Notify::Next) {
            self.armed = Some(notify);
        }
    }

    /// Queues the result of `make`. It is constructed in place, because copying a recently written value
    /// stalls on the writes.
    #[inline]
    pub(crate) fn push(&mut self, solicited: bool, make: impl FnOnce() -> Wc) -> Pushed {
        if self.overflowed || self.len == self.ring.len() {
            let first = !self.overflowed;
            self.overflowed = true;
            // Polling returns the error from now on. A thread that waits for a completion is notified, so
            // that it polls.
            self.occupancy.set(true);
            let notify = first && self.armed.take().is_some();
            return Pushed { notify, overflowed: first, is_lost: true };
        }
        let at = self.wrap(self.head + self.len);
        let mut is_success = false;
        if let Some(slot) = self.ring.get_mut(at) {
            *slot = make();
            is_success = slot.status == WcStatus::Success;
        }
        if self.len == 0 {
            self.occupancy.set(true);
        }
        self.len += 1;
        let notify = match self.armed {
            Some(Notify::Next) => true,
            Some(Notify::Solicited) => solicited || !is_success,
            None => false,
        };
        if notify {
            self.armed = None;
        }
        Pushed { notify, overflowed: false, is_lost: false }
    }

    /// Moves up to `out.len()` completions into `out`, oldest first.
    pub(crate) fn poll(&mut self, out: &mut [Wc]) -> usize {
        let count = out.len().min(self.len);
        for target in out.iter_mut().take(count) {
            if let Some(wc) = self.ring.get(self.head) {
                *target = *wc;
            }
            self.head = self.wrap(self.head + 1);
        }
        self.len -= count;
        if count > 0 {
            self.show_occupancy();
        }
        count
    }

    fn show_occupancy(&self) {
        self.occupancy.set(self.len > 0 || self.overflowed);
    }

    /// Changes the capacity and keeps the completions. Returns `false` if they do not fit.
    pub(crate) fn resize(&mut self, capacity: usize) -> bool {
        if capacity < self.len {
            return false;
        }
        let mut kept = alloc::vec![Wc::default(); self.len];
        let count = self.poll(&mut kept);
        self.ring = kept;
        self.ring.resize(capacity, Wc::default());
        self.head = 0;
        self.len = count;
        self.show_occupancy();
        true
    }

    /// Discards the completions of a queue pair that was reset.
    pub(crate) fn discard(&mut self, qpn: Qpn) {
        let mut kept = alloc::vec![Wc::default(); self.len];
        let count = self.poll(&mut kept);
        for wc in kept.iter().take(count).filter(|wc| wc.qpn != qpn) {
            let at = self.wrap(self.head + self.len);
            if let Some(slot) = self.ring.get_mut(at) {
                *slot = *wc;
                self.len += 1;
            }
        }
        self.show_occupancy();
    }

    fn wrap(&self, position: usize) -> usize {
        if position >= self.ring.len() { position - self.ring.len() } else { position }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn occupancy_follows_what_polling_would_give() {
        let wc = |qpn| Wc { qpn: Qpn::new(qpn), ..Wc::default() };
        let mut queue = CompletionQueue::new(2);
        let occupancy = queue.occupancy.clone();
        assert!(!occupancy.is_occupied());
        queue.push(false, || wc(7));
        queue.push(false, || wc(8));
        let mut out = [Wc::default()];
        assert_eq!((queue.poll(&mut out), occupancy.is_occupied()), (1, true));
        queue.discard(Qpn::new(7));
        assert!(occupancy.is_occupied());
        queue.discard(Qpn::new(8));
        assert!(!occupancy.is_occupied());
        queue.push(false, || wc(7));
        assert!(queue.resize(1) && occupancy.is_occupied());
        assert_eq!((queue.poll(&mut out), occupancy.is_occupied()), (1, false));
        // A queue that lost a completion has an error to return.
        queue.push(false, || wc(7));
        assert!(queue.push(false, || wc(7)).overflowed);
        queue.poll(&mut out);
        assert!(occupancy.is_occupied());
    }

    #[test]
    fn the_lists_are_complete_and_in_order() {
        for (number, status) in WcStatus::ALL.into_iter().enumerate() {
            assert_eq!(status as usize, number, "{status:?}");
        }
        let names: Vec<_> = WcStatus::ALL.into_iter().map(WcStatus::name).collect();
        let expected = "SUCCESS LOC_LEN_ERR LOC_QP_OP_ERR LOC_EEC_OP_ERR LOC_PROT_ERR WR_FLUSH_ERR MW_BIND_ERR \
                        BAD_RESP_ERR LOC_ACCESS_ERR REM_INV_REQ_ERR REM_ACCESS_ERR REM_OP_ERR RETRY_EXC_ERR \
                        RNR_RETRY_EXC_ERR LOC_RDD_VIOL_ERR REM_INV_RD_REQ_ERR REM_ABORT_ERR INV_EECN_ERR \
                        INV_EEC_STATE_ERR FATAL_ERR RESP_TIMEOUT_ERR GENERAL_ERR TM_ERR TM_RNDV_INCOMPLETE";
        assert_eq!(names, expected.split(' ').collect::<Vec<_>>());
        for (number, cause) in Cause::ALL.into_iter().enumerate() {
            assert_eq!(cause as usize, number, "{cause:?}");
            // A new cause needs an arm here and an entry in the list.
            match cause {
                Cause::None
                | Cause::Flushed
                | Cause::AckTimeout
                | Cause::SequenceRetries
                | Cause::RnrRetries
                | Cause::NakInvalidRequest
                | Cause::NakRemoteAccess
                | Cause::NakRemoteOperational
                | Cause::NakUnknown
                | Cause::UnexpectedResponse
                | Cause::ResponseLength
                | Cause::LocalKeyUnknown
                | Cause::LocalKeyWrongDomain
                | Cause::LocalKeyPermission
                | Cause::LocalKeyRange
                | Cause::MessageTooLong
                | Cause::RemoteInvalidate
                | Cause::RemoteAccessRefused
                | Cause::RemoteRequestInvalid
                | Cause::WindowBind
                | Cause::LocalInvalidate
                | Cause::CompletionQueueOverflow => {}
            }
        }
    }
}
