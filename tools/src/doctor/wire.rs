//! What the two sides tell each other over TCP, and what probes carry.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use roce::observe::Text;
use roce::verbs::Endpoint;

/// Changes with the meaning of the messages.
pub(super) const PROTOCOL: u32 = 2;
/// The most probes of one burst.
pub(super) const MOST_PROBES: u32 = 8192;
/// The most round trips of one trial.
pub(super) const MOST_TRIPS: u32 = 2000;
/// The longest message of a round trip in bytes.
pub(super) const LONGEST_TRIP: usize = 1 << 16;
/// The most payload bytes of a probe: they fit the smallest path MTU.
pub(super) const PROBE_BYTES: usize = 256;
/// Payload bytes of a probe that every link carries: an IPv4 packet of 68 bytes is never fragmented (RFC 791).
pub(super) const SMALL_PROBE_BYTES: usize = 16;
/// The most interfaces that a side may list.
pub(super) const MOST_LINKS: usize = 64;

/// What each side says about itself.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Introduction {
    /// [`PROTOCOL`]; the name keeps other tools of ours from taking this for their own first message.
    pub(super) doctor: u32,
    /// The kind of the device.
    pub(super) kind: String,
    pub(super) address: IpAddr,
    pub(super) link_mtu: usize,
    /// Of the link, in bytes.
    pub(super) largest_path_mtu: usize,
    /// Whether it sees flow labels.
    pub(super) sees_ip_header: bool,
    /// Of the UD queue pair that probes go to.
    pub(super) qpn: u32,
    pub(super) qkey: u32,
    /// The interface with the address, if the kernel has the address.
    pub(super) interface: Option<Link>,
    /// All Ethernet interfaces of this side.
    pub(super) links: Vec<Link>,
}

/// An Ethernet interface.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Link {
    pub(super) name: String,
    pub(super) mac: [u8; 6],
}

impl Link {
    /// The name, which is a text of the peer, as it may be shown.
    pub(super) fn name(&self) -> String {
        Text::new(&self.name).to_string()
    }
}

impl Introduction {
    /// The kind, which is a text of the peer, as it may be shown.
    pub(super) fn kind(&self) -> String {
        Text::new(&self.kind).to_string()
    }
}

/// Probes that both sides send each other at the same time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Burst {
    /// Which burst; it is in every probe.
    pub(super) number: u32,
    pub(super) count: u32,
    /// Payload bytes of each probe.
    pub(super) bytes: usize,
    /// The traffic classes, in turns.
    pub(super) classes: Vec<u8>,
    /// The IPv6 flow label, or 0.
    pub(super) flow_label: u32,
}

impl Burst {
    /// The traffic class of a probe.
    pub(super) fn class_of(&self, probe: u32) -> u8 {
        let index = probe as usize % self.classes.len().max(1);
        self.classes.get(index).copied().unwrap_or(0)
    }

    /// Whether another peer may ask for it.
    pub(super) fn is_reasonable(&self) -> bool {
        (1..=MOST_PROBES).contains(&self.count)
            && (SMALL_PROBE_BYTES..=PROBE_BYTES).contains(&self.bytes)
            && (1..=16).contains(&self.classes.len())
            && self.flow_label < 1 << 20
    }
}

/// Messages there and back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Trips {
    pub(super) path_mtu: usize,
    pub(super) count: u32,
    pub(super) bytes: usize,
}

impl Trips {
    pub(super) fn is_reasonable(&self) -> bool {
        (1..=MOST_TRIPS).contains(&self.count) && (1..=LONGEST_TRIP).contains(&self.bytes)
    }
}

/// What the client wants to do next.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Trial {
    Burst(Burst),
    Trips(Trips),
    /// That was all; so many problems were found.
    End(usize),
}

/// What one side saw of a burst of the other.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Observation {
    /// Own probes: sent, and from which UDP port.
    pub(super) sent: u32,
    pub(super) source_port: u16,
    /// The peer's: arrived with a right ICRC, each counted once.
    pub(super) intact: u32,
    pub(super) duplicates: u32,
    /// Behind a later one.
    pub(super) late: u32,
    /// Probes that arrived damaged only, each counted once: with a wrong ICRC, or so damaged that it was not computed.
    pub(super) damaged: u64,
    /// Dropped here, because their VLAN tag is not the one of the device.
    pub(super) wrong_vlan: u64,
    /// Lost here, because this process did not fetch them in time.
    pub(super) overflow: u64,
    /// Traffic class sent, traffic class seen, how often.
    pub(super) classes: Vec<(u8, u8, u32)>,
    /// Addresses and ports that they came from.
    pub(super) sources: Vec<(IpAddr, u16)>,
    /// The smallest hop limit.
    pub(super) hop_limit: Option<u8>,
    pub(super) flow_labels: Vec<u32>,
}

/// How a side ended its round trips.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct TripReport {
    /// How many round trips were complete.
    pub(super) done: u32,
    /// What went wrong.
    pub(super) failure: Option<String>,
    /// The longest datagram that arrived.
    pub(super) longest: usize,
    pub(super) retransmitted_packets: u64,
    /// Of each round trip, sorted; the client's only.
    pub(super) times_ns: Vec<u64>,
}

impl TripReport {
    /// The report of the peer as it may be shown.
    pub(super) fn shown(mut self) -> Self {
        self.failure = self.failure.map(|failure| Text::new(&failure).to_string());
        self
    }
}

/// The answer to [`Trial::Trips`].
pub(super) type Admission = Result<Endpoint, String>;

/// What a probe begins with: which one it is, protected by a check of its own, for the headers around it are
/// of interest even where the ICRC is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamp {
    pub(super) burst: u32,
    pub(super) probe: u32,
}

impl Stamp {
    pub(super) const LEN: usize = 12;

    const fn check(self) -> u32 {
        let mixed = (self.burst as u64) << 32 | self.probe as u64;
        (mixed.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u32 ^ 0x726f_6365
    }

    pub(super) fn write(self, payload: &mut [u8]) {
        let words = [self.burst, self.probe, self.check()];
        for (place, word) in payload.chunks_exact_mut(4).zip(words) {
            place.copy_from_slice(&word.to_be_bytes());
        }
    }

    /// `None` if that is no probe, or a damaged one.
    pub(super) fn read(payload: &[u8]) -> Option<Self> {
        let mut words = payload
            .get(..Self::LEN)?
            .chunks_exact(4)
            .map(|word| u32::from_be_bytes([word[0], word[1], word[2], word[3]]));
        let stamp = Self { burst: words.next()?, probe: words.next()? };
        (words.next()? == stamp.check()).then_some(stamp)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_damaged_stamp_is_none() {
        let stamp = Stamp { burst: 3, probe: 77 };
        let mut payload = [0; PROBE_BYTES];
        stamp.write(&mut payload);
        assert_eq!(Stamp::read(&payload), Some(stamp));
        for bit in 0..8 * Stamp::LEN {
            let mut damaged = payload;
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Stamp::read(&damaged), None, "bit {bit}");
        }
        assert_eq!(Stamp::read(&payload[..11]), None);
        assert_eq!(Stamp::read(&[]), None);
    }
}
