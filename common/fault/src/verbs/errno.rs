//! The error numbers of Linux by name.

use std::fmt;

use crate::closest::closest;
use crate::text::number;

/// An error number of Linux. The numbers are those of most processors, x86-64 and AArch64 included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Errno(u16);

/// The largest error number that the kernel uses.
const LARGEST: u32 = 4095;

/// Names and numbers, as in `errno.h`. Of two names for a number, the first one is printed.
const NAMES: &[(&str, u16)] = &[
    ("EPERM", 1),
    ("ENOENT", 2),
    ("ESRCH", 3),
    ("EINTR", 4),
    ("EIO", 5),
    ("ENXIO", 6),
    ("E2BIG", 7),
    ("ENOEXEC", 8),
    ("EBADF", 9),
    ("ECHILD", 10),
    ("EAGAIN", 11),
    ("EWOULDBLOCK", 11),
    ("ENOMEM", 12),
    ("EACCES", 13),
    ("EFAULT", 14),
    ("EBUSY", 16),
    ("EEXIST", 17),
    ("EXDEV", 18),
    ("ENODEV", 19),
    ("ENOTDIR", 20),
    ("EISDIR", 21),
    ("EINVAL", 22),
    ("ENFILE", 23),
    ("EMFILE", 24),
    ("ENOTTY", 25),
    ("EFBIG", 27),
    ("ENOSPC", 28),
    ("EROFS", 30),
    ("EPIPE", 32),
    ("EDOM", 33),
    ("ERANGE", 34),
    ("EDEADLK", 35),
    ("ENAMETOOLONG", 36),
    ("ENOSYS", 38),
    ("ENOMSG", 42),
    ("ENODATA", 61),
    ("ETIME", 62),
    ("ENOLINK", 67),
    ("ECOMM", 70),
    ("EPROTO", 71),
    ("EBADMSG", 74),
    ("EOVERFLOW", 75),
    ("EREMOTEIO", 121),
    ("ENOTSOCK", 88),
    ("EDESTADDRREQ", 89),
    ("EMSGSIZE", 90),
    ("EPROTOTYPE", 91),
    ("ENOPROTOOPT", 92),
    ("EPROTONOSUPPORT", 93),
    ("ESOCKTNOSUPPORT", 94),
    ("EOPNOTSUPP", 95),
    ("ENOTSUP", 95),
    ("EPFNOSUPPORT", 96),
    ("EAFNOSUPPORT", 97),
    ("EADDRINUSE", 98),
    ("EADDRNOTAVAIL", 99),
    ("ENETDOWN", 100),
    ("ENETUNREACH", 101),
    ("ENETRESET", 102),
    ("ECONNABORTED", 103),
    ("ECONNRESET", 104),
    ("ENOBUFS", 105),
    ("EISCONN", 106),
    ("ENOTCONN", 107),
    ("ESHUTDOWN", 108),
    ("ETIMEDOUT", 110),
    ("ECONNREFUSED", 111),
    ("EHOSTDOWN", 112),
    ("EHOSTUNREACH", 113),
    ("EALREADY", 114),
    ("EINPROGRESS", 115),
    ("ESTALE", 116),
    ("EDQUOT", 122),
    ("ECANCELED", 125),
    ("EKEYREJECTED", 129),
    ("EOWNERDEAD", 130),
];

impl Errno {
    /// Returns the error number with this name, such as `ENOMEM`, or with this number, 1 to 4095.
    #[must_use]
    pub fn find(text: &str) -> Option<Self> {
        if let Some((_, number)) = NAMES.iter().find(|(name, _)| *name == text) {
            return Some(Self(*number));
        }
        number(text)
            .filter(|number| (1..=LARGEST).contains(number))
            .and_then(|n| u16::try_from(n).ok())
            .map(Self)
    }

    /// Returns the number.
    #[must_use]
    pub fn get(self) -> i32 {
        self.0.into()
    }

    /// Returns the name that a misspelled one may stand for.
    pub(super) fn suggest(text: &str) -> Option<&'static str> {
        closest(&text.to_ascii_uppercase(), NAMES.iter().map(|(name, _)| *name))
    }
}

impl fmt::Display for Errno {
    /// Writes the name, or the number if it has no name here.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match NAMES.iter().find(|(_, number)| *number == self.0) {
            Some((name, _)) => f.write_str(name),
            None => write!(f, "{}", self.0),
        }
    }
}
