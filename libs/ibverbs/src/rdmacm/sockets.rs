//! The names of rsockets without an implementation: their calls fail with `EOPNOTSUPP`.

use crate::answer::{Errno, count};

/// Fails with `EOPNOTSUPP`, whatever the arguments.
pub(super) extern "C" fn no_rsockets() -> isize {
    count(|| Err(Errno::UNSUPPORTED))
}
