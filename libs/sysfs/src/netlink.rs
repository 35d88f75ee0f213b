//! Netlink sockets of the protocol RDMA, which `rdma dev` and UCX query. Kernels without RDMA do not have
//! them.
//!
//! The program gets a socket of the protocol for user space, and binds it, sets options, polls and receives
//! as usual. Messages of the program are not sent. This library parses the requests and sends the answers to
//! the socket from another one. The attributes in the answers are files of `roce run`:
//! `netlink/COMMAND/DEVICE`. Other commands are answered with `EOPNOTSUPP`.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicU64, Ordering};

use libc::{iovec, msghdr, sa_family_t, size_t, sockaddr, sockaddr_nl, socklen_t, ssize_t};

use crate::LONGEST;
use crate::buffer::Buffer;
use crate::functions::Next;
use crate::root::root;

/// The client for devices (`RDMA_NL_NLDEV`). Its number is in the bits above the command.
const CLIENT: u16 = 5;
const CLIENT_SHIFT: u16 = 10;
/// `RDMA_NLDEV_CMD_PORT_GET`, which requires a port number.
const PORT_GET: u16 = 5;
const ATTRIBUTE_OF_DEVICE: u16 = 1;
const ATTRIBUTE_OF_PORT: u16 = 3;
/// Number of the only port.
const PORT: u32 = 1;

/// Length of a message header: length, type, flags, sequence number, port ID.
const HEAD: usize = 16;
/// Largest length of the attributes: one page.
const MOST: usize = 4096;

/// Bitmap of the program's descriptors that are such sockets. A program has few descriptors when it opens
/// one.
static SOCKETS: [AtomicU64; 16] = [const { AtomicU64::new(0) }; 16];

fn word_and_bit(descriptor: c_int) -> Option<(&'static AtomicU64, u64)> {
    let descriptor = usize::try_from(descriptor).ok()?;
    Some((SOCKETS.get(descriptor / 64)?, 1 << (descriptor % 64)))
}

/// Returns whether a descriptor is such a socket. Its number may belong to another file by now.
fn is_ours(descriptor: c_int) -> bool {
    let Some((word, bit)) = word_and_bit(descriptor) else { return false };
    if word.load(Ordering::Relaxed) & bit == 0 {
        return false;
    }
    let option = |name: c_int| {
        let (mut value, mut len): (c_int, socklen_t) = (-1, size_of::<c_int>() as socklen_t);
        // SAFETY: the buffer has room for the value.
        unsafe {
            libc::getsockopt(descriptor, libc::SOL_SOCKET, name, (&raw mut value).cast(), &raw mut len)
        };
        value
    };
    let is_ours =
        option(libc::SO_DOMAIN) == libc::AF_NETLINK && option(libc::SO_PROTOCOL) == libc::NETLINK_USERSOCK;
    if !is_ours {
        word.fetch_and(!bit, Ordering::Relaxed);
    }
    is_ours
}

/// Calls the function of libc. Sockets of the protocol RDMA get another protocol.
///
/// # Safety
///
/// The requirements are those of the function of libc.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    static NEXT: Next = Next::new(c"socket");
    type Function = unsafe extern "C" fn(c_int, c_int, c_int) -> c_int;
    let Some(next) = NEXT.address() else { return -1 };
    // SAFETY: libc's function of this name has this type.
    let next = unsafe { std::mem::transmute::<*mut c_void, Function>(next) };
    if domain != libc::AF_NETLINK || protocol != libc::NETLINK_RDMA || root().is_none() {
        // SAFETY: the caller meets the requirements of libc's function.
        return unsafe { next(domain, kind, protocol) };
    }
    // SAFETY: the caller meets the requirements of libc's function.
    let descriptor = unsafe { next(domain, kind, libc::NETLINK_USERSOCK) };
    if let Some((word, bit)) = word_and_bit(descriptor) {
        word.fetch_or(bit, Ordering::Relaxed);
    }
    descriptor
}

/// Syntax: `name(arguments), parts to send`. Calls the function of libc, or answers a request.
macro_rules! senders {
    ($($name:ident($($argument:ident: $type:ty),*), $parts:expr;)*) => {$(
        /// Calls the function of libc. Requests of the protocol RDMA are answered here.
        ///
        /// # Safety
        ///
        /// The requirements are those of the function of libc.
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $name(descriptor: c_int, $($argument: $type),*) -> ssize_t {
            static NEXT: Next = Next::new(
                match std::ffi::CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                    Ok(name) => name,
                    Err(_) => panic!("a name has no zero"),
                },
            );
            type Function = unsafe extern "C" fn(c_int, $($type),*) -> ssize_t;
            if is_ours(descriptor) {
                // SAFETY: the caller passes readable memory.
                let request = unsafe { gathered($parts) };
                answer_all(descriptor, request.bytes());
                return request.bytes().len().cast_signed();
            }
            let Some(next) = NEXT.address() else { return -1 };
            // SAFETY: libc's function of this name has this type.
            let next = unsafe { std::mem::transmute::<*mut c_void, Function>(next) };
            // SAFETY: the caller meets the requirements of libc's function.
            unsafe { next(descriptor, $($argument),*) }
        }
    )*};
}

senders! {
    send(bytes: *const c_void, len: size_t, flags: c_int), one(bytes, len);
    sendto(bytes: *const c_void, len: size_t, flags: c_int, to: *const sockaddr, to_len: socklen_t), one(bytes, len);
    sendmsg(message: *const msghdr, flags: c_int), parts_of(&*message);
}

const fn one(bytes: *const c_void, len: size_t) -> One {
    One(iovec { iov_base: bytes.cast_mut(), iov_len: len })
}

#[allow(clippy::unnecessary_cast, reason = "musl has another type")]
const fn parts_of(message: &msghdr) -> (*const iovec, usize) {
    (message.msg_iov.cast_const(), message.msg_iovlen as usize)
}

/// A message in one part.
struct One(iovec);

/// The consecutive parts of a message.
trait Parts {
    fn parts(&self) -> (*const iovec, usize);
}

impl Parts for One {
    fn parts(&self) -> (*const iovec, usize) {
        (&raw const self.0, 1)
    }
}

impl Parts for (*const iovec, usize) {
    fn parts(&self) -> (*const iovec, usize) {
        *self
    }
}

/// Copies the parts into one buffer.
///
/// # Safety
///
/// The parts must be readable memory.
unsafe fn gathered(parts: impl Parts) -> Buffer<MOST> {
    let (first, number) = parts.parts();
    let mut all = Buffer::new();
    for index in 0..number {
        // SAFETY: the caller guarantees that the parts are readable.
        unsafe {
            let part = &*first.add(index);
            if part.iov_len > 0 {
                all.push(std::slice::from_raw_parts(part.iov_base.cast::<u8>(), part.iov_len));
            }
        }
    }
    all
}

fn number16(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn number32(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

/// A request.
struct Request<'a> {
    kind: u16,
    flags: u16,
    sequence: u32,
    attributes: &'a [u8],
    head: &'a [u8],
}

impl<'a> Request<'a> {
    /// Parses the first request. Returns it with the bytes that follow.
    fn parse(bytes: &'a [u8]) -> Option<(Self, &'a [u8])> {
        let len = number32(bytes, 0)? as usize;
        let message = bytes.get(..len)?;
        let request = Self {
            kind: number16(message, 4)?,
            flags: number16(message, 6)?,
            sequence: number32(message, 8)?,
            attributes: message.get(HEAD..)?,
            head: &message[..HEAD],
        };
        Some((request, bytes.get(len.next_multiple_of(4)..).unwrap_or_default()))
    }

    /// Returns the 32 bits of an attribute.
    fn attribute(&self, wanted: u16) -> Option<u32> {
        let mut rest = self.attributes;
        loop {
            let len = usize::from(number16(rest, 0)?);
            if number16(rest, 2)? == wanted {
                return number32(rest.get(..len)?, 4);
            }
            rest = rest.get(len.max(4).next_multiple_of(4)..)?;
        }
    }

    fn has(&self, flags: c_int) -> bool {
        c_int::from(self.flags) & flags == flags
    }
}

/// A socket that sends answers.
struct Answering {
    descriptor: c_int,
    to: sockaddr_nl,
}

impl Answering {
    fn new(program: c_int) -> Option<Self> {
        // SAFETY: the type contains only integers, for which zero is valid.
        let mut to: sockaddr_nl = unsafe { std::mem::zeroed() };
        let mut len = size_of::<sockaddr_nl>() as socklen_t;
        // SAFETY: the buffer has room for the address. Binding to port ID 0 requests a port ID from the
        // kernel.
        unsafe {
            libc::getsockname(program, (&raw mut to).cast(), &raw mut len);
            if to.nl_pid == 0 {
                to.nl_family = libc::AF_NETLINK as sa_family_t;
                libc::bind(program, (&raw const to).cast(), len);
                libc::getsockname(program, (&raw mut to).cast(), &raw mut len);
            }
        }
        to.nl_groups = 0;
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
        // SAFETY: the call only creates a socket.
        let made = unsafe { libc::syscall(libc::SYS_socket, libc::AF_NETLINK, kind, libc::NETLINK_USERSOCK) };
        Some(Self { descriptor: c_int::try_from(made).ok().filter(|made| *made >= 0)?, to })
    }

    fn send(&self, kind: u16, flags: c_int, request: &Request<'_>, payload: &[u8]) {
        let mut message = Buffer::<{ MOST + HEAD }>::new();
        message.push(&((HEAD + payload.len()) as u32).to_ne_bytes());
        message.push(&kind.to_ne_bytes());
        message.push(&(flags as u16).to_ne_bytes());
        message.push(&request.sequence.to_ne_bytes());
        message.push(&self.to.nl_pid.to_ne_bytes());
        message.push(payload);
        let (bytes, len) = (message.bytes(), size_of::<sockaddr_nl>());
        // SAFETY: the lengths are those of the message and the address.
        unsafe {
            let to = &raw const self.to;
            libc::syscall(libc::SYS_sendto, self.descriptor, bytes.as_ptr(), bytes.len(), 0, to, len);
        }
    }

    /// Sends the end of an answer: an error number, or 0.
    fn status(&self, request: &Request<'_>, errno: c_int) {
        let mut payload = Buffer::<{ HEAD + 4 }>::new();
        payload.push(&(-errno).to_ne_bytes());
        payload.push(request.head);
        self.send(libc::NLMSG_ERROR as u16, 0, request, payload.bytes());
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        // SAFETY: this object owns the descriptor.
        unsafe { libc::syscall(libc::SYS_close, self.descriptor) };
    }
}

fn answer_all(program: c_int, mut bytes: &[u8]) {
    let Some(answering) = Answering::new(program) else { return };
    while let Some((request, rest)) = Request::parse(bytes) {
        answer(&answering, &request);
        bytes = rest;
    }
}

fn answer(answering: &Answering, request: &Request<'_>) {
    let (client, command) = (request.kind >> CLIENT_SHIFT, request.kind & ((1 << CLIENT_SHIFT) - 1));
    if client != CLIENT || attributes_of(command, 0).is_none() {
        return answering.status(request, libc::EOPNOTSUPP);
    }
    let device = request.attribute(ATTRIBUTE_OF_DEVICE);
    if request.has(libc::NLM_F_DUMP) {
        let first = device.unwrap_or(0);
        let last = device.unwrap_or(u32::MAX);
        for index in first..=last {
            let Some(found) = attributes_of(command, index) else { break };
            answering.send(request.kind, libc::NLM_F_MULTI, request, found.bytes());
        }
        return answering.send(libc::NLMSG_DONE as u16, libc::NLM_F_MULTI, request, &0_u32.to_ne_bytes());
    }
    let is_port_wrong = command == PORT_GET && request.attribute(ATTRIBUTE_OF_PORT) != Some(PORT);
    match attributes_of(command, device.unwrap_or(0)) {
        Some(found) if !is_port_wrong => {
            answering.send(request.kind, 0, request, found.bytes());
            if request.has(libc::NLM_F_ACK) {
                answering.status(request, 0);
            }
        }
        _ => answering.status(request, libc::EINVAL),
    }
}

/// Reads the file with the attributes of a device.
fn attributes_of(command: u16, device: u32) -> Option<Buffer<MOST>> {
    let mut name = Buffer::<LONGEST>::new();
    name.push(root()?);
    name.push(b"/netlink/");
    name.push(Buffer::<8>::of_number(command.into()).bytes());
    name.push(b"/");
    name.push(Buffer::<16>::of_number(device.into()).bytes());
    name.push(b"\0");
    let mut page = [0_u8; MOST];
    // SAFETY: the name is NUL-terminated, and the buffer has room for a page.
    let len = unsafe {
        let flags = libc::O_RDONLY | libc::O_CLOEXEC;
        let file = libc::syscall(libc::SYS_openat, libc::AT_FDCWD, name.bytes().as_ptr(), flags, 0);
        if file < 0 {
            return None;
        }
        let len = libc::syscall(libc::SYS_read, file, page.as_mut_ptr(), page.len());
        libc::syscall(libc::SYS_close, file);
        len
    };
    let mut found = Buffer::new();
    found.push(page.get(..usize::try_from(len).ok()?)?);
    Some(found)
}
