//! The summary of a capture file.

use std::collections::BTreeMap;
use std::fmt;

use roce_analysis::walk::{Icrc, Protocol, Walk};
use roce_capture::{CapturedPacket, LinkType};
use roce_packet::outer::{Cut, Foreign, Guess};
use roce_packet::{EtherType, ROCE_UDP_PORT};

use super::flows::Mark;

/// Counts of all packets that were read, whether or not they were printed.
#[derive(Debug, Default)]
pub struct Summary {
    /// Number of packets that were printed or written. The caller counts them.
    pub printed: u64,
    /// Whether the packets were written to a file and not printed.
    is_written: bool,
    packets: u64,
    roce: u64,
    native: u64,
    pause: u64,
    other: u64,
    icrc_good: u64,
    icrc_bad: u64,
    icrc_unchecked: u64,
    snapped: u64,
    /// Number of packets by the name of their mark, and number of packets that are missing in gaps of known
    /// length.
    marks: BTreeMap<&'static str, u64>,
    missing: u64,
    /// Number of malformed packets by layer and reason.
    malformed: BTreeMap<String, u64>,
    cut_by_mirror: u64,
    first_fragments: u64,
    unread_link: Option<LinkType>,
    unread_links: u64,
    foreign: ForeignTraffic,
}

impl Summary {
    /// Creates the summary of a command that writes packets to a file, or prints them.
    #[must_use]
    pub fn new(is_written: bool) -> Self {
        Self { is_written, ..Self::default() }
    }

    /// Counts a packet with its mark.
    pub fn count(&mut self, packet: &CapturedPacket<'_>, walk: &Walk<'_>, mark: Option<Mark>) {
        self.packets += 1;
        if let Some(mark) = mark {
            *self.marks.entry(mark.name()).or_default() += 1;
        }
        if let Some(Mark::Gap { count, .. }) = mark {
            self.missing += u64::from(count);
        }
        self.snapped += u64::from(packet.is_snapped());
        match &walk.protocol {
            Protocol::Roce(_) if walk.outer.is_native_infiniband() => self.native += 1,
            Protocol::Roce(_) => self.roce += 1,
            Protocol::Pause => self.pause += 1,
            Protocol::Other(name, _) => {
                self.other += 1;
                self.foreign.count(name, walk);
            }
        }
        if walk.packet().is_some() {
            self.cut_by_mirror += u64::from(walk.outer.cut == Some(Cut::Mirror));
            self.first_fragments += u64::from(walk.outer.cut == Some(Cut::Fragment));
        }
        match walk.packet().map(|packet| packet.icrc) {
            Some(Icrc::Checked(check, _)) if check.is_good() => self.icrc_good += 1,
            Some(Icrc::Checked(..)) => self.icrc_bad += 1,
            Some(Icrc::Unchecked(_)) => self.icrc_unchecked += 1,
            None => {}
        }
        // Parse errors of packets other than RoCE do not count.
        if let (Some(error), Protocol::Roce(_) | Protocol::Pause) = (walk.error, &walk.protocol) {
            let reason = format!("{}: {}", error.layer, error.kind.description());
            *self.malformed.entry(reason).or_default() += 1;
        }
        if walk.bytes.is_empty() && !packet.bytes.is_empty() {
            self.unread_links += 1;
            self.unread_link = Some(packet.link_type);
        }
    }

    /// Returns the reason for a failure exit status, if there is one. `is_whole` means that the file was read
    /// to its end.
    #[must_use]
    pub fn failure(&self, is_whole: bool) -> Option<String> {
        if let Some(link_type) = self.unread_link.filter(|_| self.unread_links == self.packets) {
            return Some(format!(
                "link type {link_type} is not supported; use a capture of Ethernet, raw IP, Linux cooked, \
                 loopback or InfiniBand packets"
            ));
        }
        if !is_whole || self.roce + self.native + self.pause > 0 {
            return None;
        }
        if self.packets == 0 {
            return Some("the file has no packets".to_owned());
        }
        Some(format!("no packet is RoCE: {}", self.foreign.likely_reason(self.packets)))
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { packets, printed, roce, native, pause, other, .. } = self;
        let plural = if *packets == 1 { "" } else { "s" };
        write!(f, "{packets} packet{plural}")?;
        if self.is_written {
            write!(f, ", {printed} written")?;
        } else if printed != packets {
            write!(f, ", {printed} printed")?;
        }
        write!(f, ": {roce} RoCE")?;
        if *native != 0 {
            write!(f, ", {native} InfiniBand")?;
        }
        if *pause != 0 {
            write!(f, ", {pause} pause")?;
        }
        writeln!(f, ", {other} not RoCE")?;
        if *roce + *native != 0 {
            let Self { icrc_good, icrc_bad, icrc_unchecked, .. } = self;
            writeln!(f, "ICRC: {icrc_good} good, {icrc_bad} bad, {icrc_unchecked} not checked")?;
        }
        if !self.marks.is_empty() {
            let counts: Vec<String> =
                self.marks.iter().map(|(name, count)| format!("{count} {name}")).collect();
            let plural = if self.missing == 1 { "" } else { "s" };
            let missing = match self.missing {
                0 => String::new(),
                missing => format!(" ({missing} packet{plural} missing)"),
            };
            writeln!(f, "marks: {}{missing}", counts.join(", "))?;
        }
        if self.snapped != 0 {
            writeln!(f, "cut by the capture: {}", self.snapped)?;
        }
        for (count, what) in
            [(self.cut_by_mirror, "cut by a mirror"), (self.first_fragments, "first fragments")]
        {
            if count != 0 {
                writeln!(f, "{what}: {count} (the ICRC cannot be checked)")?;
            }
        }
        let malformed: u64 = self.malformed.values().sum();
        if malformed != 0 {
            writeln!(f, "malformed: {malformed}")?;
            for (reason, count) in &self.malformed {
                writeln!(f, "{count:>8}  {reason}")?;
            }
        }
        Ok(())
    }
}

/// Counts of packets that are not RoCE, to explain why a capture contains no RoCE.
#[derive(Debug, Default)]
struct ForeignTraffic {
    /// Packets by the name of the protocol.
    names: BTreeMap<String, u64>,
    /// Packets with a valid ICRC, by UDP port.
    roce_ports: BTreeMap<u16, u64>,
    /// Packets that look like VXLAN, by UDP port.
    vxlan_ports: BTreeMap<u16, u64>,
    /// Packets to other UDP ports, by port.
    udp_ports: BTreeMap<u16, u64>,
    encrypted: u64,
}

/// Maximum number of UDP ports that are counted.
const MOST_PORTS: usize = 1 << 12;
/// The IP protocol of encrypted packets.
const ESP: u8 = 50;

impl ForeignTraffic {
    fn count(&mut self, name: &str, walk: &Walk<'_>) {
        if self.names.len() < MOST_PORTS || self.names.contains_key(name) {
            *self.names.entry(name.to_owned()).or_default() += 1;
        }
        match walk.outer.foreign {
            Some(Foreign::Protocol(ESP) | Foreign::EtherType(EtherType::MACSEC)) => self.encrypted += 1,
            Some(Foreign::Port { destination, .. }) => {
                let ports = match walk.outer.guess() {
                    Some(Guess::Roce) => &mut self.roce_ports,
                    Some(Guess::Vxlan) => &mut self.vxlan_ports,
                    None => &mut self.udp_ports,
                };
                if ports.len() < MOST_PORTS || ports.contains_key(&destination) {
                    *ports.entry(destination).or_default() += 1;
                }
            }
            _ => {}
        }
    }

    /// Returns the most likely reason why a capture of this many packets contains no RoCE, with the next
    /// step.
    fn likely_reason(&self, packets: u64) -> String {
        const BYPASS: &str = "RDMA NICs bypass the kernel, so capture on the RDMA device (tcpdump -i \
                              mlx5_0), at a switch, or with a tool of the vendor";

        if let Some((port, count)) = most(&self.roce_ports) {
            return format!("but {count} packets to UDP port {port} have a correct ICRC; use --port {port}");
        }
        if let Some((port, count)) = most(&self.vxlan_ports) {
            return format!(
                "{count} packets to UDP port {port} look like VXLAN, which is decoded on ports 4789 and 8472 only; \
                 try `tshark -d udp.port=={port},vxlan`"
            );
        }
        if self.encrypted * 2 > packets {
            return format!(
                "{} of {packets} are encrypted (IPsec or MACsec); capture before the encryption",
                self.encrypted
            );
        }
        match (most(&self.udp_ports), most(&self.names)) {
            (_, Some((name, count))) if name == "TCP" && count == packets => {
                format!("all are TCP: the program did not use RDMA, or the capture missed it; {BYPASS}")
            }
            (_, Some((name, count))) if name == "cut" && count == packets => {
                "every packet is cut before its protocol is known; capture at least 128 bytes of each packet"
                    .to_owned()
            }
            (Some((port, count)), _) if count * 2 > packets => {
                let udp =
                    format!("{count} of {packets} are UDP to port {port}, and RoCE v2 uses {ROCE_UDP_PORT}");
                format!("{udp}; use --port {port} if this is RoCE")
            }
            (_, Some((name, count))) => format!("{count} of {packets} are {name}; {BYPASS}"),
            (_, None) => BYPASS.to_owned(),
        }
    }
}

/// Returns the entry with the largest count.
fn most<K: Clone + Ord>(counts: &BTreeMap<K, u64>) -> Option<(K, u64)> {
    counts.iter().max_by_key(|(_, count)| **count).map(|(key, count)| (key.clone(), *count))
}
