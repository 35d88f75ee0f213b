//! The names of rsockets without an implementation: their calls fail with `EOPNOTSUPP`.

use crate::answer::{Errno, set_errno};

/// Fails with `EOPNOTSUPP`, whatever the arguments.
pub(super) extern "C" fn no_rsockets() -> isize {
    set_errno(Errno::UNSUPPORTED);
    -1
}
