//! Requests to the kernel about interfaces, addresses, routes and neighbours over rtnetlink (RFC 3549).
//!
//! This module transfers messages; the modules `interfaces` and `routes` define their content. A request
//! costs one system call to send and one or more to receive, because the kernel answers before the first
//! returns.

use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::io::retry_on_intr;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socket_with};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// A socket for queries of the kernel's tables.
pub struct Netlink {
    socket: OwnedFd,
    buffer: Vec<u8>,
    sequence: u32,
}

/// `struct nlmsghdr`.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
struct MessageHeader {
    /// Length including this header.
    len: u32,
    kind: u16,
    flags: u16,
    sequence: u32,
    port: u32,
}

/// `struct rtattr`.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
struct AttributeHeader {
    /// Length including this header.
    len: u16,
    kind: u16,
}

/// A request: a message of type `kind`, whose body begins with the header of this type.
pub(crate) struct Request {
    kind: u16,
    flags: u16,
    body: Vec<u8>,
}

/// A message of the answer.
pub(crate) struct Answer<'a> {
    kind: u16,
    body: &'a [u8],
}

impl Request {
    /// Creates a request for one entry.
    pub(crate) fn get(kind: u16, header: &(impl IntoBytes + Immutable)) -> Self {
        Self { kind, flags: NLM_F_REQUEST, body: header.as_bytes().to_vec() }
    }

    /// Creates a request for a whole table.
    pub(crate) fn dump(kind: u16, header: &(impl IntoBytes + Immutable)) -> Self {
        Self { flags: NLM_F_REQUEST | NLM_F_DUMP, ..Self::get(kind, header) }
    }

    fn to_bytes(&self, sequence: u32) -> Vec<u8> {
        let len = (size_of::<MessageHeader>() + self.body.len()) as u32;
        let header = MessageHeader { len, kind: self.kind, flags: self.flags, sequence, port: 0 };
        [header.as_bytes(), &self.body].concat()
    }

    /// Adds an attribute. Values are addresses and numbers, so their length always fits.
    pub(crate) fn with_attribute(mut self, kind: u16, value: &[u8]) -> Self {
        let len = (size_of::<AttributeHeader>() + value.len()) as u16;
        self.body.extend_from_slice(AttributeHeader { len, kind }.as_bytes());
        self.body.extend_from_slice(value);
        self.body.resize(self.body.len().next_multiple_of(ALIGNMENT), 0);
        self
    }

    /// Adds an attribute with an address.
    pub(crate) fn with_address(self, kind: u16, address: IpAddr) -> Self {
        match address {
            IpAddr::V4(address) => self.with_attribute(kind, &address.octets()),
            IpAddr::V6(address) => self.with_attribute(kind, &address.octets()),
        }
    }
}

impl<'a> Answer<'a> {
    /// Returns the header and the attributes, if the answer is of type `kind`.
    pub(crate) fn parse<H: FromBytes>(
        &self,
        kind: u16,
    ) -> Option<(H, impl Iterator<Item = (u16, &'a [u8])> + use<'a, H>)> {
        if self.kind != kind {
            return None;
        }
        let (header, rest) = H::read_from_prefix(self.body).ok()?;
        Some((header, attributes(rest)))
    }
}

impl Netlink {
    /// Opens a socket.
    ///
    /// # Errors
    ///
    /// Returns an error if the system has no descriptor or memory left.
    pub fn open() -> io::Result<Self> {
        // Protocol 0, the default, is NETLINK_ROUTE.
        let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, None)?;
        // The answer is present before it is read; the timeout only limits the effect of a broken kernel.
        set_socket_timeout(&socket, Timeout::Recv, Some(Duration::from_secs(1)))?;
        Ok(Self { socket, buffer: vec![0; BUFFER_LEN], sequence: 0 })
    }

    /// Sends one request and calls `visit` for each answer.
    pub(crate) fn ask(&mut self, request: &Request, mut visit: impl FnMut(&Answer<'_>)) -> io::Result<()> {
        self.sequence = self.sequence.wrapping_add(1);
        retry_on_intr(|| send(&self.socket, &request.to_bytes(self.sequence), SendFlags::empty()))?;
        loop {
            let buffer = &mut self.buffer[..];
            let (_, len) = retry_on_intr(|| recv(&self.socket, &mut *buffer, RecvFlags::TRUNC))?;
            let received = self.buffer.get(..len).ok_or_else(invalid_answer)?;
            if read_messages(received, self.sequence, &mut visit)? {
                return Ok(());
            }
        }
    }
}

/// Parses the messages of one system call. Returns whether the answer to request `sequence` is complete.
fn read_messages(mut bytes: &[u8], sequence: u32, visit: &mut impl FnMut(&Answer<'_>)) -> io::Result<bool> {
    while !bytes.is_empty() {
        let (header, _) = MessageHeader::read_from_prefix(bytes).map_err(|_| invalid_answer())?;
        let len = header.len as usize;
        let body = bytes.get(size_of::<MessageHeader>()..len).ok_or_else(invalid_answer)?;
        bytes = bytes.get(len.next_multiple_of(ALIGNMENT)..).unwrap_or_default();
        // Skips the answer to an earlier, failed request.
        if header.sequence != sequence {
            continue;
        }
        match header.kind {
            NLMSG_NOOP => continue,
            NLMSG_DONE => return Ok(true),
            NLMSG_ERROR => {
                let (code, _) = i32::read_from_prefix(body).map_err(|_| invalid_answer())?;
                return match code {
                    0 => Ok(true),
                    code => Err(io::Error::from_raw_os_error(code.saturating_neg())),
                };
            }
            kind => visit(&Answer { kind, body }),
        }
        if header.flags & NLM_F_MULTI == 0 {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Iterates over the types and values of attributes. Stops at bytes that do not form an attribute.
fn attributes(mut bytes: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let (header, _) = AttributeHeader::read_from_prefix(bytes).ok()?;
        let len = usize::from(header.len);
        let value = bytes.get(size_of::<AttributeHeader>()..len)?;
        bytes = bytes.get(len.next_multiple_of(ALIGNMENT)..).unwrap_or_default();
        Some((header.kind & NLA_TYPE_MASK, value))
    })
}

/// Parses an attribute with an address of either family.
pub(crate) fn address(value: &[u8]) -> Option<IpAddr> {
    let v4 = value.try_into().map(|octets: [u8; 4]| IpAddr::from(octets));
    v4.or_else(|_| value.try_into().map(|octets: [u8; 16]| IpAddr::from(octets))).ok()
}

/// Parses an attribute with a number.
pub(crate) fn number(value: &[u8]) -> Option<u32> {
    value.try_into().map(u32::from_ne_bytes).ok()
}

fn invalid_answer() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the kernel sent an answer that is not valid rtnetlink")
}

/// Longest answer that the kernel sends.
const BUFFER_LEN: usize = 32 << 10;
/// `NLMSG_ALIGNTO` and `RTA_ALIGNTO`.
const ALIGNMENT: usize = 4;
const NLM_F_REQUEST: u16 = 0x001;
const NLM_F_MULTI: u16 = 0x002;
const NLM_F_DUMP: u16 = 0x300;
const NLMSG_NOOP: u16 = 1;
const NLMSG_ERROR: u16 = 2;
const NLMSG_DONE: u16 = 3;
/// Mask that removes the flags for nested attributes and byte order.
const NLA_TYPE_MASK: u16 = 0x3fff;

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn message(kind: u16, flags: u16, sequence: u32, body: &[u8]) -> Vec<u8> {
        let request = Request { kind, flags, body: body.to_vec() };
        let mut bytes = request.to_bytes(sequence);
        bytes.resize(bytes.len().next_multiple_of(ALIGNMENT), 0);
        bytes
    }

    /// Returns the result of `read_messages` and the bodies that it visits.
    fn read(bytes: &[u8]) -> (io::Result<bool>, Vec<Vec<u8>>) {
        let mut visited = Vec::new();
        let result = read_messages(bytes, 7, &mut |answer| visited.push(answer.body.to_vec()));
        (result, visited)
    }

    #[test]
    fn child_processes_do_not_inherit_the_socket() {
        let flags = rustix::io::fcntl_getfd(&Netlink::open().unwrap().socket).unwrap();
        assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
    }

    #[test]
    fn answers_are_complete_after_the_last_message() {
        let part = |body: &[u8]| message(16, NLM_F_MULTI, 7, body);
        let done = message(NLMSG_DONE, NLM_F_MULTI, 7, &[0; 4]);
        let (result, visited) = read(&[part(b"one"), part(b"two four")].concat());
        assert_eq!((result.unwrap(), visited), (false, vec![b"one".to_vec(), b"two four".to_vec()]));
        assert!(read(&[part(b"one"), done].concat()).0.unwrap());
        assert!(read(&message(16, 0, 7, b"alone")).0.unwrap());
        // Answers to an earlier request are skipped.
        let (result, visited) = read(&message(16, 0, 6, b"old"));
        assert_eq!((result.unwrap(), visited.len()), (false, 0));
    }

    #[test]
    fn errors_of_the_kernel_and_broken_answers_are_errors() {
        let error = |code: i32| message(NLMSG_ERROR, 0, 7, &code.to_ne_bytes());
        assert_eq!(read(&error(-19)).0.unwrap_err().raw_os_error(), Some(19));
        assert!(read(&error(0)).0.unwrap());
        assert_eq!(read(&error(i32::MIN)).0.unwrap_err().raw_os_error(), Some(i32::MAX));
        let whole = message(16, 0, 7, b"body");
        for broken in [&whole[..3], &whole[..18], &error(-1)[..16], &[0; 16][..]] {
            assert_eq!(read(broken).0.unwrap_err().kind(), io::ErrorKind::InvalidData, "{broken:?}");
        }
    }

    #[test]
    fn attributes_are_read_as_they_are_written() {
        let request = Request::get(18, &0_u32)
            .with_attribute(0x8000 | 3, b"v0\0")
            .with_address(1, "198.18.0.1".parse().unwrap())
            .with_address(2, "2001:db8::1".parse().unwrap());
        let answer = Answer { kind: 18, body: &request.body };
        assert!(answer.parse::<u32>(19).is_none());
        let (_, mut found) = answer.parse::<u32>(18).unwrap();
        assert_eq!(found.next().unwrap(), (3, &b"v0\0"[..]));
        assert_eq!(found.next().and_then(|(_, value)| address(value)), "198.18.0.1".parse().ok());
        assert_eq!(found.next().and_then(|(_, value)| address(value)), "2001:db8::1".parse().ok());
        assert!(found.next().is_none());
        assert_eq!((address(b"ten bytes!"), number(b"abc")), (None, None));
    }

    proptest! {
        /// Any bytes, and the attributes in them, are parsed to the end without a panic.
        #[test]
        fn any_bytes_are_read(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let mut visits = 0;
            let sequence = u32::from_ne_bytes(bytes.get(8..12).and_then(|it| it.try_into().ok()).unwrap_or_default());
            let _ = read_messages(&bytes, sequence, &mut |answer| visits += attributes(answer.body).count());
            let _ = attributes(&bytes).count();
            prop_assert!(visits <= bytes.len());
        }
    }
}
