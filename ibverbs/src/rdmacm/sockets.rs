//! The names of rsockets that there is nothing behind: their calls fail with `EOPNOTSUPP`.

use crate::answer::{Errno, count};

/// What these functions answer, whatever they are given.
pub(super) extern "C" fn no_rsockets() -> isize {
    count(|| Err(Errno::UNSUPPORTED))
}
