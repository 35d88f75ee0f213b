//! The GID table of a context.

use std::net::IpAddr;

use super::Context;
use crate::driver::{GidEntry, gid_table};

impl Context {
    /// The GID table: which addresses there are to send from, and with which headers.
    #[must_use]
    pub fn gid_table(&self) -> Vec<GidEntry> {
        gid_table(&self.runtime().addresses, self.runtime().capabilities.carries_ethernet)
    }

    /// The index of the first GID of this peer's IP version, if that is not the first GID of all: a queue
    /// pair that is to talk to the peer needs it in [`PathOptions::sgid_index`](super::PathOptions::sgid_index).
    #[must_use]
    pub fn gid_towards(&self, peer: IpAddr) -> Option<usize> {
        let fits = |address: IpAddr| address.is_ipv4() == peer.is_ipv4();
        let first = self.address().filter(|address| !fits(*address))?;
        tracing::debug!(%first, %peer, "another GID than the first");
        self.gid_table().iter().position(|entry| fits(entry.address()))
    }

    /// The address of the GID with this index, or of the first without one; `None` if the table has no such GID.
    #[must_use]
    pub fn gid_address(&self, sgid_index: Option<usize>) -> Option<IpAddr> {
        self.gid_table().get(sgid_index.unwrap_or(0)).map(GidEntry::address)
    }
}
