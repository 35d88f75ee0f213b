//! Several processes on one address: the socket group.
//!
//! All devices on an address and port, of whatever process, receive through one group of sockets (`SO_REUSEPORT`). The first of them
//! makes it with a socket for each of 64 slots, and a program that has the kernel choose the socket by the
//! datagram ([`filter`]). Slot 0 is read by all members: requests for a connection arrive there, which no process can be
//! read from. Each other slot belongs to one device, whose queue pair numbers begin with it. A device that finds all slots taken
//! adds 64 sockets ([`chunk`]), up to [`ProcessSlot::MAX`].
//!
//! There is no leader. Every member holds the [`escrow`], a descriptor through which all sockets stay open and can be passed
//! on, so that places never change, whichever process ends. Members find each other by [`names`], which end with their processes. A
//! newcomer asks one of them for the escrow and takes the lowest free name ([`join`]).
//!
//! A sender with segmentation offload, or the kernel that joins what arrives, may put datagrams for several processes into one
//! buffer, which the kernel then gives to the process of the first one. That process passes the others on ([`links`]). In the
//! same way requests for a connection get to the process that listens for their service ([`inbound`]).

mod chunk;
mod escrow;
mod filter;
mod inbound;
mod join;
mod links;
mod names;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use roce_transport::{Instant, ProcessSlot, Received};
use rustix::event::epoll;
use socket2::Socket;

use super::receive::Receiver;
use crate::descriptors::aside;
use crate::sockets::{numbers_of, receive_nothing};
use chunk::make_sockets;
use escrow::Escrow;
use inbound::Inbound;
use links::{Links, Target};
use names::Names;

pub(super) use join::{JoinError, advice_on};
pub(super) use links::Counters;

/// The place of one device in the group of its address.
pub(super) struct Member {
    slot: ProcessSlot,
    /// Slot 0's socket, which all members read.
    front: Socket,
    /// Datagrams that the kernel dropped there: so far, and before this member came.
    front_overflow: u32,
    front_overflow_before: u32,
    /// Holds the sockets open, for all.
    escrow: Arc<Escrow>,
    reads_front: bool,
    /// Connections of other processes. Readable when any of them is.
    rare: OwnedFd,
    inbound: Inbound,
    links: Links,
    /// Calls of `receive` since the last look at what is rare, and when that was.
    unlooked: u32,
    looked_at: Instant,
}

/// A member and its own socket.
pub(super) struct Place {
    pub(super) member: Member,
    pub(super) socket: Socket,
    /// How many datagrams the kernel has dropped there so far.
    pub(super) overflow: u32,
}

impl Member {
    /// Joins the group of this address, or makes it. `make` opens the socket of a group: it is not bound yet.
    pub(super) fn join(
        local: SocketAddr,
        make: impl Fn(SocketAddr) -> io::Result<Socket>,
    ) -> Result<Place, JoinError> {
        let names = Names::new(local);
        let joined = join::join(&names, |before| make_sockets(local, before, &make))?;
        let [front, own] = joined.sockets;
        // What came for the process that had the slot before is dropped. The filter is on still: nothing comes meanwhile.
        receive_nothing(&own)?;
        drain(&own)?;
        let overflow = dropped_at(&own);
        own.detach_filter()?;
        let rare = aside(epoll::create(epoll::CreateFlags::CLOEXEC).map_err(io::Error::from)?);
        watch(&rare, &joined.listener, inbound::LISTENER)?;
        let front_overflow = dropped_at(&front);
        let member = Self {
            slot: joined.slot,
            front,
            reads_front: true,
            front_overflow,
            front_overflow_before: front_overflow,
            escrow: joined.escrow,
            rare,
            inbound: Inbound::new(names.clone(), joined.listener),
            links: Links::new(names),
            unlooked: 0,
            looked_at: Instant::ZERO,
        };
        Ok(Place { member, socket: own, overflow })
    }

    /// Whether there is a group on this address that this process may join.
    pub(super) fn can_join(local: SocketAddr) -> bool {
        holders(local).any(|holder| holder.is_ok_and(names::Peer::is_trusted))
    }

    /// Whether any process, trusted or not, holds a slot of this address.
    pub(super) fn exists(local: SocketAddr) -> bool {
        // Its queue of connections may be full.
        holders(local).any(|holder| holder.map_or_else(|it| it.kind() == io::ErrorKind::WouldBlock, |_| true))
    }

    pub(super) const fn slot(&self) -> ProcessSlot {
        self.slot
    }

    /// The descriptors that become readable when [`look`](Self::look) has something to do. Slot 0 is not in an epoll that others watch: the kernel lets 500
    /// of these watch one socket, and that of slot 0 is one for all processes.
    pub(super) fn rare(&self) -> [BorrowedFd<'_>; 2] {
        [self.rare.as_fd(), self.front.as_fd()]
    }

    pub(super) const fn counters(&self) -> &Counters {
        &self.links.counters
    }

    /// Datagrams that the kernel dropped at slot 0 since this member came.
    pub(super) const fn overflow(&self) -> u32 {
        self.front_overflow.wrapping_sub(self.front_overflow_before)
    }

    /// Takes in connection requests for this service from now on; `AddrInUse` if another device of the address does.
    pub(super) fn claim_service(&mut self, service_id: u64) -> io::Result<()> {
        self.inbound.claim(service_id, &self.rare)
    }

    pub(super) fn release_service(&mut self, service_id: u64) {
        self.inbound.release(service_id);
    }

    /// Leaves slot 0 to the other members; `readiness` watches it for this one.
    pub(super) fn leave_requests(&mut self, readiness: &OwnedFd) {
        self.reads_front = false;
        if let Err(error) = epoll::delete(readiness, &self.front) {
            tracing::debug!(%error, "requests still wake this engine");
        }
    }

    /// Whether to [`look`](Self::look) in this call of `receive`. A look is a system call, so that a device which is looked
    /// at all the time looks now and then only. One that sleeps until its descriptor is readable looks at once.
    #[inline]
    pub(super) fn is_due(&mut self, now: Instant) -> bool {
        self.unlooked += 1;
        let is_due = self.unlooked >= MOST_UNLOOKED || now >= self.looked_at.plus_nanos(LOOK_AGAIN_NS);
        if is_due {
            (self.unlooked, self.looked_at) = (0, now);
        }
        is_due
    }

    /// Serves slot 0 and other processes; returns how many datagrams there were for this one.
    pub(super) fn look(
        &mut self,
        address: IpAddr,
        receiver: &mut Receiver,
        sink: &mut dyn FnMut(&Received<'_>),
    ) -> io::Result<usize> {
        let mut room = [libc::epoll_event { events: 0, u64: 0 }; 16];
        let ready = ready_now(&self.rare, &mut room)?;
        let mut count = 0;
        for event in &room[..ready] {
            count += self.inbound.serve(event.u64, &self.rare, &self.escrow, address, sink);
        }
        if self.reads_front {
            let Self { slot, front, front_overflow, inbound, links, .. } = self;
            let mut take = |received: &Received<'_>| {
                // The group has no socket for a long slot whose datagrams come here.
                let is_lost = filter::slot_of(received.head) >= ProcessSlot::FIRST_LONG;
                if is_lost || deliver_or_pass_on(*slot, inbound, links, received) {
                    count += 1;
                    sink(received);
                }
            };
            for _ in 0..MOST_BURSTS {
                if receiver.receive(front.as_fd(), address, front_overflow, None, &mut take)? == 0 {
                    break;
                }
            }
        }
        Ok(count)
    }

    /// Whether a datagram that arrived at the own socket is for this device; otherwise it is passed on.
    #[inline]
    pub(super) fn is_own(&mut self, received: &Received<'_>) -> bool {
        filter::is_plainly_for(self.slot, received.head)
            || deliver_or_pass_on(self.slot, &self.inbound, &mut self.links, received)
    }

    /// Leaves: from now on, the kernel drops what arrives at the own socket.
    pub(super) fn leave(&self, own: &Socket) {
        // Without it, datagrams would wait there until the slot has a member again, which throws them away.
        if receive_nothing(own).is_ok() {
            let _ = drain(own);
        }
    }
}

/// Whether a datagram is for this device; otherwise it is passed on to the one that it is for.
fn deliver_or_pass_on(
    slot: ProcessSlot,
    inbound: &Inbound,
    links: &mut Links,
    received: &Received<'_>,
) -> bool {
    let target = match filter::slot_of(received.head) {
        ProcessSlot::NONE => match filter::service_asked_for(received.head) {
            Some(service) if !inbound.has(service) => Target::Service(service),
            // For this device, or for none, which it is to answer.
            _ => return true,
        },
        other if other == slot => return true,
        other => Target::Slot(other),
    };
    !links.pass_on(target, received)
}

/// The processes that hold the slots of an address; an error for each slot that can be connected to no process.
fn holders(local: SocketAddr) -> impl Iterator<Item = io::Result<names::Peer>> {
    let names = Names::new(local);
    slots(1..SLOTS).map(move |slot| names::connect(&names.slot(slot)).and_then(names::Peer::of))
}

/// The slots with these numbers.
fn slots(numbers: Range<u16>) -> impl Iterator<Item = ProcessSlot> {
    numbers.filter_map(ProcessSlot::new)
}

/// Throws away what waits at a socket.
fn drain(socket: &Socket) -> io::Result<()> {
    loop {
        match rustix::net::recv(socket, &mut [0_u8; 1], rustix::net::RecvFlags::DONTWAIT) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(rustix::io::Errno::AGAIN) => return Ok(()),
            // Another host reported an error, and asking has cleared it.
            Err(error) if error != rustix::io::Errno::BADF => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Datagrams that the kernel has dropped at a socket so far, modulo 2^32.
fn dropped_at(socket: &Socket) -> u32 {
    const DROPS: usize = 8;
    let numbers: io::Result<[u32; DROPS + 1]> = numbers_of(socket, libc::SOL_SOCKET, libc::SO_MEMINFO);
    numbers.map_or(0, |numbers| numbers[DROPS])
}

/// What is ready now; returns how many. `rustix` calls `epoll_pwait`, for which it leaves the size of a set of signals that it does
/// not give as it is, and memory checkers report that.
fn ready_now(epoll: &OwnedFd, room: &mut [libc::epoll_event]) -> io::Result<usize> {
    let most = i32::try_from(room.len()).unwrap_or(i32::MAX);
    // SAFETY: the kernel writes at most so many events, for which there is room.
    let found = unsafe { libc::epoll_wait(epoll.as_raw_fd(), room.as_mut_ptr(), most, 0) };
    usize::try_from(found).or_else(|_| match io::Error::last_os_error() {
        error if error.kind() == io::ErrorKind::Interrupted => Ok(0),
        error => Err(error),
    })
}

fn watch(epoll: &OwnedFd, socket: impl AsFd, token: u64) -> io::Result<()> {
    Ok(epoll::add(epoll, socket, epoll::EventData::new_u64(token), epoll::EventFlags::IN)?)
}

/// Slots of an address, slot 0 included.
const SLOTS: u16 = ProcessSlot::MAX.get() + 1;
/// Slots whose sockets are made together. The number is part of the protocol between processes, and that of the short slots.
const CHUNK: usize = 64;
const _: () =
    assert!(CHUNK == ProcessSlot::FIRST_LONG.get() as usize && (SLOTS as usize).is_multiple_of(CHUNK));
/// First bytes of messages between processes: a newcomer asks, a member answers, a datagram is passed on.
const JOIN: u8 = b'J';
const ADMITTED: u8 = b'A';
const REFUSED: u8 = b'R';
const PASSED_ON: u8 = b'P';
/// Bursts of slot 0 in one look: then what is for this device has its turn.
const MOST_BURSTS: usize = 8;
/// A look costs as much as two calls that find nothing, about a microsecond, so that in this time it is a hundredth.
const LOOK_AGAIN_NS: u64 = 100_000;
/// The same for a caller whose clock stands still.
const MOST_UNLOOKED: u32 = 256;
