//! The summary of a capture file.

use std::collections::BTreeMap;
use std::fmt;

use super::flows::Mark;
use super::walk::{Icrc, Protocol, Walk};
use roce_capture::{CapturedPacket, LinkType};

/// Counts of all packets that were read, whether or not they were printed.
#[derive(Debug, Default)]
pub(super) struct Summary {
    pub(super) printed: u64,
    packets: u64,
    roce: u64,
    pause: u64,
    other: u64,
    icrc_good: u64,
    icrc_bad: u64,
    icrc_unchecked: u64,
    snapped: u64,
    /// Packets with a mark, by its name, and the packets that are missing in gaps of known length.
    marks: BTreeMap<&'static str, u64>,
    missing: u64,
    /// Counts by layer and reason.
    malformed: BTreeMap<String, u64>,
    unread_link: Option<LinkType>,
    unread_links: u64,
}

impl Summary {
    pub(super) fn count(&mut self, packet: &CapturedPacket<'_>, walk: &Walk<'_>, mark: Option<Mark>) {
        self.packets += 1;
        if let Some(mark) = mark {
            *self.marks.entry(mark.name()).or_default() += 1;
        }
        if let Some(Mark::Gap { count, .. }) = mark {
            self.missing += u64::from(count);
        }
        self.snapped += u64::from(packet.is_snapped());
        match &walk.protocol {
            Protocol::Roce(_) => self.roce += 1,
            Protocol::Pause => self.pause += 1,
            Protocol::Other(..) => self.other += 1,
        }
        match walk.packet().map(|packet| packet.icrc) {
            Some(Icrc::Checked(check)) if check.is_good() => self.icrc_good += 1,
            Some(Icrc::Checked(_)) => self.icrc_bad += 1,
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

    /// The reason for a failure exit status, if there is one.
    pub(super) fn failure(&self) -> Option<String> {
        let link_type = self.unread_link?;
        (self.unread_links == self.packets).then(|| {
            format!(
                "link type {link_type} is not supported; captures of Ethernet, raw IP, Linux cooked and loopback \
                 packets are"
            )
        })
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { packets, printed, roce, pause, other, .. } = self;
        let plural = if *packets == 1 { "" } else { "s" };
        write!(f, "{packets} packet{plural}")?;
        if printed != packets {
            write!(f, ", {printed} printed")?;
        }
        write!(f, ": {roce} RoCE")?;
        if *pause != 0 {
            write!(f, ", {pause} pause")?;
        }
        writeln!(f, ", {other} not RoCE")?;
        if *roce != 0 {
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
