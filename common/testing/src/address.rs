//! Loopback addresses for tests and benchmarks.

use std::net::Ipv4Addr;
use std::sync::atomic::{AtomicU32, Ordering};

/// Addresses of a block, which is a network of 24 bits without its first and last address.
const BLOCK: u32 = 254;

/// Returns a loopback address that no other test of this process and no other process uses.
pub fn own_address() -> Ipv4Addr {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    address(std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Returns the address with this number of a process. The first block follows from the process ID; the others
/// are far from those of processes that start at about the same time.
fn address(process: u32, number: u32) -> Ipv4Addr {
    const APART: u32 = 5_279;
    let block = process.wrapping_add((number / BLOCK).wrapping_mul(APART));
    let [.., high, low] = block.to_be_bytes();
    Ipv4Addr::new(127, 64 | high & 63, low, (number % BLOCK + 1) as u8)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    /// Regression: after 256 addresses, a process got the same ones again, so two tests of the command shared
    /// one, and the server of the second could not listen.
    #[test]
    fn a_process_and_its_neighbours_have_different_addresses() {
        let processes = (0..100).map(|neighbour| 4_194_300 + neighbour);
        let addresses: Vec<_> = processes.flat_map(|id| (0..2_000).map(move |n| address(id, n))).collect();
        assert_eq!(addresses.iter().collect::<HashSet<_>>().len(), addresses.len());
        let is_inside = |it: &Ipv4Addr| matches!(it.octets(), [127, 64..=127, _, 1..=254]);
        assert!(addresses.iter().all(is_inside));
    }
}
