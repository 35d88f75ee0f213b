//! The GID table of a context.

use std::net::IpAddr;

use super::Context;
use crate::driver::{GidEntry, gid_table};

impl Context {
    /// Returns the GID table: the source addresses and the header format of each.
    #[must_use]
    pub fn gid_table(&self) -> Vec<GidEntry> {
        gid_table(&self.runtime().addresses, self.runtime().capabilities.carries_ethernet)
    }

    /// Returns the index of the first GID of this peer's IP version, unless that is the first GID of the
    /// table. A queue pair needs it in [`PathOptions::sgid_index`](super::PathOptions::sgid_index) to send to
    /// the peer.
    #[must_use]
    pub fn gid_towards(&self, peer: IpAddr) -> Option<usize> {
        let fits = |address: IpAddr| address.is_ipv4() == peer.is_ipv4();
        let first = self.address().filter(|address| !fits(*address))?;
        tracing::debug!(%first, %peer, "another GID than the first");
        self.gid_table().iter().position(|entry| fits(entry.address()))
    }

    /// Returns the address of the GID with this index, or of the first GID without an index; `None` if it
    /// does not exist.
    #[must_use]
    pub fn gid_address(&self, sgid_index: Option<usize>) -> Option<IpAddr> {
        self.gid_table().get(sgid_index.unwrap_or(0)).map(GidEntry::address)
    }
}
