//! Protects descriptors from programs that close descriptors which they did not open, as daemons do.
//!
//! After such a close, the next file or socket that the program opens gets the number, and a device would
//! read from the program's socket. Descriptors that the program never sees therefore get high numbers, far
//! above those that the kernel assigns next. A device also checks regularly that its socket is still the
//! same.

use std::os::fd::{AsFd, OwnedFd};

use roce_transport::Instant;
use rustix::fs::fstat;
use rustix::io::fcntl_dupfd_cloexec;
use rustix::process::{Resource, getrlimit};

/// Upper limit for the first number. The numbers begin at three quarters of the descriptor limit or at this
/// value. They are not higher, because the kernel's descriptor table is as long as the largest number.
const HIGHEST_BEGIN: u64 = 3072;

/// Moves a descriptor to a high number. Keeps its number if the system has none left.
#[must_use]
pub fn aside(descriptor: OwnedFd) -> OwnedFd {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let begin = (limit / 4).saturating_mul(3).min(HIGHEST_BEGIN);
    let begin = i32::try_from(begin).unwrap_or_default();
    fcntl_dupfd_cloexec(&descriptor, begin).unwrap_or(descriptor)
}

/// The identity of a socket, independent of its number.
#[derive(Debug)]
pub struct Identity {
    /// Device and inode, or `None` if the system does not report them.
    file: Option<(u64, u64)>,
    /// Number of calls since the last check, and the time of that check.
    unlooked: u32,
    looked_at: Instant,
}

/// Minimum interval between two checks. A check takes a quarter of a microsecond.
const LOOK_AGAIN_NS: u64 = 100_000;
/// Maximum number of calls without a check, for callers whose clock stands still.
const MOST_UNLOOKED: u32 = 256;

impl Identity {
    /// Returns the current identity of a socket.
    pub fn of(socket: impl AsFd) -> Self {
        Self { file: file_of(socket), unlooked: 0, looked_at: Instant::ZERO }
    }

    /// Returns whether the next check is due.
    #[inline]
    pub fn is_due(&mut self, now: Instant) -> bool {
        self.unlooked += 1;
        let is_due = self.unlooked >= MOST_UNLOOKED || now >= self.looked_at.plus_nanos(LOOK_AGAIN_NS);
        if is_due {
            (self.unlooked, self.looked_at) = (0, now);
        }
        is_due
    }

    /// Returns whether the descriptor still belongs to this socket.
    #[must_use]
    pub fn is_of(&self, socket: impl AsFd) -> bool {
        self.file.is_none() || self.file == file_of(socket)
    }
}

fn file_of(socket: impl AsFd) -> Option<(u64, u64)> {
    fstat(socket).ok().map(|found| (found.st_dev, found.st_ino))
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::os::fd::{AsRawFd, IntoRawFd};

    use super::*;

    #[test]
    fn a_descriptor_gets_a_number_that_programs_do_not_get() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let address = socket.local_addr().unwrap();
        let before = socket.as_raw_fd();
        let moved = UdpSocket::from(aside(socket.into()));
        assert!(moved.as_raw_fd() > before + 100, "{before} became {}", moved.as_raw_fd());
        assert_eq!(moved.local_addr().unwrap(), address);
    }

    #[test]
    fn another_socket_with_the_same_number_is_noticed() {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        let mut identity = Identity::of(&socket);
        assert!(identity.is_of(&socket));
        assert!(identity.is_due(Instant::from_nanos(LOOK_AGAIN_NS)));
        assert!(!identity.is_due(Instant::from_nanos(LOOK_AGAIN_NS + 1)));
        assert!((0..MOST_UNLOOKED).any(|_| identity.is_due(Instant::from_nanos(LOOK_AGAIN_NS + 1))));
        // The program closes our socket and gets its number for another one.
        let other = UdpSocket::bind("127.0.0.1:0").unwrap();
        let number = socket.into_raw_fd();
        // SAFETY: from here on, only `reused` owns the number.
        let reused = unsafe {
            assert_eq!(libc::dup2(other.as_raw_fd(), number), number);
            <UdpSocket as std::os::fd::FromRawFd>::from_raw_fd(number)
        };
        assert!(!identity.is_of(&reused));
    }
}
