//! Numbers of the only port of a device.

use std::ffi::c_int;

use roce::verbs::PathMtu;

/// The number of the only port.
pub(crate) const PORT: u8 = 1;

/// Returns the number of a path MTU in libibverbs.
pub(crate) const fn mtu_number(mtu: PathMtu) -> c_int {
    match mtu {
        PathMtu::Mtu256 => 1,
        PathMtu::Mtu512 => 2,
        PathMtu::Mtu1024 => 3,
        PathMtu::Mtu2048 => 4,
        PathMtu::Mtu4096 => 5,
    }
}
