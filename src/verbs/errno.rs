//! Conversion of errors to `errno` values for C programs.

use roce_transport::{
    CqError, CreateQpError, DestroyError, KeyError, PdError, PostError, RegisterError, SrqError, XrcdError,
};
use rustix::io::Errno;

use super::VerbsError;

impl VerbsError {
    /// Returns the number that libibverbs returns for this error, such as `EBUSY` (16) for an object that is
    /// in use. The text of the error says more.
    ///
    /// | number | reason |
    /// |---|---|
    /// | `EBUSY` | something else uses the object |
    /// | `ENOMEM` | a queue is full, too many inline bytes, all objects of a kind are in use, no memory |
    /// | `EINVAL` | out of range, wrong state, missing or extra attributes, unknown objects |
    /// | `EOPNOTSUPP` | the transport has no such operation |
    /// | `EACCES` | a key does not permit it |
    /// | `EIO` | the device failed |
    /// | other numbers | the error of the operating system |
    #[must_use]
    pub fn errno(&self) -> i32 {
        let number = match self {
            Self::Open(_) => Errno::NODEV,
            Self::Io { error, .. } => return error.raw_os_error().unwrap_or(Errno::IO.raw_os_error()),
            Self::DeviceFailed(_) => Errno::IO,
            Self::Pd(PdError::InUse { .. })
            | Self::Cq(CqError::InUse { .. })
            | Self::Srq(SrqError::InUse { .. })
            | Self::Xrcd(XrcdError::InUse { .. })
            | Self::Destroy(DestroyError::WindowsBound { .. }) => Errno::BUSY,
            Self::Pd(PdError::TooMany { .. })
            | Self::Cq(CqError::TooMany { .. })
            | Self::Srq(SrqError::TooMany { .. })
            | Self::CreateQp(CreateQpError::TooManyQps { .. })
            | Self::Register(RegisterError::OutOfMemory { .. } | RegisterError::TooManyKeys { .. }) => {
                Errno::NOMEM
            }
            Self::Cq(CqError::Overflowed { .. }) => Errno::OVERFLOW,
            Self::Post(error) | Self::PostList { error, .. } => of_post(error),
            Self::Key(KeyError::PermissionDenied)
            | Self::Destroy(DestroyError::Key(KeyError::PermissionDenied)) => Errno::ACCESS,
            Self::Pd(_)
            | Self::Register(_)
            | Self::Key(_)
            | Self::Cq(_)
            | Self::Xrcd(_)
            | Self::Srq(_)
            | Self::CreateQp(_)
            | Self::ModifyQp(_)
            | Self::Destroy(_)
            | Self::OtherContext(_)
            | Self::OtherEngine { .. }
            | Self::NoEngine { .. }
            | Self::Engines { .. }
            | Self::NoAddress
            | Self::PathMtu { .. } => Errno::INVAL,
        };
        number.raw_os_error()
    }
}

fn of_post(error: &PostError) -> Errno {
    match error {
        PostError::QueueFull { .. } | PostError::InlineTooLong { .. } => Errno::NOMEM,
        PostError::UnsupportedOperation => Errno::OPNOTSUPP,
        _ => Errno::INVAL,
    }
}
