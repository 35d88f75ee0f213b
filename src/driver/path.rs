//! Paths to peers: source GID, headers and source port.

use std::io;
use std::net::IpAddr;

use roce_packet::{Encapsulation, Gid, Path, Qpn, flow};

use super::{Nic, PortHolder};

/// An entry of the GID table, as `show_gids` prints it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct GidEntry {
    /// Index for [`PathOptions::sgid_index`].
    pub index: usize,
    /// The GID.
    pub gid: Gid,
    /// Header format of the GID: RoCE v1 or v2.
    pub gid_type: Encapsulation,
}

impl GidEntry {
    /// Returns the address in the GID.
    #[must_use]
    pub fn address(&self) -> IpAddr {
        self.gid.to_ip()
    }
}

/// Number of table indexes that the first GID has, starting at 0. Some programs have a fixed index: with one
/// IPv4 address, the RoCE v2 GID has index 1 with Soft-RoCE and 3 with ConnectX.
const FIRST_GID_INDEXES: usize = 4;

/// Puts items of GIDs into the order of the table: the first item at the indexes 0 to 3, followed by the
/// others.
pub fn in_gid_order<T: Clone>(mut gids: impl Iterator<Item = T>) -> impl Iterator<Item = T> {
    let first = gids.next();
    std::iter::repeat_n(first, FIRST_GID_INDEXES).flatten().chain(gids)
}

/// Returns the GID table of a device: RoCE v2 for every address, then, on a device with Ethernet frames, RoCE
/// v1 for every address. The first GID has several indexes, all of RoCE v2. The entry determines the header
/// format.
pub(crate) fn gid_table(addresses: &[IpAddr], carries_ethernet: bool) -> Vec<GidEntry> {
    let types = if carries_ethernet {
        &[Encapsulation::RoceV2, Encapsulation::RoceV1][..]
    } else {
        &[Encapsulation::RoceV2]
    };
    let entries = types.iter().flat_map(|gid_type| addresses.iter().map(|address| (*gid_type, *address)));
    in_gid_order(entries)
        .enumerate()
        .map(|(index, (gid_type, address))| GidEntry { index, gid: Gid::from_ip(address), gid_type })
        .collect()
}

/// Options of a path except its two ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PathOptions {
    /// Index into the GID table of the source GID; it also selects RoCE v1 or v2. The default is the first
    /// address of the same kind as the destination, with RoCE v2.
    pub sgid_index: Option<usize>,
    /// DSCP in the upper six bits, ECN in the lower two. The default, 2, is ECT(0), which RNICs send.
    pub traffic_class: u8,
    /// IPv4 TTL or IPv6 hop limit.
    pub hop_limit: u8,
    /// IPv6 flow label. If it is 0, the source port is derived from the queue pair numbers instead.
    pub flow_label: u32,
    /// UDP source port, instead of a derived one.
    pub source_port: Option<u16>,
}

impl Default for PathOptions {
    fn default() -> Self {
        Self { sgid_index: None, traffic_class: 2, hop_limit: 64, flow_label: 0, source_port: None }
    }
}

setters!(PathOptions {
    sgid_index: impl Into<Option<usize>>,
    traffic_class: u8,
    hop_limit: u8,
    flow_label: u32,
    source_port: impl Into<Option<u16>>,
});

/// Returns whether two addresses have the same IP version, and both or neither are link-local.
fn fits(source: IpAddr, destination: IpAddr) -> bool {
    match (source, destination) {
        (IpAddr::V4(_), IpAddr::V4(_)) => true,
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            source.is_unicast_link_local() == destination.is_unicast_link_local()
        }
        _ => false,
    }
}

/// Chooses the source address for packets to `destination`.
fn choose(addresses: &[IpAddr], destination: IpAddr) -> Option<IpAddr> {
    let same_version = |source: &IpAddr| source.is_ipv4() == destination.is_ipv4();
    let best = addresses.iter().find(|source| fits(**source, destination));
    best.or_else(|| addresses.iter().find(|source| same_version(source))).copied()
}

impl Nic {
    /// Returns the source address and the encapsulation of packets to `destination`.
    fn source_for(
        &self,
        destination: IpAddr,
        sgid_index: Option<usize>,
    ) -> io::Result<(IpAddr, Encapsulation)> {
        let unavailable = |text| io::Error::new(io::ErrorKind::AddrNotAvailable, text);
        let addresses = self.device().addresses();
        let Some(index) = sgid_index else {
            let Some(source) = choose(addresses, destination) else {
                return Err(unavailable(format!(
                    "this device has no {} address to reach {destination} from; open a device that has one",
                    if destination.is_ipv4() { "IPv4" } else { "IPv6" }
                )));
            };
            return Ok((source, Encapsulation::RoceV2));
        };
        let table = gid_table(addresses, self.device().capabilities().carries_ethernet);
        let Some(entry) = table.get(index) else {
            return Err(unavailable(format!(
                "the GID table of this device has {} entries, so there is no index {index}; `roce devices -v` \
                 shows GID tables",
                table.len()
            )));
        };
        if entry.gid_type == Encapsulation::RoceV2 && entry.address().is_ipv4() != destination.is_ipv4() {
            return Err(unavailable(format!(
                "GID {index} is {}, which cannot reach {destination}: one is IPv4 and the other IPv6",
                entry.address()
            )));
        }
        Ok((entry.address(), entry.gid_type))
    }

    /// Returns the path to a peer according to the options, without a source port.
    pub(crate) fn route_to(&self, destination: IpAddr, options: &PathOptions) -> io::Result<Path> {
        let (source, encapsulation) = self.source_for(destination, options.sgid_index)?;
        Ok(Path {
            encapsulation,
            source,
            destination,
            source_port: 0,
            traffic_class: options.traffic_class,
            hop_limit: options.hop_limit,
            flow_label: options.flow_label,
            vlan: self.device().vlan(options.traffic_class),
        })
    }

    /// Returns the path of [`route_to`](Self::route_to) with a source port for `holder`: see
    /// [`bind_source_port`](Self::bind_source_port). The wanted port derives from the flow label if it is not
    /// zero, else from the two queue pair numbers.
    pub(crate) fn path_to(
        &mut self,
        destination: IpAddr,
        holder: PortHolder,
        (own, peer): (Qpn, Qpn),
        options: &PathOptions,
    ) -> io::Result<Path> {
        let mut path = self.route_to(destination, options)?;
        let wanted = options.source_port.unwrap_or_else(|| {
            let label = match options.flow_label {
                0 => flow::qp_pair_flow_label(own, peer),
                label => label,
            };
            flow::flow_label_to_port(label)
        });
        let port = self.bind_source_port(holder, &path, wanted)?;
        if path.encapsulation == Encapsulation::RoceV2 {
            path.source_port = port;
        }
        Ok(path)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_source_is_as_near_as_the_destination() {
        let addresses: Vec<IpAddr> =
            ["fe80::1", "2001:db8::1", "198.18.0.1"].map(|text| text.parse().unwrap()).to_vec();
        for (destination, source) in
            [("2001:db8::2", Some(1)), ("fe80::2", Some(0)), ("198.18.0.2", Some(2)), ("ff02::1:2", Some(1))]
        {
            let chosen = choose(&addresses, destination.parse().unwrap());
            assert_eq!(chosen, source.map(|index: usize| addresses[index]), "{destination}");
        }
        assert_eq!(choose(&addresses[2..], "fe80::2".parse().unwrap()), None);
        assert_eq!(choose(&addresses[..1], "2001:db8::2".parse().unwrap()), Some(addresses[0]));
    }

    #[test]
    fn ethernet_has_both_types_of_gids() {
        let addresses = ["198.18.0.1", "2001:db8::1"].map(|text| text.parse().unwrap());
        let table = gid_table(&addresses, true);
        assert_eq!(table.len(), 7);
        assert!(table.iter().enumerate().all(|(index, entry)| entry.index == index));
        assert_eq!((table[4].gid_type, table[4].address()), (Encapsulation::RoceV2, addresses[1]));
        assert_eq!((table[5].gid_type, table[5].address()), (Encapsulation::RoceV1, addresses[0]));
        assert_eq!(gid_table(&addresses, false), table[..5]);
    }

    /// Regression: the table had one entry, so programs with the fixed index of Soft-RoCE or ConnectX did not
    /// run.
    #[test]
    fn the_first_gid_stands_where_programs_expect_it() {
        let addresses = ["198.18.0.1", "2001:db8::1"].map(|text| text.parse().unwrap());
        for carries_ethernet in [false, true] {
            let table = gid_table(&addresses, carries_ethernet);
            for entry in &table[..4] {
                assert_eq!((entry.address(), entry.gid_type), (addresses[0], Encapsulation::RoceV2));
            }
            assert_eq!(gid_table(&addresses[..1], false), table[..4]);
        }
        assert!(gid_table(&[], true).is_empty());
    }
}
