//! All sockets of an address, in queues of sockets: they stay open, in their positions, while any process
//! holds the descriptor of the first queue.
//!
//! Each queue holds the sockets of [`CHUNK`] slots and both ends of the next queue, which is empty until all
//! earlier slots are taken. Only the process with the lock of the address accesses a queue.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use socket2::Socket;

use super::protocol::{ADMITTED, CHUNK};
use crate::descriptors::aside;
use crate::sockets::set_option;

/// The descriptor of the first queue, through which all sockets can be reached.
#[derive(Debug)]
pub(super) struct Escrow(OwnedFd);

/// The sockets of [`CHUNK`] slots.
pub(super) struct Chunk {
    pub(super) sockets: Vec<Socket>,
    /// `None` if an older version of this library, which had one queue, has made the sockets.
    next: Option<Queue>,
}

struct Queue {
    reader: OwnedFd,
    writer: OwnedFd,
}

impl Escrow {
    /// Puts the first sockets into a new queue.
    pub(super) fn new(sockets: &[Socket]) -> io::Result<Self> {
        let queue = Queue::new()?;
        queue.fill(sockets, true)?;
        Ok(Self(aside(queue.reader)))
    }

    /// Takes a descriptor that another process passed on; fails if it holds anything else.
    pub(super) fn adopt(descriptor: OwnedFd) -> io::Result<Self> {
        let escrow = Self(aside(descriptor));
        escrow.first()?;
        Ok(escrow)
    }

    /// Returns copies of the first sockets, which stay in the queue.
    pub(super) fn first(&self) -> io::Result<Chunk> {
        look_into(&self.0)?.ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// Passes the descriptor to the process at the other end of a connection.
    pub(super) fn pass_to(&self, connection: impl AsFd) -> io::Result<()> {
        send_with(connection, &[ADMITTED], &[self.0.as_fd()])
    }
}

impl Chunk {
    /// Returns whether more sockets can follow these.
    pub(super) const fn can_grow(&self) -> bool {
        self.next.is_some()
    }

    /// Returns copies of the next sockets, or `None` if there are none yet.
    pub(super) fn next(&self) -> io::Result<Option<Self>> {
        self.next.as_ref().map_or(Ok(None), |next| look_into(&next.reader))
    }

    /// Puts the next sockets into their queue, which makes them available to every member.
    pub(super) fn append(&self, sockets: &[Socket]) -> io::Result<()> {
        self.next.as_ref().map_or(Ok(()), |next| next.fill(sockets, false))
    }
}

impl Queue {
    fn new() -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (writer, reader) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        Ok(Self { reader, writer })
    }

    /// Puts sockets and the ends of the next queue into this queue. Older versions know only the first queue
    /// and expect only sockets in its first message, so that queue has the ends in a second message.
    fn fill(&self, sockets: &[Socket], is_first: bool) -> io::Result<()> {
        let next = Self::new()?;
        let ends = [next.reader.as_fd(), next.writer.as_fd()];
        let all: Vec<_> = sockets.iter().map(AsFd::as_fd).chain(ends).collect();
        // The kernel limits the number of a user's descriptors in queues, but lets one message exceed the
        // limit. Then no member could pass the escrow on, so first test whether another message could follow.
        let rehearsal = Self::new()?;
        send_with(&rehearsal.writer, SOCKETS, &all)?;
        send_with(&rehearsal.writer, ENDS, &ends)?;
        drop(rehearsal);
        if !is_first {
            return send_with(&self.writer, SOCKETS, &all);
        }
        send_with(&self.writer, SOCKETS, &all[..sockets.len()])?;
        send_with(&self.writer, ENDS, &ends)
    }
}

/// Returns the sockets in a queue, or `None` if it is empty.
fn look_into(queue: &OwnedFd) -> io::Result<Option<Chunk>> {
    let (sockets, ends) = (peek(queue, 0), peek(queue, SOCKETS.len()));
    // Reset the offset, because older versions peek at the first message without setting it.
    peek_from(queue, -1)?;
    let (mut sockets, mut ends) = (sockets?, ends?);
    if sockets.is_empty() {
        return Ok(None);
    }
    if sockets.len() < CHUNK {
        return Err(io::ErrorKind::InvalidData.into());
    }
    ends.extend(sockets.split_off(CHUNK));
    let next = match (ends.pop(), ends.pop()) {
        (Some(writer), Some(reader)) => Some(Queue { reader, writer }),
        _ => None,
    };
    Ok(Some(Chunk { sockets: sockets.into_iter().map(Socket::from).collect(), next }))
}

/// Returns copies of the descriptors of the message at this byte offset; empty without such a message.
fn peek(queue: &OwnedFd, offset: usize) -> io::Result<Vec<OwnedFd>> {
    // A process that was killed here may have left its offset.
    peek_from(queue, offset as i32)?;
    match receive_with(queue, &mut [0; 16], RecvFlags::PEEK) {
        Ok((_, descriptors)) => Ok(descriptors),
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

fn peek_from(queue: &OwnedFd, offset: i32) -> io::Result<()> {
    set_option(queue, libc::SOL_SOCKET, libc::SO_PEEK_OFF, offset)
}

/// Sends one message with descriptors, without waiting.
fn send_with(socket: impl AsFd, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_DESCRIPTORS))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::Error::other("too many descriptors for one message"));
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    sendmsg(socket, &[IoSlice::new(bytes)], &mut control, flags)?;
    Ok(())
}

/// Receives one message with its descriptors, without waiting. The length is 0 at the end of a connection.
pub(super) fn receive_with(
    socket: impl AsFd,
    bytes: &mut [u8],
    flags: RecvFlags,
) -> io::Result<(usize, Vec<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_DESCRIPTORS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = flags | RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let received = recvmsg(socket, &mut [IoSliceMut::new(bytes)], &mut control, flags)?;
    let mut descriptors = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            descriptors.extend(rights);
        }
    }
    if received.flags.contains(ReturnFlags::CTRUNC) {
        // Every message fits in the space, so the process reached its limit of descriptors (`ulimit -n`).
        return Err(io::Error::from_raw_os_error(libc::EMFILE));
    }
    Ok((received.bytes, descriptors))
}

/// The bytes of a message with sockets.
const SOCKETS: &[u8] = b"sockets";
/// The bytes of a message with the ends of the next queue.
const ENDS: &[u8] = b"next";
/// Maximum descriptors in a message: sockets and the ends of the next queue. The kernel allows 253.
const MOST_DESCRIPTORS: usize = CHUNK + 2;

#[cfg(test)]
mod tests {
    use socket2::{Domain, Type};

    use super::*;

    fn inodes(sockets: &[Socket]) -> Vec<u64> {
        sockets.iter().map(|socket| rustix::fs::fstat(socket).unwrap().st_ino).collect()
    }

    /// Older versions send a single message and peek at the first message without setting an offset.
    #[test]
    fn older_versions_and_this_one_understand_each_other() {
        let own = [(); CHUNK].map(|()| Socket::new(Domain::IPV4, Type::DGRAM, None).unwrap());
        let old = Queue::new().unwrap();
        let descriptors: Vec<_> = own.iter().map(AsFd::as_fd).collect();
        send_with(&old.writer, SOCKETS, &descriptors).unwrap();
        drop(old.writer);
        let first = Escrow::adopt(old.reader).unwrap().first().unwrap();
        assert_eq!(inodes(&first.sockets), inodes(&own));
        assert!(!first.can_grow() && first.next().unwrap().is_none());

        let escrow = Escrow::new(&own).unwrap();
        // A process that is killed while it reads a queue leaves an offset there.
        for offset in [3, 7, 9, 11, 1000] {
            peek_from(&escrow.0, offset).unwrap();
            assert_eq!(inodes(&escrow.first().unwrap().sockets), inodes(&own));
        }
        let (_, found) = receive_with(&escrow.0, &mut [0; 16], RecvFlags::PEEK).unwrap();
        assert_eq!(inodes(&found.into_iter().map(Socket::from).collect::<Vec<_>>()), inodes(&own));
    }
}
