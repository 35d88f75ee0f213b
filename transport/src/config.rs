//! The settings of an engine.

use roce_packet::PathMtu;

use crate::congestion::{Congestion, NotificationPoint, Rate};
use crate::recovery::Recovery;
use crate::slot::ProcessSlot;

/// The settings of an engine. `EngineConfig::new(seed)` gives the defaults.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EngineConfig {
    /// Seed of all numbers that peers must not guess: queue pair numbers and memory keys.
    pub seed: [u8; 32],
    /// All queue pair numbers begin with it, so that several processes can share one address. If they do, connection management puts
    /// it into the numbers that it draws as well ([`CmConfig::process_slot`](crate::cm::CmConfig::process_slot)).
    pub process_slot: ProcessSlot,
    /// BTH MigReq on packets sent. Peers such as ConnectX take a slow path when it is 0.
    pub mig_req: bool,
    /// The most PSNs that a requester leaves unacknowledged, 1 to 2^23 - 1 (IBTA 9.7.2); the
    /// nearest of these is used. It bounds the loss in a socket buffer when the peer is slow.
    pub max_outstanding_packets: u32,
    /// A READ is requested in pieces of at most so many response packets, so that responses cannot
    /// overrun this end; 0 requests every READ at once.
    pub max_read_packets: u32,
    /// The largest UD message: the path MTU of the port.
    pub port_mtu: PathMtu,
    /// Packets that one queue pair may send before the next one.
    pub quantum: u32,
    /// The most queue pairs, up to 65,000, or 15,848 with a process slot of 10 bits.
    pub max_qp: usize,
    /// The most completion queues.
    pub max_cq: usize,
    /// The most completions in one queue, up to 2^24.
    pub max_cqe: usize,
    /// The most shared receive queues.
    pub max_srq: usize,
    /// The most protection domains.
    pub max_pd: usize,
    /// The most memory regions and windows together, up to 2^20.
    pub max_mr: usize,
    /// The most events that wait to be fetched.
    pub max_events: usize,
    /// The congestion control of RC and UC queue pairs that do not set their own.
    pub congestion: Congestion,
    /// How the engine answers marked packets.
    pub notification: NotificationPoint,
    /// The rate of the link, at which algorithms start.
    pub line_rate: Rate,
    /// Whether all packets together are sent at most at [`line_rate`](Self::line_rate). Not needed where a device or a
    /// simulated port has that rate.
    pub limit_to_line_rate: bool,
    /// The loss recovery of RC queue pairs that do not set their own.
    pub recovery: Recovery,
    /// When an RC requester sends again what was not answered. [`Retransmission::IBTA`] unless said otherwise.
    pub retransmission: Retransmission,
    /// How packets are paced at the rate of a congestion control, and at that of the link.
    pub pacing: Pacing,
    /// Whether in-band telemetry travels behind the ICRC of datagrams ([`Telemetry`](roce_packet::Telemetry)): data and acknowledgements
    /// that have some leave with a trailer, and datagrams that arrive with one are accepted. Not part of a standard, so both ends
    /// have to be set so. Off, a trailer makes the ICRC wrong.
    pub telemetry: bool,
}

/// When an RC requester sends again what was not answered (`docs/run.md`, "Time until a peer is taken for lost").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retransmission {
    /// Whether one packet is sent again early, as soon as an answer takes longer than the measured round trip and its variation explain,
    /// and 4 ms at least. The next one follows after twice the time, and so on, until the local ACK timeout. They use up no retry.
    ///
    /// With [`SelectiveRepeat`](crate::SelectiveRepeat) its timeouts are the time before the first one, and use up no retry either.
    pub early: bool,
    /// The least local ACK timeout as its code: T = 4.096 µs × 2^code. Smaller codes of queue pairs count as this one, except 0, which
    /// means never. At most 31.
    pub least_timeout: u8,
}

impl Retransmission {
    /// Exactly the local ACK timeout (IBTA 9.7.6.1.3): for simulations, tests, and programs that want to notice the loss of a peer soon.
    pub const IBTA: Self = Self { early: false, least_timeout: 0 };

    /// As ConnectX with its default settings: early, and 537 ms at least. That is the interval which was measured there for every timeout
    /// code up to 16: the code is raised to 16, and the interval is twice as long as it says.
    pub const ADAPTIVE: Self = Self { early: true, least_timeout: 17 };
}

/// How packets are paced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pacing {
    /// Bytes that may leave at once after a pause, before the packet that may always leave: compensates for
    /// late timers. At most 2^24.
    pub burst: u32,
    /// Whether preamble and gap of Ethernet, 20 bytes a frame, count as sent. Headers and FCS always do.
    pub preamble: bool,
    /// Whether a queue pair without congestion control is paced after losses, until there are none for a while
    /// (`docs/congestion.md`).
    pub after_loss: bool,
}

impl Default for Pacing {
    fn default() -> Self {
        Self { burst: 16_384, preamble: true, after_loss: true }
    }
}

impl EngineConfig {
    /// The default settings with this seed.
    #[must_use]
    pub fn new(seed: [u8; 32]) -> Self {
        Self {
            seed,
            process_slot: ProcessSlot::NONE,
            mig_req: true,
            max_outstanding_packets: 256,
            max_read_packets: 128,
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
            retransmission: Retransmission::IBTA,
            pacing: Pacing::default(),
            telemetry: false,
        }
    }

    /// The same with a seed made from one number, for tests and repeatable runs.
    #[must_use]
    pub fn from_number(seed: u64) -> Self {
        let mut bytes = [0; 32];
        for (index, byte) in bytes.iter_mut().enumerate() {
            *byte = seed.to_le_bytes()[index % 8] ^ (index as u8).wrapping_mul(0x9d);
        }
        Self::new(bytes)
    }
}
