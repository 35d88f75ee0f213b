//! Descriptors that a program may close although they are not its own: daemons close all that they did not open.
//!
//! The numbers would then name what the program opens next, and a device would read from the program's sockets. So descriptors that the
//! program never sees get numbers far above those that the kernel gives next, and a device looks now and then whether its socket is
//! still there.

use std::os::fd::{AsFd, OwnedFd};

use roce_transport::Instant;
use rustix::fs::fstat;
use rustix::io::fcntl_dupfd_cloexec;
use rustix::process::{Resource, getrlimit};

/// The numbers begin at three quarters of the limit, but not above this: the kernel's table of descriptors is as long as the largest number.
const HIGHEST_BEGIN: u64 = 3072;

/// Gives a descriptor a high number. If the system has none left, it keeps its number.
#[must_use]
pub fn aside(descriptor: OwnedFd) -> OwnedFd {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let begin = (limit / 4).saturating_mul(3).min(HIGHEST_BEGIN);
    let begin = i32::try_from(begin).unwrap_or_default();
    fcntl_dupfd_cloexec(&descriptor, begin).unwrap_or(descriptor)
}

/// What a socket is, whatever its number.
#[derive(Debug)]
pub struct Identity {
    /// Device and inode; `None` where the system does not tell.
    file: Option<(u64, u64)>,
    /// Calls since the last look, and when that was.
    unlooked: u32,
    looked_at: Instant,
}

/// A look takes a quarter of a microsecond.
const LOOK_AGAIN_NS: u64 = 100_000;
/// The most calls without a look, for a caller whose clock stands still.
const MOST_UNLOOKED: u32 = 256;

impl Identity {
    /// The identity that a socket has now.
    pub fn of(socket: impl AsFd) -> Self {
        Self { file: file_of(socket), unlooked: 0, looked_at: Instant::ZERO }
    }

    /// Whether it is time to look again.
    #[inline]
    pub fn is_due(&mut self, now: Instant) -> bool {
        self.unlooked += 1;
        let is_due = self.unlooked >= MOST_UNLOOKED || now >= self.looked_at.plus_nanos(LOOK_AGAIN_NS);
        if is_due {
            (self.unlooked, self.looked_at) = (0, now);
        }
        is_due
    }

    /// Whether the descriptor is still that of this socket.
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
        // As if the program had closed ours and got the number for its own.
        let other = UdpSocket::bind("127.0.0.1:0").unwrap();
        let number = socket.into_raw_fd();
        // SAFETY: the number is owned by nothing else from here on.
        let reused = unsafe {
            assert_eq!(libc::dup2(other.as_raw_fd(), number), number);
            <UdpSocket as std::os::fd::FromRawFd>::from_raw_fd(number)
        };
        assert!(!identity.is_of(&reused));
    }
}
