//! The values of the options of rsockets.

use std::collections::HashMap;
use std::ffi::c_int;

use super::wire::{mappings_byte, mappings_of};
use crate::answer::Errno;

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

    pub(super) fn set(&mut self, name: (c_int, c_int), value: c_int) -> Result<(), Errno> {
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

    pub(super) fn get(&self, name: (c_int, c_int)) -> Result<c_int, Errno> {
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
