//! Loopback addresses for tests and benchmarks.

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicU8, Ordering};

/// Returns a loopback address that no other test of this process and no other process uses.
pub fn own_address() -> Ipv4Addr {
    static NEXT: AtomicU8 = AtomicU8::new(1);
    let [.., high, low] = std::process::id().to_be_bytes();
    Ipv4Addr::new(127, 64 | high & 63, low, NEXT.fetch_add(1, Ordering::Relaxed))
}
