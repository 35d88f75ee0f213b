//! The settings of an engine.

use roce_packet::PathMtu;

use crate::congestion::{Congestion, NotificationPoint, Paths, Pulls, Rate};
use crate::recovery::Recovery;
use crate::slot::ProcessSlot;

/// The settings of an engine. `EngineConfig::new(seed)` returns the defaults.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineConfig {
    /// Seed of all numbers that peers must not guess: queue pair numbers and memory keys.
    pub seed: [u8; 32],
    /// The process slot that all queue pair numbers begin with, so that several processes can share one
    /// address. Connection management then also uses it in the numbers that it draws
    /// ([`CmConfig::process_slot`](crate::cm::CmConfig::process_slot)).
    pub process_slot: ProcessSlot,
    /// The MigReq bit in the BTH of sent packets. Peers such as ConnectX use a slow path if it is 0.
    pub mig_req: bool,
    /// Maximum number of unacknowledged PSNs of a requester, 1 to 2^23 - 1 (IBTA 9.7.2); other values are
    /// replaced by the nearest of these. It bounds the loss in a socket buffer if the peer is slow.
    pub max_outstanding_packets: u32,
    /// Maximum number of response packets in one piece of a READ, so that responses cannot overrun this end.
    /// 0 requests each READ at once.
    pub max_read_packets: u32,
    /// The rate at which READ responses are requested by all queue pairs together, including headers, so that
    /// they arrive at no more than this rate. Unlimited by default, and then only one piece of a READ is
    /// outstanding. With a rate, pieces ([`max_read_packets`](Self::max_read_packets), 128 if that is 0) take
    /// turns, so they should be short: the receiver then decides which sender sends when, and an incast of
    /// READs fills no queue in the network (`docs/reference/congestion.md`).
    pub read_rate: Rate,
    /// A policy for the turns of READ requests, instead of [`read_rate`](Self::read_rate).
    pub pulls: Option<Pulls>,
    /// Maximum length of a UD message: the path MTU of the port.
    pub port_mtu: PathMtu,
    /// Packets that one queue pair may send before the next one.
    pub quantum: u32,
    /// Maximum number of queue pairs, up to 65,000, or 15,848 with a process slot of 10 bits.
    pub max_qp: usize,
    /// Maximum number of completion queues.
    pub max_cq: usize,
    /// Maximum number of completions in one queue, up to 2^24.
    pub max_cqe: usize,
    /// Maximum number of shared receive queues.
    pub max_srq: usize,
    /// Maximum number of protection domains.
    pub max_pd: usize,
    /// Maximum number of memory regions and windows together, up to 2^20.
    pub max_mr: usize,
    /// Maximum number of queued events.
    pub max_events: usize,
    /// The congestion control of RC and UC queue pairs without their own.
    pub congestion: Congestion,
    /// The settings for notifications of marked packets.
    pub notification: NotificationPoint,
    /// The rate of the link, at which algorithms start.
    pub line_rate: Rate,
    /// Whether all packets together are limited to [`line_rate`](Self::line_rate). Not needed if a device or
    /// a simulated port has that rate.
    pub limit_to_line_rate: bool,
    /// The loss recovery of RC queue pairs without their own.
    pub recovery: Recovery,
    /// The paths of RC queue pairs without their own: which UDP source port each packet takes. XRC and RoCE
    /// v1 always use one. Packets on several paths overtake each other, so both ends should use
    /// [`SelectiveRepeat`](crate::SelectiveRepeat) with `reorder`.
    pub paths: Paths,
    /// The retransmission times of RC requesters. The default is [`Retransmission::IBTA`].
    pub retransmission: Retransmission,
    /// The pacing of packets at the rate of a congestion control, and at that of the link.
    pub pacing: Pacing,
    /// Whether in-band telemetry is sent behind the ICRC of datagrams
    /// ([`Telemetry`](roce_packet::Telemetry)). If set, data and acknowledgements with telemetry have a
    /// trailer, and received datagrams may have one. It is not part of a standard, so both ends must use the
    /// same setting. If not set, a trailer makes the ICRC wrong.
    pub telemetry: bool,
}

/// The retransmission times of an RC requester (`docs/reference/loss-recovery.md`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retransmission {
    /// Whether one packet is sent again early, if an answer takes longer than the measured round trip and its
    /// variation explain, and at least 4 ms. The next one follows after twice that time, and so on, until the
    /// local ACK timeout. Early retransmissions use up no retry.
    ///
    /// With [`SelectiveRepeat`](crate::SelectiveRepeat), its timeouts are the time before the first one, and
    /// use up no retry either.
    pub early: bool,
    /// Minimum local ACK timeout as a code: T = 4.096 µs × 2^code, at most 31. Smaller codes of queue pairs
    /// are raised to this one, except 0, which means never.
    pub least_timeout: u8,
}

impl Retransmission {
    /// Exactly the local ACK timeout (IBTA 9.7.6.1.3). For simulations, tests, and programs that must notice
    /// the loss of a peer soon.
    pub const IBTA: Self = Self { early: false, least_timeout: 0 };

    /// Like ConnectX with its default settings: early, and at least 537 ms. That interval was measured there
    /// for all timeout codes up to 16: the code is raised to 16, and the interval is twice the nominal one.
    pub const ADAPTIVE: Self = Self { early: true, least_timeout: 17 };
}

/// The settings for the pacing of packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pacing {
    /// Bytes that may leave at once after a pause, in addition to the packet that may always leave, to
    /// compensate for late timers. At most 2^24.
    pub burst: u32,
    /// Whether the preamble and gap of Ethernet, 20 bytes per frame, count. Headers and FCS always do.
    pub preamble: bool,
    /// Whether a queue pair without congestion control is paced after losses, until none occurs for a while
    /// (`docs/reference/loss-recovery.md`).
    pub after_loss: bool,
}

impl Default for Pacing {
    fn default() -> Self {
        Self { burst: 16_384, preamble: true, after_loss: true }
    }
}

impl EngineConfig {
    /// Returns the default settings with this seed.
    #[must_use]
    pub fn new(seed: [u8; 32]) -> Self {
        Self {
            seed,
            process_slot: ProcessSlot::NONE,
            mig_req: true,
            max_outstanding_packets: 256,
            max_read_packets: 128,
            read_rate: Rate::UNLIMITED,
            pulls: None,
            port_mtu: PathMtu::Mtu4096,
            quantum: 32,
            max_qp: 16_384,
            max_cq: 16_384,
            max_cqe: 1 << 20,
            max_srq: 4_096,
            max_pd: 16_384,
            max_mr: 1 << 18,
            max_events: 4_096,
            congestion: Congestion::none(),
            notification: NotificationPoint::default(),
            line_rate: Rate::megabits_per_second(100_000),
            limit_to_line_rate: false,
            recovery: Recovery::GoBackN,
            paths: Paths::one(),
            retransmission: Retransmission::IBTA,
            pacing: Pacing::default(),
            telemetry: false,
        }
    }

    /// Returns the default settings with a seed made from one number, for tests and repeatable runs.
    #[must_use]
    pub fn from_number(seed: u64) -> Self {
        let mut bytes = [0; 32];
        for (index, byte) in bytes.iter_mut().enumerate() {
            *byte = seed.to_le_bytes()[index % 8] ^ (index as u8).wrapping_mul(0x9d);
        }
        Self::new(bytes)
    }
}
