//! The two rings of a stream, and their work requests.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ffi::c_int;
use std::os::fd::RawFd;
use std::ptr::NonNull;
use std::sync::Arc;

use roce::verbs::{
    ImmDt, LKey, Notify, Payload, Qpn, RKey, RecvWr, SendFlags, SendOp, SendWr, Sge, Wc, WcFlags, WcOpcode,
    WcStatus,
};

use super::descriptors::last_errno;
use super::flow::{Receiving, Sending};
use super::settings::Options;
use super::wire::{Hello, Mapping, Message, Target};
use crate::abi::{ibv_comp_channel, ibv_cq, ibv_mr, ibv_qp_cap, ibv_qp_init_attr, rdma_cm_id};
use crate::answer::Errno;
use crate::channel::{channel_of, ibv_create_comp_channel, ibv_destroy_comp_channel};
use crate::context::{Open, Pointer};
use crate::cq::{cq_of, ibv_create_cq, ibv_destroy_cq};
use crate::memory::{ibv_dereg_mr, ibv_reg_mr};
use crate::qp::qp_of;
use crate::rdmacm::queue_pairs::{create_qp, rdma_destroy_qp};

/// Number of entries in which the peer announces memory.
const ENTRIES: usize = 2;
/// Alignment of the memory that the peer writes.
const ALIGNMENT: usize = 64;
/// `IBV_ACCESS_LOCAL_WRITE` and `IBV_ACCESS_REMOTE_WRITE`.
const WRITABLE: c_int = 1 | 2;
/// Maximum number of completions per poll.
const BURST: usize = 16;
/// Marks requests without data.
const CONTROL: u64 = 1 << 32;

/// Memory that a device reads or writes.
pub(super) struct Memory {
    pointer: NonNull<u8>,
    layout: Layout,
    region: Pointer<ibv_mr>,
}

// SAFETY: the memory belongs to this object alone.
unsafe impl Send for Memory {}

impl Memory {
    /// # Safety
    ///
    /// The identifier is alive and has a protection domain.
    pub(super) unsafe fn new(id: *mut rdma_cm_id, len: usize) -> Result<Self, Errno> {
        let layout = Layout::from_size_align(len.max(1), ALIGNMENT).map_err(|_| Errno::INVALID)?;
        // SAFETY: the layout is not empty; the caller's promise.
        unsafe {
            let pointer = NonNull::new(alloc_zeroed(layout)).ok_or(Errno::NO_MEMORY)?;
            let region = ibv_reg_mr((*id).pd, pointer.as_ptr().cast(), len, WRITABLE);
            if region.is_null() {
                dealloc(pointer.as_ptr(), layout);
                return Err(last_errno());
            }
            Ok(Self { pointer, layout, region: Pointer(region) })
        }
    }

    pub(super) fn at(&self, offset: usize) -> *mut u8 {
        debug_assert!(offset <= self.layout.size());
        self.pointer.as_ptr().wrapping_add(offset)
    }

    pub(super) fn lkey(&self) -> LKey {
        // SAFETY: the region lives as long as the memory.
        LKey(unsafe { (*self.region.0).lkey })
    }

    /// Returns the description that the peer needs to write there.
    fn target(&self, offset: usize, length: usize) -> Target {
        // SAFETY: the region lives as long as the memory.
        let key = unsafe { (*self.region.0).rkey };
        Target { address: self.at(offset) as u64, key, length: u32::try_from(length).unwrap_or(u32::MAX) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the region and the memory of `new`, which nothing uses after the queue pair is destroyed.
        unsafe {
            if ibv_dereg_mr(self.region.0) == 0 {
                dealloc(self.pointer.as_ptr(), self.layout);
            }
        }
    }
}

/// A completion queue with its channel.
pub(super) struct Queue {
    channel: Pointer<ibv_comp_channel>,
    pub(super) cq: Pointer<ibv_cq>,
}

impl Queue {
    /// # Safety
    ///
    /// The identifier is alive and bound to a device.
    pub(super) unsafe fn new(id: *mut rdma_cm_id, completions: c_int) -> Result<Self, Errno> {
        // SAFETY: the caller's promise; what the calls of the library return is checked.
        unsafe {
            let channel = ibv_create_comp_channel((*id).verbs);
            if channel.is_null() {
                return Err(last_errno());
            }
            let mut queue = Self { channel: Pointer(channel), cq: Pointer(std::ptr::null_mut()) };
            queue.cq = Pointer(ibv_create_cq((*id).verbs, completions, id.cast(), channel, 0));
            if queue.cq.0.is_null() { Err(last_errno()) } else { Ok(queue) }
        }
    }

    pub(super) fn descriptor(&self) -> RawFd {
        // SAFETY: the channel lives as long as this object.
        unsafe { (*self.channel.0).fd }
    }

    /// Requests an event for the next completion, after removing earlier events.
    pub(super) fn arm(&self, open: &Open) -> Result<(), Errno> {
        // SAFETY: the queue and its channel live as long as this object.
        unsafe {
            let channel = channel_of(self.channel.0)?;
            while channel.events.try_event().is_some() {}
            Ok(open.raw().request_notification(&cq_of(self.cq.0)?.raw, Notify::Next)?)
        }
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        // SAFETY: the objects of `new`; null pointers are refused.
        unsafe {
            ibv_destroy_cq(self.cq.0);
            ibv_destroy_comp_channel(self.channel.0);
        }
    }
}

/// The reason why a stream ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum News {
    Disconnect,
    Shutdown,
    Failure,
}

/// The data part of an rsocket. The queue pair is destroyed before it.
pub(super) struct Stream {
    open: Arc<Open>,
    qpn: Qpn,
    queue: Queue,
    sender: Memory,
    receiver: Memory,
    entries: Memory,
    depth: u16,
    size: usize,
    sending: Sending,
    receiving: Receiving,
    /// The index of the current entry, whose remaining memory this end writes next.
    present: usize,
    /// Maximum number of mappings that the peer may announce here, behind the entries.
    mappings: usize,
    /// The memory of the peer for announcements of memory, and of mappings.
    peer: Target,
    pub(super) peer_mappings: Target,
    peer_entry: u32,
    is_peer_big_endian: bool,
}

impl Stream {
    /// # Safety
    ///
    /// The identifier is alive and bound to a device.
    pub(super) unsafe fn new(id: *mut rdma_cm_id, options: &Options) -> Result<Self, Errno> {
        // SAFETY: the caller's promise; what the calls of the library return is checked.
        unsafe {
            let (send_depth, depth) = (options.send_depth, options.receive_depth);
            let queue = Queue::new(id, c_int::from(send_depth) + c_int::from(depth))?;
            let mut wanted: ibv_qp_init_attr = std::mem::zeroed();
            (wanted.send_cq, wanted.recv_cq) = (queue.cq.0, queue.cq.0);
            wanted.qp_type = crate::abi::IBV_QPT_RC;
            wanted.sq_sig_all = 1;
            wanted.cap = ibv_qp_cap {
                max_send_wr: send_depth.into(),
                max_recv_wr: depth.into(),
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: Mapping::LEN as u32,
            };
            let size = options.receive_bytes & !1;
            let sender = Memory::new(id, options.send_bytes)?;
            let receiver = Memory::new(id, size)?;
            let mappings = usize::from(options.mappings);
            let entries = Memory::new(id, ENTRIES * Target::LEN + mappings * Mapping::LEN)?;
            create_qp(id, (*id).pd, &mut wanted)?;
            let qp = qp_of((*id).qp)?;
            let stream = Self {
                open: Arc::clone(&qp.open),
                qpn: qp.qpn,
                queue,
                sender,
                receiver,
                entries,
                depth,
                size,
                sending: Sending::new(options.send_bytes, send_depth),
                receiving: Receiving::new(size, depth),
                present: 0,
                mappings,
                peer: Target::default(),
                peer_mappings: Target::default(),
                peer_entry: 1,
                is_peer_big_endian: false,
            };
            let prepared = (0..depth).try_for_each(|_| stream.post_receive()).and_then(|()| stream.arm());
            if let Err(errno) = prepared {
                // Destroyed before its queue.
                rdma_destroy_qp(id);
                return Err(errno);
            }
            Ok(stream)
        }
    }

    pub(super) fn descriptor(&self) -> RawFd {
        self.queue.descriptor()
    }

    pub(super) fn hello(&self) -> Hello {
        Hello {
            is_big_endian: cfg!(target_endian = "big"),
            credits: self.depth,
            mappings: self.mappings as u16,
            entries: self.entries.target(0, ENTRIES),
            first: self.receiver.target(0, self.size / 2),
        }
    }

    /// Applies the private data of the peer.
    pub(super) fn meet(&mut self, hello: &Hello) {
        self.peer = hello.entries;
        let behind = u64::from(hello.entries.length) * Target::LEN as u64;
        let address = hello.entries.address.wrapping_add(behind);
        self.peer_mappings = Target { address, length: hello.mappings.into(), ..hello.entries };
        self.peer_entry = 1 % hello.entries.length;
        self.is_peer_big_endian = hello.is_big_endian;
        self.sending.allow(hello.credits);
        self.write_entry(0, hello.first);
    }

    fn entry(&self, index: usize) -> Target {
        // SAFETY: the entry is inside. The peer writes it before the message that announces it, and it is not
        // read earlier.
        let bytes =
            unsafe { self.entries.at(index * Target::LEN).cast::<[u8; Target::LEN]>().read_volatile() };
        Target::of_entry(&bytes)
    }

    fn write_entry(&self, index: usize, entry: Target) {
        let bytes = entry.entry(cfg!(target_endian = "big"));
        // SAFETY: the entry is inside; the peer does not write an entry that is in use.
        unsafe { self.entries.at(index * Target::LEN).cast::<[u8; Target::LEN]>().write_volatile(bytes) };
    }

    fn post_receive(&self) -> Result<(), Errno> {
        Ok(self.open.raw().post_recv(self.qpn, &RecvWr { wr_id: 0, elements: &[] })?)
    }

    fn post(&self, wr_id: u64, to: Target, message: Message, payload: Payload<'_>) -> Result<(), Errno> {
        let (remote_addr, rkey) = (to.address, RKey(to.key));
        let op = SendOp::WriteWithImm { remote_addr, rkey, imm: ImmDt(message.immediate()) };
        self.post_op(wr_id, op, payload)
    }

    fn post_op(&self, wr_id: u64, op: SendOp, payload: Payload<'_>) -> Result<(), Errno> {
        let flags = SendFlags::SIGNALED;
        let wr = SendWr { wr_id, op, flags, payload, destination: None, remote_srqn: 0 };
        Ok(self.open.raw().post_send(self.qpn, &wr)?)
    }

    pub(super) fn can_send(&self) -> bool {
        self.sending.room(self.entry(self.present).length as usize) > 0
    }

    /// Sends some of these bytes and returns their number.
    pub(super) fn send(&mut self, data: &[u8]) -> Result<usize, Errno> {
        // Read once, because the peer can write the entry at any time.
        let to = self.entry(self.present);
        let bytes = data.len().min(self.sending.room(to.length as usize));
        if bytes == 0 {
            return Ok(0);
        }
        let at = self.sending.take(bytes);
        // SAFETY: these bytes of the ring are free.
        unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), self.sender.at(at), bytes) };
        let length = u32::try_from(bytes).map_err(|_| Errno::INVALID)?;
        let left =
            Target { address: to.address.wrapping_add(length.into()), length: to.length - length, ..to };
        // Written before the message, because the peer may overwrite the entry once it has the message.
        self.write_entry(self.present, left);
        if left.length == 0 {
            self.present = (self.present + 1) % ENTRIES;
        }
        let element = Sge { addr: self.sender.at(at) as u64, length, lkey: self.sender.lkey() };
        self.post(length.into(), to, Message::Data(length), Payload::Elements(&[element]))?;
        Ok(bytes)
    }

    /// Returns whether a mapping can be announced.
    pub(super) fn can_announce(&self) -> bool {
        self.sending.has_credit()
    }

    /// Writes an entry of a mapping into the memory of the peer; requires a credit.
    pub(super) fn announce(&mut self, index: u16, mapping: Mapping) -> Result<(), Errno> {
        let offset = u64::from(index) * Mapping::LEN as u64;
        let to = Target { address: self.peer_mappings.address.wrapping_add(offset), ..self.peer_mappings };
        self.sending.take(0);
        let entry = mapping.entry(self.is_peer_big_endian);
        self.post(0, to, Message::Mapping(index), Payload::Inline(&entry))
    }

    /// Returns whether bytes can be written to a mapping.
    pub(super) fn can_write(&self) -> bool {
        self.sending.room_for_writes() > 0
    }

    /// Returns the memory of the peer at this offset of its mappings.
    pub(super) fn mapping_at(&self, offset: u64) -> Option<Target> {
        (0..self.mappings).find_map(|index| {
            let at = self.entries.at(ENTRIES * Target::LEN + index * Mapping::LEN);
            // SAFETY: the entry is inside. The peer writes it before the application can know the mapping.
            Mapping::of_entry(&unsafe { at.cast::<[u8; Mapping::LEN]>().read_volatile() }).at(offset)
        })
    }

    /// Writes some of these bytes into the memory of the peer, without a notification, and returns their
    /// number.
    pub(super) fn write(&mut self, data: &[u8], to: Target) -> Result<usize, Errno> {
        let bytes = data.len().min(self.sending.room_for_writes()).min(to.length as usize);
        let at = self.sending.take_for_write(bytes);
        // SAFETY: these bytes of the ring are free.
        unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), self.sender.at(at), bytes) };
        let length = u32::try_from(bytes).map_err(|_| Errno::INVALID)?;
        let element = Sge { addr: self.sender.at(at) as u64, length, lkey: self.sender.lkey() };
        let op = SendOp::Write { remote_addr: to.address, rkey: RKey(to.key) };
        self.post_op(length.into(), op, Payload::Elements(&[element]))?;
        Ok(bytes)
    }

    pub(super) fn has_data(&self) -> bool {
        self.receiving.has_data()
    }

    /// Reads into `data` and returns the number of bytes. With `is_look`, reads only one contiguous piece and
    /// does not consume it.
    pub(super) fn receive(&mut self, data: &mut [u8], is_look: bool) -> usize {
        let mut done = 0;
        while done < data.len() && self.receiving.has_data() {
            let (at, bytes) = self.receiving.next(data.len() - done);
            // SAFETY: the peer has written these bytes and does not write them again before they are
            // announced again.
            unsafe { std::ptr::copy_nonoverlapping(self.receiver.at(at), data[done..].as_mut_ptr(), bytes) };
            done += bytes;
            if is_look {
                break;
            }
            self.receiving.consume(bytes);
        }
        done
    }

    pub(super) fn has_control(&self) -> bool {
        self.sending.has_control()
    }

    pub(super) fn is_idle(&self) -> bool {
        self.sending.is_idle()
    }

    /// Sends a message without data; fails with `EAGAIN` if no control message is free.
    pub(super) fn send_control(&mut self, message: Message) -> Result<(), Errno> {
        if !self.sending.take_control() {
            return Err(Errno::AGAIN);
        }
        self.post(CONTROL, Target::default(), message, Payload::Elements(&[]))
    }

    /// Announces free space to the peer if that is due.
    pub(super) fn give_credits(&mut self) -> Result<(), Errno> {
        if !self.receiving.is_due() || !self.sending.take_control() {
            return Ok(());
        }
        let (number, half) = self.receiving.announce();
        let Some(half) = half else {
            return self.post(CONTROL, Target::default(), Message::Credits(number), Payload::Elements(&[]));
        };
        let entry = self.receiver.target(half, self.size / 2).entry(self.is_peer_big_endian);
        let offset = u64::from(self.peer_entry) * Target::LEN as u64;
        let to = Target { address: self.peer.address.wrapping_add(offset), ..self.peer };
        self.peer_entry = (self.peer_entry + 1) % self.peer.length;
        self.post(CONTROL, to, Message::Credits(number), Payload::Inline(&entry))
    }

    /// Handles completions; returns the reason if the stream ended.
    pub(super) fn take_completions(&mut self) -> Result<Option<News>, Errno> {
        let mut news = None;
        loop {
            let mut burst = [Wc::default(); BURST];
            // SAFETY: the queue lives as long as this object.
            let found = self.open.raw().poll_cq(unsafe { &cq_of(self.queue.cq.0)?.raw }, &mut burst)?;
            for wc in &burst[..found] {
                news = news.or(self.take_completion(wc)?);
            }
            if found < BURST {
                return Ok(news);
            }
        }
    }

    fn take_completion(&mut self, wc: &Wc) -> Result<Option<News>, Errno> {
        let has_failed = wc.status != WcStatus::Success;
        if has_failed {
            return Ok(Some(News::Failure));
        }
        if !matches!(wc.opcode, WcOpcode::Recv | WcOpcode::RecvRdmaWithImm) {
            if wc.wr_id & CONTROL != 0 {
                self.sending.complete_control();
            } else {
                self.sending.complete(wc.wr_id as usize);
            }
            return Ok(None);
        }
        self.post_receive()?;
        if !wc.flags.contains(WcFlags::WITH_IMM) {
            return Ok(Some(News::Failure));
        }
        Ok(match Message::of_immediate(wc.imm.0) {
            Message::Data(0) => Some(News::Failure),
            Message::Data(bytes) => (!self.receiving.arrive(bytes as usize)).then_some(News::Failure),
            Message::Credits(number) => {
                self.sending.allow(number);
                None
            }
            Message::Disconnect => Some(News::Disconnect),
            Message::Shutdown => Some(News::Shutdown),
            Message::Mapping(_) => {
                self.receiving.arrive_empty();
                None
            }
            Message::KeepAlive | Message::Unknown => None,
        })
    }

    /// Requests an event for the next completion, after removing earlier events.
    pub(super) fn arm(&self) -> Result<(), Errno> {
        self.queue.arm(&self.open)
    }
}
