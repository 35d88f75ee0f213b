//! What the processes of an address agree on, and helpers for their sockets.

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};

use roce_transport::ProcessSlot;
use rustix::event::epoll;

/// Number of slots of an address, including slot 0.
pub(super) const SLOTS: u16 = ProcessSlot::MAX.get() + 1;
/// Number of sockets made together, and of short slots; part of the protocol between processes.
pub(super) const CHUNK: usize = 64;
const _: () =
    assert!(CHUNK == ProcessSlot::FIRST_LONG.get() as usize && (SLOTS as usize).is_multiple_of(CHUNK));
/// First bytes of messages between processes: a request to join, two answers, and a datagram passed on.
pub(super) const JOIN: u8 = b'J';
pub(super) const ADMITTED: u8 = b'A';
pub(super) const REFUSED: u8 = b'R';
pub(super) const PASSED_ON: u8 = b'P';

/// Returns the slots with these numbers.
pub(super) fn slots(numbers: Range<u16>) -> impl Iterator<Item = ProcessSlot> {
    numbers.filter_map(ProcessSlot::new)
}

/// Makes an epoll readable whenever this socket is.
pub(super) fn watch(epoll: &OwnedFd, socket: impl AsFd, token: u64) -> io::Result<()> {
    Ok(epoll::add(epoll, socket, epoll::EventData::new_u64(token), epoll::EventFlags::IN)?)
}
