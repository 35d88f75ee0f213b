//! The sockets of an address, all of them, in the queues of sockets: they stay open, in their places, as long as any
//! process holds the descriptor of the first queue.
//!
//! Each queue holds a message with the sockets of [`CHUNK`] slots, and both ends of the next queue. That one is empty until
//! all slots of those before it are taken. Nobody but the process with the lock of the address looks into a queue or fills it.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use socket2::Socket;

use super::CHUNK;
use crate::descriptors::aside;
use crate::sockets::set_option;

/// The descriptor whose queue holds the first sockets, and through them all others.
#[derive(Debug)]
pub(super) struct Escrow(OwnedFd);

/// The sockets of [`CHUNK`] slots.
pub(super) struct Chunk {
    pub(super) sockets: Vec<Socket>,
    /// `None` if an older version of this library has made them, which had one queue.
    next: Option<Queue>,
}

struct Queue {
    reader: OwnedFd,
    writer: OwnedFd,
}

impl Escrow {
    /// Puts the first sockets into the queue of a new one.
    pub(super) fn new(sockets: &[Socket]) -> io::Result<Self> {
        let queue = Queue::new()?;
        queue.fill(sockets, true)?;
        Ok(Self(aside(queue.reader)))
    }

    /// The descriptor that another process passed on; an error if it holds anything else.
    pub(super) fn adopt(descriptor: OwnedFd) -> io::Result<Self> {
        let escrow = Self(aside(descriptor));
        escrow.first()?;
        Ok(escrow)
    }

    /// Copies of the first sockets. They stay in the queue.
    pub(super) fn first(&self) -> io::Result<Chunk> {
        look_into(&self.0)?.ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// Passes it to the process at the other end of a connection.
    pub(super) fn pass_to(&self, connection: impl AsFd) -> io::Result<()> {
        send_with(connection, &[super::ADMITTED], &[self.0.as_fd()])
    }
}

impl Chunk {
    /// Whether there can be more sockets than these.
    pub(super) const fn can_grow(&self) -> bool {
        self.next.is_some()
    }

    /// Copies of the next sockets; `None` if there are none yet.
    pub(super) fn next(&self) -> io::Result<Option<Self>> {
        self.next.as_ref().map_or(Ok(None), |next| look_into(&next.reader))
    }

    /// Puts the next sockets into their queue. Every member has them from now on.
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

    /// Older versions know the first queue only, and expect nothing but sockets in its first message. So the ends of the next queue are in
    /// another one.
    fn fill(&self, sockets: &[Socket], is_first: bool) -> io::Result<()> {
        let next = Self::new()?;
        let ends = [next.reader.as_fd(), next.writer.as_fd()];
        let all: Vec<_> = sockets.iter().map(AsFd::as_fd).chain(ends).collect();
        // The kernel limits the descriptors that lie in queues for a user, but lets one message go beyond the limit. Then no member
        // could pass the escrow on. So it is tried first whether another message could follow.
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

/// The sockets in a queue; `None` if it is empty.
fn look_into(queue: &OwnedFd) -> io::Result<Option<Chunk>> {
    let (sockets, ends) = (peek(queue, 0), peek(queue, SOCKETS.len()));
    // Older versions look at the first message and do not say which one they mean.
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

/// Copies of the descriptors of the message at this offset in bytes in a queue. Empty without such a message.
fn peek(queue: &OwnedFd, offset: usize) -> io::Result<Vec<OwnedFd>> {
    // A process that was killed here has left its offset.
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

/// Receives one message with its descriptors, without waiting; the length, 0 at the end of a connection, comes first.
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
        // No message has more descriptors than there is space for, so the process has no numbers left: see `ulimit -n`.
        return Err(io::Error::from_raw_os_error(libc::EMFILE));
    }
    Ok((received.bytes, descriptors))
}

/// The bytes of a message with sockets.
const SOCKETS: &[u8] = b"sockets";
/// The bytes of a message with the ends of the next queue.
const ENDS: &[u8] = b"next";
/// In one message: sockets, and the ends of the next queue. The kernel allows 253.
const MOST_DESCRIPTORS: usize = CHUNK + 2;

#[cfg(test)]
mod tests {
    use socket2::{Domain, Type};

    use super::*;

    fn inodes(sockets: &[Socket]) -> Vec<u64> {
        sockets.iter().map(|socket| rustix::fs::fstat(socket).unwrap().st_ino).collect()
    }

    /// The first message of older versions is the only one, and they look at the first message as it is.
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
        // A process that is killed while it looks into a queue leaves an offset there.
        for offset in [3, 7, 9, 11, 1000] {
            peek_from(&escrow.0, offset).unwrap();
            assert_eq!(inodes(&escrow.first().unwrap().sockets), inodes(&own));
        }
        let (_, found) = receive_with(&escrow.0, &mut [0; 16], RecvFlags::PEEK).unwrap();
        assert_eq!(inodes(&found.into_iter().map(Socket::from).collect::<Vec<_>>()), inodes(&own));
    }
}
