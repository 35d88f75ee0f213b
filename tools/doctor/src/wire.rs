//! The messages of the two sides over TCP, and the content of probes.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use roce::observe::Text;
use roce::verbs::Endpoint;
use roce_exchange::ToolError;

/// The tool name in the greetings of the two sides.
pub(super) const TOOL: &str = "doctor";
/// Version of the protocol; it changes with the meaning of the messages.
pub(super) const PROTOCOL: u32 = 2;
/// Maximum number of probes of one burst.
pub(super) const MOST_PROBES: u32 = 8192;
/// Maximum number of round trips of one trial.
pub(super) const MOST_TRIPS: u32 = 2000;
/// Maximum length of a round-trip message in bytes.
pub(super) const LONGEST_TRIP: usize = 1 << 16;
/// Maximum number of payload bytes of a probe, which fit the smallest path MTU.
pub(super) const PROBE_BYTES: usize = 256;
/// Payload bytes of a probe that every link supports: an IPv4 packet of 68 bytes is never fragmented (RFC
/// 791).
pub(super) const SMALL_PROBE_BYTES: usize = 16;
/// Maximum number of interfaces that a side may list.
pub(super) const MOST_LINKS: usize = 64;

/// The description that each side sends.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Introduction {
    /// [`PROTOCOL`]. Because of the name of this field, our other tools do not accept this as their own first
    /// message.
    pub(super) doctor: u32,
    /// The kind of the device.
    pub(super) kind: String,
    pub(super) address: IpAddr,
    pub(super) link_mtu: usize,
    /// The largest path MTU of the link, in bytes.
    pub(super) largest_path_mtu: usize,
    /// Whether the device sees flow labels.
    pub(super) sees_ip_header: bool,
    /// The number of the UD queue pair for probes.
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
    /// Returns the name, which is text of the peer, in printable form.
    pub(super) fn name(&self) -> String {
        Text::new(&self.name).to_string()
    }
}

impl Introduction {
    /// Returns the kind, which is text of the peer, in printable form.
    pub(super) fn kind(&self) -> String {
        Text::new(&self.kind).to_string()
    }
}

/// Probes that both sides send to each other at the same time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Burst {
    /// The number of the burst, which every probe contains.
    pub(super) number: u32,
    pub(super) count: u32,
    /// Payload bytes of each probe.
    pub(super) bytes: usize,
    /// The traffic classes, which probes use in turn.
    pub(super) classes: Vec<u8>,
    /// The IPv6 flow label, or 0.
    pub(super) flow_label: u32,
}

impl Burst {
    /// Returns the traffic class of a probe.
    pub(super) fn class_of(&self, probe: u32) -> u8 {
        let index = probe as usize % self.classes.len().max(1);
        self.classes.get(index).copied().unwrap_or(0)
    }

    /// Returns whether a peer may ask for this burst.
    pub(super) fn is_reasonable(&self) -> bool {
        (1..=MOST_PROBES).contains(&self.count)
            && (SMALL_PROBE_BYTES..=PROBE_BYTES).contains(&self.bytes)
            && (1..=16).contains(&self.classes.len())
            && self.flow_label < 1 << 20
    }
}

/// A trial of round trips.
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

/// Returns the error for a request with a path MTU that does not exist.
pub(super) fn not_a_path_mtu(bytes: usize) -> ToolError {
    ToolError::Peer(format!(
        "asks for path MTU {bytes}, which does not exist; run the same version on both sides"
    ))
}

/// Returns the error for a request that a peer of the same version does not send.
pub(super) fn unreasonable(request: &str) -> ToolError {
    ToolError::Peer(format!("asks for {request}; run the same version on both sides"))
}

/// The next request of the client.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Trial {
    Burst(Burst),
    Trips(Trips),
    /// The examination is over, with this number of problems.
    End(usize),
}

/// The observations of one side about a burst of the other side.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Observation {
    /// The number of probes that this side sent.
    pub(super) sent: u32,
    pub(super) source_port: u16,
    /// The number of the peer's probes that arrived with a valid ICRC, each counted once.
    pub(super) intact: u32,
    pub(super) duplicates: u32,
    /// The number of probes that arrived after a later one.
    pub(super) late: u32,
    /// Probes that arrived only damaged, each counted once: with a wrong ICRC, or so damaged that it was not
    /// computed.
    pub(super) damaged: u64,
    /// Names of the mistakes that certainly lead to the wrong ICRCs. Empty if packets were damaged on the
    /// path.
    #[serde(default)]
    pub(super) mistakes: Vec<String>,
    /// Packets dropped here because their VLAN tag is not that of the device.
    pub(super) wrong_vlan: u64,
    /// Packets lost here because this process did not fetch them in time.
    pub(super) overflow: u64,
    /// Sent traffic class, received traffic class, and number of packets.
    pub(super) classes: Vec<(u8, u8, u32)>,
    /// Source addresses and ports of the packets.
    pub(super) sources: Vec<(IpAddr, u16)>,
    /// The minimum hop limit.
    pub(super) hop_limit: Option<u8>,
    pub(super) flow_labels: Vec<u32>,
}

/// The result of the round trips of one side.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct TripReport {
    /// Number of complete round trips.
    pub(super) done: u32,
    /// The error.
    pub(super) failure: Option<String>,
    /// The longest datagram that arrived.
    pub(super) longest: usize,
    pub(super) retransmitted_packets: u64,
    /// The sorted times of the round trips; only the client has them.
    pub(super) times_ns: Vec<u64>,
}

impl TripReport {
    /// Returns the report of the peer in printable form.
    pub(super) fn shown(mut self) -> Self {
        self.failure = self.failure.map(|failure| Text::new(&failure).to_string());
        self
    }
}

/// The answer to [`Trial::Trips`].
pub(super) type Admission = Result<Endpoint, String>;

/// The start of a probe, which identifies it. The stamp has its own checksum, because the headers around it
/// matter even if the ICRC is wrong.
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

    /// Parses a stamp. Returns `None` if the payload is not that of an undamaged probe.
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
