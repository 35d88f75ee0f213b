//! The sockets of an address, all of them, in the queue of a socket: they stay open, in their places, as long as any
//! process holds that one descriptor.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use socket2::Socket;

use super::SLOTS;
use crate::descriptors::aside;

/// The descriptor whose queue holds the sockets.
#[derive(Debug)]
pub(super) struct Escrow(OwnedFd);

impl Escrow {
    /// Puts sockets into the queue of a new one.
    pub(super) fn new(sockets: &[Socket]) -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let (writer, reader) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        let descriptors: Vec<_> = sockets.iter().map(AsFd::as_fd).collect();
        send_with(&writer, b"sockets", &descriptors)?;
        Ok(Self(aside(reader)))
    }

    /// The descriptor that another process passed on; an error if it holds anything else.
    pub(super) fn adopt(descriptor: OwnedFd) -> io::Result<Self> {
        let escrow = Self(aside(descriptor));
        escrow.sockets()?;
        Ok(escrow)
    }

    /// Copies of all sockets. They stay in the queue.
    pub(super) fn sockets(&self) -> io::Result<Vec<Socket>> {
        let mut text = [0; 16];
        let (_, descriptors) = receive_with(&self.0, &mut text, RecvFlags::PEEK)?;
        if descriptors.len() != usize::from(SLOTS) {
            // The only reason within one system: no room for more descriptors, see `ulimit -n`.
            return Err(io::Error::from_raw_os_error(libc::EMFILE));
        }
        Ok(descriptors.into_iter().map(Socket::from).collect())
    }

    /// Passes it to the process at the other end of a connection.
    pub(super) fn pass_to(&self, connection: impl AsFd) -> io::Result<()> {
        send_with(connection, &[super::ADMITTED], &[self.0.as_fd()])
    }
}

/// Sends one message with descriptors, without waiting.
fn send_with(socket: impl AsFd, bytes: &[u8], descriptors: &[BorrowedFd<'_>]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(SLOTS as usize))];
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
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(SLOTS as usize))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = flags | RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let received = recvmsg(socket, &mut [IoSliceMut::new(bytes)], &mut control, flags)?;
    let mut descriptors = Vec::new();
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(rights) = message {
            descriptors.extend(rights);
        }
    }
    Ok((received.bytes, descriptors))
}
