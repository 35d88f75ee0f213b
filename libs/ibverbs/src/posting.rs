//! Work requests: conversion of the application's chains into requests for the engine.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use arrayvec::ArrayVec;
use roce::transport::{MAX_INLINE, MAX_SGE};
use roce::verbs::{
    ImmDt, LKey, Payload, Qpn, RKey, Raw, RecvWr, SendFlags, SendOp, SendWr, Sge, UdDestination, VerbsError,
    WindowBinding,
};
use roce_fault::verbs::Verb;

use crate::abi::{
    IBV_SEND_FENCE, IBV_SEND_INLINE, IBV_SEND_SIGNALED, IBV_SEND_SOLICITED, IBV_WR_ATOMIC_CMP_AND_SWP,
    IBV_WR_ATOMIC_FETCH_AND_ADD, IBV_WR_ATOMIC_WRITE, IBV_WR_BIND_MW, IBV_WR_LOCAL_INV, IBV_WR_RDMA_READ,
    IBV_WR_RDMA_WRITE, IBV_WR_RDMA_WRITE_WITH_IMM, IBV_WR_SEND, IBV_WR_SEND_WITH_IMM, IBV_WR_SEND_WITH_INV,
    ibv_mw, ibv_mw_bind_info, ibv_recv_wr, ibv_send_wr, ibv_sge,
};
use crate::address::destination;
use crate::answer::{Errno, put, status_or};
use crate::memory::access;

/// Number of requests that one call passes to the engine.
const CHUNK: usize = 16;

/// The bits of a key that its owner chooses.
const VARIANT: u32 = 0xff;

/// Position of a request's data in [`Requests`].
enum Data {
    Elements(Range<usize>),
    Inline(Range<usize>),
}

/// Addressing of the requests of a queue pair.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Addressing {
    /// Requests go to the peer of the connection.
    Connection,
    /// Each request has its own destination (UD).
    Datagram,
    /// Each request names a shared receive queue of the peer (XRC).
    SharedReceiveQueue,
}

/// A request of the application.
struct Request {
    wr_id: u64,
    op: SendOp,
    flags: SendFlags,
    data: Data,
    destination: Option<UdDestination>,
    remote_srqn: u32,
}

/// Requests on their way from the application to the engine. Their memory is reused for later requests.
#[derive(Default)]
pub(crate) struct Requests {
    list: Vec<Request>,
    elements: Vec<Sge>,
    bytes: Vec<u8>,
    /// The reason why the requests under construction must not be posted.
    pub(crate) failure: Option<Errno>,
}

impl Requests {
    pub(crate) fn clear(&mut self) {
        self.list.clear();
        self.elements.clear();
        self.bytes.clear();
        self.failure = None;
    }

    /// Adds a request without data.
    pub(crate) fn push(&mut self, wr_id: u64, op: SendOp, send_flags: u32) {
        let flags = SendFlags::from_bits_truncate(send_flags);
        let data = Data::Elements(self.elements.len()..self.elements.len());
        self.list.push(Request { wr_id, op, flags, data, destination: None, remote_srqn: 0 });
    }

    /// Sets the destination of the last request.
    pub(crate) fn set_destination(&mut self, destination: UdDestination) {
        if let Some(request) = self.list.last_mut() {
            request.destination = Some(destination);
        }
    }

    /// Sets the shared receive queue for the last request.
    pub(crate) fn set_srq(&mut self, number: u32) {
        if let Some(request) = self.list.last_mut() {
            request.remote_srqn = number;
        }
    }

    /// Adds memory to the last request.
    pub(crate) fn add_elements(&mut self, elements: impl Iterator<Item = Sge>) -> Result<(), Errno> {
        let begin = self.elements.len();
        self.elements.extend(elements.take(MAX_SGE + 1));
        let range = begin..self.elements.len();
        if range.len() > MAX_SGE {
            return Err(Errno::INVALID);
        }
        if let Some(request) = self.list.last_mut() {
            request.data = Data::Elements(range);
        }
        Ok(())
    }

    /// Copies the inline data of the last request.
    ///
    /// # Safety
    ///
    /// The buffers are readable.
    pub(crate) unsafe fn add_inline(
        &mut self,
        buffers: impl Iterator<Item = (*const c_void, usize)>,
    ) -> Result<(), Errno> {
        let begin = self.bytes.len();
        for (address, length) in buffers {
            if self.bytes.len() - begin + length > MAX_INLINE {
                return Err(Errno::NO_MEMORY);
            }
            if length > 0 {
                // SAFETY: the caller's promise.
                self.bytes.extend_from_slice(unsafe { std::slice::from_raw_parts(address.cast(), length) });
            }
        }
        if let Some(request) = self.list.last_mut() {
            request.data = Data::Inline(begin..self.bytes.len());
        }
        Ok(())
    }

    fn work_request(&self, request: &Request) -> SendWr<'_> {
        let payload = match &request.data {
            Data::Elements(range) => Payload::Elements(&self.elements[range.clone()]),
            Data::Inline(range) => Payload::Inline(&self.bytes[range.clone()]),
        };
        let Request { wr_id, op, flags, destination, remote_srqn, .. } = *request;
        SendWr { wr_id, op, flags, payload, destination, remote_srqn }
    }

    /// Posts all requests.
    ///
    /// # Errors
    ///
    /// Fails with the index of the first request that was not accepted; those before it were.
    pub(crate) fn post(&self, raw: Raw<'_>, qpn: Qpn) -> Result<(), (usize, Errno)> {
        if let [request] = &self.list[..] {
            return raw.post_send(qpn, &self.work_request(request)).map_err(|error| (0, error.into()));
        }
        for (index, part) in self.list.chunks(CHUNK).enumerate() {
            let chain: ArrayVec<SendWr<'_>, CHUNK> =
                part.iter().map(|request| self.work_request(request)).collect();
            raw.post_send_list(qpn, &chain).map_err(|error| {
                let position = if let VerbsError::PostList { position, .. } = error { position } else { 0 };
                (index * CHUNK + position, error.into())
            })?;
        }
        Ok(())
    }

    /// Converts one request of a chain.
    ///
    /// # Safety
    ///
    /// The pointers in the request are valid.
    unsafe fn take(&mut self, wr: &ibv_send_wr, addressing: Addressing) -> Result<(), Errno> {
        const KNOWN: u32 = IBV_SEND_FENCE | IBV_SEND_SIGNALED | IBV_SEND_SOLICITED | IBV_SEND_INLINE;
        if wr.send_flags & !KNOWN != 0 {
            return Err(Errno::INVALID);
        }
        let count = element_count(wr.num_sge)?;
        // SAFETY: the caller's promise.
        let op = unsafe { operation(wr)? };
        self.push(wr.wr_id, op, wr.send_flags & !IBV_SEND_INLINE);
        // SAFETY: the union holds this part for UD, and the list has `count` elements.
        let taken = unsafe {
            if addressing == Addressing::SharedReceiveQueue {
                self.set_srq(wr.remote_srqn);
            }
            if addressing == Addressing::Datagram {
                let ud = wr.wr.ud;
                self.set_destination(destination(ud.ah, ud.remote_qpn, ud.remote_qkey)?);
            }
            let elements = (0..count).map(|index| *wr.sg_list.add(index));
            if wr.send_flags & IBV_SEND_INLINE != 0 {
                self.add_inline(
                    elements.map(|element| (element.addr as *const c_void, element.length as usize)),
                )
            } else {
                self.add_elements(elements.map(element_of))
            }
        };
        if taken.is_err() {
            self.list.pop();
        }
        taken
    }
}

fn element_count(count: c_int) -> Result<usize, Errno> {
    let count = usize::try_from(count).map_err(|_| Errno::INVALID)?;
    if count > MAX_SGE { Err(Errno::INVALID) } else { Ok(count) }
}

pub(crate) fn element_of(element: ibv_sge) -> Sge {
    Sge { addr: element.addr, length: element.length, lkey: LKey(element.lkey) }
}

/// Converts immediate data of an application, which are the four bytes of the wire.
pub(crate) const fn immediate(data: u32) -> ImmDt {
    ImmDt(data.to_ne_bytes())
}

/// Returns the operation of a request.
///
/// # Safety
///
/// The unions of the request match its opcode, and its windows and regions exist.
unsafe fn operation(wr: &ibv_send_wr) -> Result<SendOp, Errno> {
    // SAFETY: these parts of the unions consist of numbers and pointers, for which every bit pattern is
    // valid.
    let (rdma, atomic, bind) = unsafe { (wr.wr.rdma, wr.wr.atomic, wr.special.bind_mw) };
    let (remote_addr, rkey) = (rdma.remote_addr, RKey(rdma.rkey));
    Ok(match wr.opcode {
        IBV_WR_SEND => SendOp::Send,
        IBV_WR_SEND_WITH_IMM => SendOp::SendWithImm(immediate(wr.imm_data)),
        IBV_WR_SEND_WITH_INV => SendOp::SendWithInvalidate(RKey(wr.imm_data)),
        IBV_WR_RDMA_WRITE => SendOp::Write { remote_addr, rkey },
        IBV_WR_RDMA_WRITE_WITH_IMM => SendOp::WriteWithImm { remote_addr, rkey, imm: immediate(wr.imm_data) },
        IBV_WR_RDMA_READ => SendOp::Read { remote_addr, rkey },
        IBV_WR_ATOMIC_WRITE => SendOp::AtomicWrite { remote_addr, rkey },
        IBV_WR_ATOMIC_CMP_AND_SWP => SendOp::CompareSwap {
            remote_addr: atomic.remote_addr,
            rkey: RKey(atomic.rkey),
            compare: atomic.compare_add,
            swap: atomic.swap,
        },
        IBV_WR_ATOMIC_FETCH_AND_ADD => SendOp::FetchAdd {
            remote_addr: atomic.remote_addr,
            rkey: RKey(atomic.rkey),
            add: atomic.compare_add,
        },
        IBV_WR_LOCAL_INV => SendOp::LocalInvalidate { rkey: RKey(wr.imm_data) },
        IBV_WR_BIND_MW => {
            // SAFETY: the caller's promise.
            unsafe { binding(bind.mw, bind.rkey, &bind.bind_info)? }
        }
        _ => return Err(Errno::UNSUPPORTED),
    })
}

/// The requests of a queue pair. One thread at a time owns them: for one call, or from `ibv_wr_start` to
/// `ibv_wr_complete`.
#[derive(Default)]
pub(crate) struct SendQueue {
    is_taken: AtomicBool,
    requests: UnsafeCell<Requests>,
}

// SAFETY: `requests` is used only between `lock` and `unlock`, by one thread at a time.
unsafe impl Sync for SendQueue {}

/// Unlocks the queue at the end of a call, even if it panics.
pub(crate) struct Unlock<'a>(&'a SendQueue);

impl Drop for Unlock<'_> {
    fn drop(&mut self) {
        self.0.unlock();
    }
}

impl SendQueue {
    /// Waits until no other thread posts here. [`Self::unlock`] must follow, possibly in another call.
    pub(crate) fn lock(&self) {
        while self.is_taken.compare_exchange_weak(false, true, Ordering::Acquire, Ordering::Relaxed).is_err()
        {
            std::thread::yield_now();
        }
    }

    pub(crate) fn unlock(&self) {
        self.is_taken.store(false, Ordering::Release);
    }

    /// Returns a guard for a call that ends the lock of [`Self::lock`].
    pub(crate) fn unlock_at_end(&self) -> Unlock<'_> {
        Unlock(self)
    }

    /// Returns the requests.
    ///
    /// # Safety
    ///
    /// The caller is between [`Self::lock`] and [`Self::unlock`] and holds no other reference to them.
    #[expect(clippy::mut_from_ref, reason = "the lock gives exclusive use")]
    pub(crate) unsafe fn requests(&self) -> &mut Requests {
        // SAFETY: the caller's promise.
        unsafe { &mut *self.requests.get() }
    }

    /// Posts a request without data.
    pub(crate) fn post_one(
        &self,
        raw: Raw<'_>,
        qpn: Qpn,
        wr_id: u64,
        op: SendOp,
        send_flags: u32,
    ) -> Result<(), Errno> {
        self.lock();
        let _unlock = self.unlock_at_end();
        // SAFETY: the lock was taken just now.
        let requests = unsafe { self.requests() };
        requests.clear();
        requests.push(wr_id, op, send_flags);
        requests.post(raw, qpn).map_err(|(_, errno)| errno)
    }

    /// Posts a chain. After an error, `bad` points to the request that was not accepted; those before it
    /// were.
    ///
    /// # Safety
    ///
    /// `list` is null or a chain of requests, and `bad` is null or has room for a pointer.
    pub(crate) unsafe fn post_chain(
        &self,
        raw: Raw<'_>,
        qpn: Qpn,
        addressing: Addressing,
        list: *mut ibv_send_wr,
        bad: *mut *mut ibv_send_wr,
    ) -> Result<(), Errno> {
        self.lock();
        let _unlock = self.unlock_at_end();
        // SAFETY: the lock was taken just now.
        let requests = unsafe { self.requests() };
        requests.clear();
        let mut next = list;
        let mut built = Ok(());
        // SAFETY: the caller's chain.
        while let Some(wr) = unsafe { next.as_ref() } {
            // SAFETY: as above.
            built = unsafe { requests.take(wr, addressing) };
            if built.is_err() {
                break;
            }
            next = wr.next;
        }
        let posted = requests.post(raw, qpn);
        let (failed, errno) = match (posted, built) {
            (Ok(()), Ok(())) => return Ok(()),
            (Ok(()), Err(errno)) => (next, errno),
            (Err((index, errno)), _) => {
                // SAFETY: the chain has more than `index` requests.
                let failed = (0..index).fold(list, |wr, _| unsafe { (*wr).next });
                (failed, errno)
            }
        };
        // SAFETY: the caller has room for the pointer, or passes null.
        let _ = unsafe { put(bad, failed) };
        Err(errno)
    }
}

/// Runs a call that posts a chain. If a fault on demand refuses the call, nothing is posted and `bad` points
/// to the first request.
///
/// # Safety
///
/// `bad` is null or has room for a pointer.
#[inline]
pub(crate) unsafe fn chain<T>(
    verb: Verb,
    (list, bad): (*mut T, *mut *mut T),
    body: impl FnOnce() -> Result<(), Errno>,
) -> c_int {
    let refused = || {
        // SAFETY: the caller's promise.
        let _ = unsafe { put(bad, list) };
    };
    status_or(verb, refused, body)
}

/// Posts a chain of receives, one by one. After an error, `bad` points to the receive that was not accepted.
///
/// # Safety
///
/// `list` is null or a chain of receives, and `bad` is null or has room for a pointer.
#[inline]
pub(crate) unsafe fn post_receives(
    list: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
    mut post: impl FnMut(&RecvWr<'_>) -> Result<(), VerbsError>,
) -> Result<(), Errno> {
    let mut next = list;
    // SAFETY: the caller's chain.
    while let Some(wr) = unsafe { next.as_ref() } {
        let posted = element_count(wr.num_sge).and_then(|count| {
            // SAFETY: the list of a receive has `num_sge` elements.
            let elements = (0..count).map(|index| element_of(unsafe { *wr.sg_list.add(index) }));
            let elements: ArrayVec<Sge, MAX_SGE> = elements.collect();
            Ok(post(&RecvWr { wr_id: wr.wr_id, elements: &elements })?)
        });
        if let Err(errno) = posted {
            // SAFETY: the caller has room for the pointer, or passes null.
            let _ = unsafe { put(bad, next) };
            return Err(errno);
        }
        next = wr.next;
    }
    Ok(())
}

/// Returns a request that binds a window. The application's object gets its new key at once, as with hardware
/// drivers. The application chooses the variant, which is the low 8 bits of `new_rkey`. The other bits belong
/// to the window and are ignored, as with Soft-RoCE and mlx5.
///
/// # Safety
///
/// The pointers are a window and a region of the application.
pub(crate) unsafe fn binding(
    mw: *mut ibv_mw,
    new_rkey: u32,
    info: &ibv_mw_bind_info,
) -> Result<SendOp, Errno> {
    // SAFETY: the caller's promise.
    let (window, region) = unsafe { (mw.as_mut().ok_or(Errno::INVALID)?, info.mr.as_ref()) };
    let lkey = match region {
        Some(region) => region.lkey,
        None if info.length == 0 => 0,
        None => return Err(Errno::INVALID),
    };
    let binding = WindowBinding {
        region: LKey(lkey),
        addr: info.addr,
        len: usize::try_from(info.length).map_err(|_| Errno::INVALID)?,
        access: access(info.mw_access_flags)?,
    };
    let old = window.rkey;
    window.rkey = old & !VARIANT | new_rkey & VARIANT;
    Ok(SendOp::BindWindow { window: RKey(old), new_rkey: RKey(window.rkey), binding })
}
