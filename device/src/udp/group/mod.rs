//! Several processes on one address: the socket group.
//!
//! All devices on an address and port, of any process, receive through one group of sockets (`SO_REUSEPORT`).
//! The first device creates it with 64 sockets, one per slot, and a program by which the kernel chooses a
//! socket for each datagram ([`filter`]). All members read slot 0, where connection requests arrive, which do
//! not identify a process. Each other slot belongs to one device and is the prefix of its queue pair numbers.
//! A device that finds all slots taken adds 64 ([`chunk`]), up to [`ProcessSlot::MAX`].
//!
//! The group has no leader. Every member holds the [`escrow`], a descriptor that keeps all sockets open and
//! accessible, so positions never change when processes end. Members find each other by [`names`], which end
//! with their processes. A new process asks a member for the escrow and takes the lowest free name
//! ([`join`]).
//!
//! Segmentation or receive offload may put datagrams for several processes into one buffer, which the kernel
//! gives to the process of the first datagram. That process passes the others on ([`links`]). Connection
//! requests reach the process that listens for their service in the same way ([`inbound`]).

mod chunk;
mod escrow;
mod filter;
mod inbound;
mod join;
mod links;
mod names;
mod protocol;

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use roce_transport::{Instant, ProcessSlot, Received};
use rustix::event::epoll;
use socket2::Socket;

use super::receive::{Receiver, Recipient};
use crate::descriptors::aside;
use crate::sockets::{numbers_of, receive_nothing};
use chunk::make_sockets;
use escrow::Escrow;
use inbound::Inbound;
use links::{Links, Target};
use names::Names;
use protocol::{SLOTS, slots, watch};

pub(super) use join::{JoinError, advice_on};
pub(super) use links::Counters;

/// The membership of one device in the group of its address.
pub(super) struct Member {
    slot: ProcessSlot,
    /// Slot 0's socket, which all members read.
    front: Socket,
    /// Datagrams that the kernel dropped at `front`: in total, and before this device became a member.
    front_overflow: u32,
    front_overflow_before: u32,
    /// Keeps the sockets of all members open.
    escrow: Arc<Escrow>,
    reads_front: bool,
    /// Connections of other processes. Readable when any of them is.
    rare: OwnedFd,
    inbound: Inbound,
    links: Links,
    /// Calls of `receive` since the last [`look`](Self::look), and the time of that.
    unlooked: u32,
    looked_at: Instant,
}

/// A member and its own socket.
pub(super) struct Place {
    pub(super) member: Member,
    pub(super) socket: Socket,
    /// Number of datagrams that the kernel has dropped at `socket` so far.
    pub(super) overflow: u32,
}

impl Member {
    /// Joins or creates the group of this address. `make` opens a socket of a group, without binding it.
    pub(super) fn join(
        local: SocketAddr,
        make: impl Fn(SocketAddr) -> io::Result<Socket>,
    ) -> Result<Place, JoinError> {
        let names = Names::new(local);
        let joined = join::join(&names, |before| make_sockets(local, before, &make))?;
        let [front, own] = joined.sockets;
        // Drop datagrams for the slot's previous process. The filter is still active, so no new ones arrive.
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

    /// Returns whether this address has a group that this process may join.
    pub(super) fn can_join(local: SocketAddr) -> bool {
        holders(local).any(|holder| holder.is_ok_and(names::Peer::is_trusted))
    }

    /// Returns whether any process, trusted or not, holds a slot of this address.
    pub(super) fn exists(local: SocketAddr) -> bool {
        // The queue of connections may be full.
        holders(local).any(|holder| holder.map_or_else(|it| it.kind() == io::ErrorKind::WouldBlock, |_| true))
    }

    pub(super) const fn slot(&self) -> ProcessSlot {
        self.slot
    }

    /// Returns the descriptors that become readable when [`look`](Self::look) has work. Slot 0 is separate,
    /// because the kernel lets only 500 nested epolls watch one socket, and all processes share it.
    pub(super) fn rare(&self) -> [BorrowedFd<'_>; 2] {
        [self.rare.as_fd(), self.front.as_fd()]
    }

    pub(super) const fn counters(&self) -> &Counters {
        &self.links.counters
    }

    /// Returns the number of datagrams that the kernel dropped at slot 0 since this device became a member.
    pub(super) const fn overflow(&self) -> u32 {
        self.front_overflow.wrapping_sub(self.front_overflow_before)
    }

    /// Accepts requests for this service from now on; `AddrInUse` if another device of the address does.
    pub(super) fn claim_service(&mut self, service_id: u64) -> io::Result<()> {
        self.inbound.claim(service_id, &self.rare)
    }

    pub(super) fn release_service(&mut self, service_id: u64) {
        self.inbound.release(service_id);
    }

    /// Leaves slot 0 to the other members; `readiness` is the device's epoll, which watches it.
    pub(super) fn leave_requests(&mut self, readiness: &OwnedFd) {
        self.reads_front = false;
        if let Err(error) = epoll::delete(readiness, &self.front) {
            tracing::debug!(%error, "requests still wake this engine");
        }
    }

    /// Returns whether to [`look`](Self::look) in this call of `receive`. Looking is a system call, so a
    /// polled device does it rarely. A device that sleeps until its descriptor is readable does it at once.
    #[inline]
    pub(super) fn is_due(&mut self, now: Instant) -> bool {
        self.unlooked += 1;
        let is_due = self.unlooked >= MOST_UNLOOKED || now >= self.looked_at.plus_nanos(LOOK_AGAIN_NS);
        if is_due {
            (self.unlooked, self.looked_at) = (0, now);
        }
        is_due
    }

    /// Serves slot 0 and other processes; returns the number of datagrams for this device.
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
                // The group has no socket for a long slot whose datagrams arrive here.
                let is_lost = filter::slot_of(received.head()) >= ProcessSlot::FIRST_LONG;
                if is_lost || deliver_or_pass_on(*slot, inbound, links, received) {
                    count += 1;
                    sink(received);
                }
            };
            for _ in 0..MOST_BURSTS {
                if receiver.receive(front.as_fd(), address, front_overflow, &mut None::<Self>, &mut take)?
                    == 0
                {
                    break;
                }
            }
        }
        Ok(count)
    }

    /// Leaves the group: from now on, the kernel drops datagrams that arrive at the own socket.
    pub(super) fn leave(&self, own: &Socket) {
        // Otherwise datagrams would wait there until the slot has a new member, which discards them.
        if receive_nothing(own).is_ok() {
            let _ = drain(own);
        }
    }
}

impl Recipient for Member {
    #[inline]
    fn is_own(&mut self, received: &Received<'_>) -> bool {
        filter::is_plainly_for(self.slot, received.head())
            || deliver_or_pass_on(self.slot, &self.inbound, &mut self.links, received)
    }
}

/// Returns whether a datagram is for this device; otherwise passes it on to the right device.
fn deliver_or_pass_on(
    slot: ProcessSlot,
    inbound: &Inbound,
    links: &mut Links,
    received: &Received<'_>,
) -> bool {
    let target = match filter::slot_of(received.head()) {
        ProcessSlot::NONE => match filter::service_asked_for(received.head()) {
            Some(service) if !inbound.has(service) => Target::Service(service),
            // For this device, or for no device; in that case this device answers.
            _ => return true,
        },
        other if other == slot => return true,
        other => Target::Slot(other),
    };
    !links.pass_on(target, received)
}

/// Returns the holders of the slots of an address; an error for each slot without a reachable process.
fn holders(local: SocketAddr) -> impl Iterator<Item = io::Result<names::Peer>> {
    let names = Names::new(local);
    slots(1..SLOTS).map(move |slot| names::connect(&names.slot(slot)).and_then(names::Peer::of))
}

/// Discards the datagrams that wait at a socket.
fn drain(socket: &Socket) -> io::Result<()> {
    loop {
        match rustix::net::recv(socket, &mut [0_u8; 1], rustix::net::RecvFlags::DONTWAIT) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(rustix::io::Errno::AGAIN) => return Ok(()),
            // Another host reported an error; reading it has cleared it.
            Err(error) if error != rustix::io::Errno::BADF => {}
            Err(error) => return Err(error.into()),
        }
    }
}

/// Returns the number of datagrams that the kernel has dropped at a socket so far, modulo 2^32.
fn dropped_at(socket: &Socket) -> u32 {
    const DROPS: usize = 8;
    let numbers: io::Result<[u32; DROPS + 1]> = numbers_of(socket, libc::SOL_SOCKET, libc::SO_MEMINFO);
    numbers.map_or(0, |numbers| numbers[DROPS])
}

/// Stores the events that are ready now and returns their number. Memory checkers report `epoll_pwait`, which
/// `rustix` calls, because it leaves the size of an absent signal set uninitialized.
fn ready_now(epoll: &OwnedFd, room: &mut [libc::epoll_event]) -> io::Result<usize> {
    let most = i32::try_from(room.len()).unwrap_or(i32::MAX);
    // SAFETY: the kernel writes at most `most` events, for which there is room.
    let found = unsafe { libc::epoll_wait(epoll.as_raw_fd(), room.as_mut_ptr(), most, 0) };
    usize::try_from(found).or_else(|_| match io::Error::last_os_error() {
        error if error.kind() == io::ErrorKind::Interrupted => Ok(0),
        error => Err(error),
    })
}

/// Maximum bursts of slot 0 in one [`Member::look`], so that the device's own datagrams get their turn.
const MOST_BURSTS: usize = 8;
/// Interval of [`Member::look`], which takes about 1 µs, as two empty receive calls, or 1 % of this time.
const LOOK_AGAIN_NS: u64 = 100_000;
/// Maximum calls of `receive` between two of [`Member::look`], for a caller whose clock stands still.
const MOST_UNLOOKED: u32 = 256;
