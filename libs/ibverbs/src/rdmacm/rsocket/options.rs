//! Options and flags of rsockets.

use std::collections::HashMap;
use std::ffi::{c_int, c_long, c_void};

use super::wire::{mappings_byte, mappings_of};
use super::{Any, Phase, State, find};
use crate::answer::{Errno, count};

/// `SOL_RDMA` and the names at that level.
const SOL_RDMA: c_int = 0x1_0000;
const RDMA_SQSIZE: c_int = 0;
const RDMA_RQSIZE: c_int = 1;
const RDMA_INLINE: c_int = 2;
const RDMA_IOMAPSIZE: c_int = 3;
const SMALLEST_BUFFER: usize = 4096;
const LARGEST_BUFFER: usize = 1 << 28;
const LEAST_DEPTH: u16 = 16;
const GREATEST_DEPTH: u16 = 4096;

/// The options for creating a stream.
#[derive(Clone)]
pub(super) struct Options {
    pub(super) send_bytes: usize,
    pub(super) receive_bytes: usize,
    pub(super) send_depth: u16,
    pub(super) receive_depth: u16,
    /// Maximum number of mappings that the peer may announce.
    pub(super) mappings: u16,
    /// Options that have no effect here.
    kept: HashMap<(c_int, c_int), c_int>,
}

impl Default for Options {
    fn default() -> Self {
        let bytes = 1 << 17;
        Self {
            send_bytes: bytes,
            receive_bytes: bytes,
            send_depth: 384,
            receive_depth: 384,
            mappings: 0,
            kept: HashMap::new(),
        }
    }
}

impl Options {
    /// Returns whether another socket may be bound to the same port.
    pub(super) fn is_port_shared(&self) -> bool {
        self.kept.get(&(libc::SOL_SOCKET, libc::SO_REUSEADDR)).is_some_and(|value| *value != 0)
    }

    fn set(&mut self, name: (c_int, c_int), value: c_int) -> Result<(), Errno> {
        let size = usize::try_from(value).map_err(|_| Errno::INVALID);
        let bytes = size.map(|size| size.clamp(SMALLEST_BUFFER, LARGEST_BUFFER));
        let depth =
            size.map(|size| u16::try_from(size).unwrap_or(GREATEST_DEPTH).clamp(LEAST_DEPTH, GREATEST_DEPTH));
        match name {
            (libc::SOL_SOCKET, libc::SO_SNDBUF) => self.send_bytes = bytes?,
            (libc::SOL_SOCKET, libc::SO_RCVBUF) => self.receive_bytes = bytes?,
            (SOL_RDMA, RDMA_SQSIZE) => self.send_depth = depth?,
            (SOL_RDMA, RDMA_RQSIZE) => self.receive_depth = depth?,
            (SOL_RDMA, RDMA_IOMAPSIZE) => {
                self.mappings = mappings_of(mappings_byte(u16::try_from(size?).unwrap_or(u16::MAX)));
            }
            (libc::SOL_SOCKET, libc::SO_REUSEADDR | libc::SO_KEEPALIVE | libc::SO_OOBINLINE)
            | (
                libc::IPPROTO_TCP,
                libc::TCP_NODELAY
                | libc::TCP_MAXSEG
                | libc::TCP_KEEPIDLE
                | libc::TCP_KEEPINTVL
                | libc::TCP_KEEPCNT,
            )
            | (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY)
            | (SOL_RDMA, RDMA_INLINE) => {
                self.kept.insert(name, value);
            }
            _ => return Err(Errno(libc::ENOPROTOOPT)),
        }
        Ok(())
    }

    fn get(&self, name: (c_int, c_int)) -> Result<c_int, Errno> {
        let number = |size: usize| c_int::try_from(size).unwrap_or(c_int::MAX);
        Ok(match name {
            (libc::SOL_SOCKET, libc::SO_SNDBUF) => number(self.send_bytes),
            (libc::SOL_SOCKET, libc::SO_RCVBUF) => number(self.receive_bytes),
            (SOL_RDMA, RDMA_SQSIZE) => self.send_depth.into(),
            (SOL_RDMA, RDMA_RQSIZE) => self.receive_depth.into(),
            (SOL_RDMA, RDMA_IOMAPSIZE) => self.mappings.into(),
            _ => match self.kept.get(&name) {
                Some(value) => *value,
                // An option that was not set but could be has the value 0.
                None => self.clone().set(name, 0).map(|()| 0)?,
            },
        })
    }
}

pub(crate) unsafe extern "C" fn rsetsockopt(
    number: c_int,
    level: c_int,
    name: c_int,
    value: *const c_void,
    len: libc::socklen_t,
) -> c_int {
    count(|| {
        let socket = find(number).ok_or(Errno(libc::EBADF))?;
        if value.is_null() || (len as usize) < size_of::<c_int>() {
            return Err(Errno::INVALID);
        }
        // SAFETY: the application's value has at least the size of an integer.
        let value = unsafe { value.cast::<c_int>().read_unaligned() };
        match socket {
            Any::Stream(socket) => socket.state().options.set((level, name), value)?,
            Any::Datagram(socket) => socket.state().options.set((level, name), value)?,
        }
        Ok(0)
    })
}

fn of_stream(state: &mut State, name: (c_int, c_int)) -> Result<c_int, Errno> {
    match name {
        (libc::SOL_SOCKET, libc::SO_ERROR) => Ok(std::mem::take(&mut state.error)),
        (libc::SOL_SOCKET, libc::SO_TYPE) => Ok(libc::SOCK_STREAM),
        (libc::SOL_SOCKET, libc::SO_ACCEPTCONN) => Ok((state.phase == Phase::Listening).into()),
        name => state.options.get(name),
    }
}

fn of_datagrams(options: &Options, name: (c_int, c_int)) -> Result<c_int, Errno> {
    match name {
        (libc::SOL_SOCKET, libc::SO_ERROR | libc::SO_ACCEPTCONN) => Ok(0),
        (libc::SOL_SOCKET, libc::SO_TYPE) => Ok(libc::SOCK_DGRAM),
        name => options.get(name),
    }
}

pub(crate) unsafe extern "C" fn rgetsockopt(
    number: c_int,
    level: c_int,
    name: c_int,
    value: *mut c_void,
    len: *mut libc::socklen_t,
) -> c_int {
    count(|| {
        let socket = find(number).ok_or(Errno(libc::EBADF))?;
        // SAFETY: the application's room for the answer, or null.
        unsafe {
            if value.is_null() || len.is_null() || (*len as usize) < size_of::<c_int>() {
                return Err(Errno::INVALID);
            }
            let found = match socket {
                Any::Stream(socket) => of_stream(&mut socket.state(), (level, name))?,
                Any::Datagram(socket) => of_datagrams(&socket.state().options, (level, name))?,
            };
            value.cast::<c_int>().write_unaligned(found);
            *len = size_of::<c_int>() as libc::socklen_t;
        }
        Ok(0)
    })
}

/// Implements `fcntl`. In C it has a variable number of arguments, which these architectures pass like
/// others.
pub(crate) extern "C" fn rfcntl(number: c_int, command: c_int, argument: c_long) -> c_int {
    count(|| {
        let change = |is_nonblocking: &mut bool| match command {
            libc::F_GETFL => Ok(libc::O_RDWR | if *is_nonblocking { libc::O_NONBLOCK } else { 0 }),
            libc::F_SETFL => {
                *is_nonblocking = argument & c_long::from(libc::O_NONBLOCK) != 0;
                Ok(0)
            }
            _ => Err(Errno::UNSUPPORTED),
        };
        match find(number).ok_or(Errno(libc::EBADF))? {
            Any::Stream(socket) => change(&mut socket.state().is_nonblocking),
            Any::Datagram(socket) => change(&mut socket.state().is_nonblocking),
        }
    })
}
