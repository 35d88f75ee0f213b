//! The queue pair of a datagram rsocket at one of its addresses, with its memory.

use std::net::SocketAddr;
use std::os::fd::RawFd;
use std::sync::Arc;

use roce::verbs::{
    AddressHandle, Payload, Qpn, RecvWr, SendFlags, SendOp, SendWr, Sge, Wc, WcOpcode, WcStatus,
};

use super::descriptors::called;
use super::service::parse_header;
use super::settings::Options;
use super::stream::{Memory, Queue};
use crate::abi::{IBV_QPT_UD, RDMA_PS_UDP, ibv_qp_cap, ibv_qp_init_attr, rdma_cm_id};
use crate::answer::Errno;
use crate::context::{Open, Pointer};
use crate::cq::cq_of;
use crate::qp::qp_of;
use crate::rdmacm::addresses::rdma_bind_addr;
use crate::rdmacm::identifiers::{destroy, rdma_create_id};
use crate::rdmacm::queue_pairs::{create_qp, rdma_destroy_qp};
use crate::rdmacm::sockaddr::storage;

/// Maximum length of a datagram with its header.
pub(super) const LONGEST: usize = 2048;
/// Room for a GRH in front of each received datagram.
const GRH: usize = 40;
/// Maximum number of completions per poll.
const BURST: usize = 16;
/// Marks the requests of receives.
const RECEIVE: u64 = 1 << 32;

/// A received datagram: its slot, and its length with the header.
#[derive(Clone, Copy)]
pub(super) struct Slot {
    pub(super) number: u16,
    length: usize,
}

pub(super) struct DatagramEndpoint {
    /// Dropped before the other fields.
    _id: Identifier,
    pub(super) open: Arc<Open>,
    pub(super) qpn: Qpn,
    pub(super) own: SocketAddr,
    /// Maximum length of a packet of the device, with the header.
    pub(super) longest: usize,
    queue: Queue,
    sender: Memory,
    receiver: Memory,
    /// Free slots for datagrams to send.
    free: Vec<u16>,
}

/// An identifier that is destroyed, with its queue pair, before the rest of the endpoint.
struct Identifier(Pointer<rdma_cm_id>);

impl Drop for Identifier {
    fn drop(&mut self) {
        // SAFETY: the identifier belongs to this object alone.
        unsafe {
            rdma_destroy_qp(self.0.0);
            // It is an identifier, so this does not fail.
            let _ = destroy(self.0.0);
        }
    }
}

impl DatagramEndpoint {
    /// Creates an endpoint at an address of a device.
    pub(super) fn new(own: SocketAddr, options: &Options) -> Result<Self, Errno> {
        let depth = |wanted: u16, bytes: usize| {
            usize::from(wanted).min(bytes / LONGEST).try_into().unwrap_or(u16::MAX).max(1)
        };
        let send_depth: u16 = depth(options.send_depth, options.send_bytes);
        let receive_depth: u16 = depth(options.receive_depth, options.receive_bytes);
        let mut id: *mut rdma_cm_id = std::ptr::null_mut();
        let mut address = storage(own);
        // SAFETY: room for a pointer and an address exist; the results of the library's calls are checked.
        unsafe {
            called(rdma_create_id(std::ptr::null_mut(), &raw mut id, std::ptr::null_mut(), RDMA_PS_UDP))?;
            let owned = Identifier(Pointer(id));
            called(rdma_bind_addr(id, (&raw mut address).cast()))?;
            if (*id).verbs.is_null() {
                return Err(Errno(libc::ENODEV));
            }
            let queue = Queue::new(id, c_int_of(send_depth) + c_int_of(receive_depth))?;
            let sender = Memory::new(id, usize::from(send_depth) * LONGEST)?;
            let receiver = Memory::new(id, usize::from(receive_depth) * (GRH + LONGEST))?;
            let mut wanted: ibv_qp_init_attr = std::mem::zeroed();
            (wanted.send_cq, wanted.recv_cq) = (queue.cq.0, queue.cq.0);
            wanted.qp_type = IBV_QPT_UD;
            wanted.sq_sig_all = 1;
            wanted.cap = ibv_qp_cap {
                max_send_wr: send_depth.into(),
                max_recv_wr: receive_depth.into(),
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: 0,
            };
            create_qp(id, (*id).pd, &mut wanted)?;
            let qp = qp_of((*id).qp)?;
            let open = Arc::clone(&qp.open);
            let longest = open.context.largest_path_mtu().map_or(0, |mtu| mtu.bytes()).min(LONGEST);
            let free = (0..send_depth).collect();
            let new = Self { _id: owned, qpn: qp.qpn, open, own, longest, queue, sender, receiver, free };
            (0..receive_depth).try_for_each(|number| new.post_receive(number))?;
            new.arm()?;
            Ok(new)
        }
    }

    pub(super) fn descriptor(&self) -> RawFd {
        self.queue.descriptor()
    }

    /// Returns the index of its own address in the GID table of the device.
    pub(super) fn gid_index(&self) -> Option<usize> {
        let is_own = |entry: &&roce::verbs::GidEntry| entry.address() == self.own.ip();
        self.open.gids.iter().find(is_own).map(|entry| entry.index)
    }

    pub(super) fn post_receive(&self, number: u16) -> Result<(), Errno> {
        let at = usize::from(number) * (GRH + LONGEST);
        let element = Sge {
            addr: self.receiver.at(at) as u64,
            length: (GRH + LONGEST) as u32,
            lkey: self.receiver.lkey(),
        };
        let request = RecvWr { wr_id: RECEIVE | u64::from(number), elements: &[element] };
        Ok(self.open.raw().post_recv(self.qpn, &request)?)
    }

    pub(super) fn has_slot(&self) -> bool {
        !self.free.is_empty()
    }

    /// Returns a free slot for a datagram to send.
    pub(super) fn take_slot(&mut self) -> Option<u16> {
        self.free.pop()
    }

    /// Sends a datagram that fits into its slot.
    pub(super) fn send(
        &self,
        number: u16,
        header: &[u8],
        buffers: &[&[u8]],
        to: &AddressHandle,
    ) -> Result<(), Errno> {
        let start = usize::from(number) * LONGEST;
        let mut length = 0;
        for part in std::iter::once(&header).chain(buffers) {
            debug_assert!(length + part.len() <= LONGEST);
            // SAFETY: the slot is free, and all parts fit into it.
            unsafe {
                std::ptr::copy_nonoverlapping(part.as_ptr(), self.sender.at(start + length), part.len());
            }
            length += part.len();
        }
        let element =
            Sge { addr: self.sender.at(start) as u64, length: length as u32, lkey: self.sender.lkey() };
        let request = SendWr {
            wr_id: number.into(),
            op: SendOp::Send,
            flags: SendFlags::SIGNALED,
            payload: Payload::Elements(&[element]),
            destination: Some(to.destination()),
            remote_srqn: 0,
        };
        Ok(self.open.raw().post_send(self.qpn, &request)?)
    }

    /// Returns the sender of a received datagram, and its bytes.
    pub(super) fn datagram(&self, slot: &Slot) -> Option<(SocketAddr, &[u8])> {
        let at = usize::from(slot.number) * (GRH + LONGEST) + GRH;
        // SAFETY: the bytes are inside, and the engine writes there only after the receive is posted again.
        let bytes = unsafe { std::slice::from_raw_parts(self.receiver.at(at).cast_const(), slot.length) };
        let (from, header) = parse_header(bytes)?;
        Some((from, &bytes[header..]))
    }

    /// Handles completions; passes received datagrams to `arrived`.
    pub(super) fn take_completions(&mut self, mut arrived: impl FnMut(Slot)) -> Result<(), Errno> {
        loop {
            let mut burst = [Wc::default(); BURST];
            // SAFETY: the queue lives as long as this object.
            let found = self.open.raw().poll_cq(unsafe { &cq_of(self.queue.cq.0)?.raw }, &mut burst)?;
            for wc in &burst[..found] {
                let number = wc.wr_id as u16;
                if wc.wr_id & RECEIVE == 0 {
                    self.free.push(number);
                    continue;
                }
                let length = (wc.byte_len as usize).saturating_sub(GRH).min(LONGEST);
                let slot = Slot { number, length };
                if wc.status == WcStatus::Success
                    && wc.opcode == WcOpcode::Recv
                    && self.datagram(&slot).is_some()
                {
                    arrived(slot);
                } else {
                    self.post_receive(number)?;
                }
            }
            if found < BURST {
                return Ok(());
            }
        }
    }

    /// Requests an event for the next completion, after removing earlier events.
    pub(super) fn arm(&self) -> Result<(), Errno> {
        self.queue.arm(&self.open)
    }
}

fn c_int_of(depth: u16) -> std::ffi::c_int {
    depth.into()
}
