//! Error numbers of the operating system.

use std::ffi::c_int;

use roce::verbs::{VerbsError, WaitError};

/// An error number of the operating system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Errno(pub(crate) c_int);

impl Errno {
    pub(crate) const AGAIN: Self = Self(libc::EAGAIN);
    pub(crate) const BUSY: Self = Self(libc::EBUSY);
    pub(crate) const INTERRUPTED: Self = Self(libc::EINTR);
    pub(crate) const INVALID: Self = Self(libc::EINVAL);
    pub(crate) const IO: Self = Self(libc::EIO);
    pub(crate) const NO_ENTRY: Self = Self(libc::ENOENT);
    pub(crate) const NO_MEMORY: Self = Self(libc::ENOMEM);
    pub(crate) const UNSUPPORTED: Self = Self(libc::EOPNOTSUPP);
}

impl From<VerbsError> for Errno {
    fn from(error: VerbsError) -> Self {
        Self(error.errno())
    }
}

impl From<WaitError> for Errno {
    fn from(error: WaitError) -> Self {
        match error {
            WaitError::TimedOut => Self(libc::ETIMEDOUT),
            WaitError::Io(error) => error.into(),
            WaitError::Verbs(error) => error.into(),
            // The enumeration is non-exhaustive.
            _ => Self(libc::EIO),
        }
    }
}

impl From<std::io::Error> for Errno {
    fn from(error: std::io::Error) -> Self {
        Self(error.raw_os_error().unwrap_or(libc::EIO))
    }
}

pub(crate) fn set_errno(errno: Errno) {
    // SAFETY: the C library returns the address of this thread's own variable.
    unsafe { *libc::__errno_location() = errno.0 };
}
