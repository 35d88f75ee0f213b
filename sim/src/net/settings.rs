//! What a network is made of besides its topology.

use roce_packet::PathMtu;
use roce_transport::Recovery;
use roce_transport::congestion::{Congestion, NotificationPoint};

use super::marking::Marking;
use super::time::Time;

/// Priorities of a link.
pub const PRIORITIES: usize = 8;

/// Everything that can be set about a simulation. `Settings::default()` is a lossless network of 100 Gb/s as data
/// centres build it.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// Of every random decision.
    pub seed: u64,
    /// Whether payload exists.
    pub payload: PayloadMode,
    /// Nothing happens after this.
    pub stop: Time,
    /// Switches.
    pub switch: SwitchSettings,
    /// Hosts.
    pub host: HostSettings,
    /// What is looked at, how often.
    pub measure: MeasureSettings,
    /// Routes other than the shortest ones.
    pub routes: Vec<RouteOverride>,
    /// Hosts that pause their link for no reason.
    pub storms: Vec<PauseStorm>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            seed: 1,
            payload: PayloadMode::Implied,
            stop: Time::from_us(10_000_000),
            switch: SwitchSettings::default(),
            host: HostSettings::default(),
            measure: MeasureSettings::default(),
            routes: Vec::new(),
            storms: Vec::new(),
        }
    }
}

/// What travels in datagrams.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PayloadMode {
    /// Every byte, a pattern that the receiver checks, under a real ICRC.
    Real,
    /// Headers; payload and ICRC are implied. The same events at the same times, in a fraction of the time.
    Implied,
}

/// The switches; all are alike.
#[derive(Clone, Debug, PartialEq)]
pub struct SwitchSettings {
    /// Bytes of the buffer that all ports share.
    pub buffer_bytes: u64,
    /// Bytes that each port has for each lossless priority besides the shared ones.
    pub reserve_bytes: u64,
    /// Bytes that each port may still take in for each lossless priority after it has sent a pause.
    pub headroom: Headroom,
    /// When a lossless priority of a port is paused.
    pub threshold: Threshold,
    /// A pause ends when the port holds so many bytes less than the threshold.
    pub xon_offset_bytes: u64,
    /// A lossy queue holds at most this times the bytes that are free.
    pub lossy_alpha: f64,
    /// Lossless priorities, one bit each.
    pub pfc: u8,
    /// How a pause reaches the other end.
    pub pause: PauseMode,
    /// What to do with a queue that is paused for ever.
    pub watchdog: Option<Watchdog>,
    /// Marking, per priority.
    pub marking: [Marking; PRIORITIES],
    /// Who sends next, per priority.
    pub scheduling: [Class; PRIORITIES],
    /// Which of several shortest paths.
    pub balance: Balance,
}

impl Default for SwitchSettings {
    fn default() -> Self {
        let mut marking = [Marking::Off; PRIORITIES];
        marking[3] = Marking::Red { kmin: 400_000, kmax: 1_600_000, pmax: 0.2 };
        Self {
            buffer_bytes: 32 << 20,
            reserve_bytes: 4_096,
            headroom: Headroom::Auto,
            threshold: Threshold::Dynamic { alpha: 0.125 },
            xon_offset_bytes: 3_072,
            lossy_alpha: 1.0,
            pfc: 1 << 3,
            pause: PauseMode::Frames,
            watchdog: None,
            marking,
            scheduling: [Class::Strict; PRIORITIES],
            balance: Balance::Flow,
        }
    }
}

impl SwitchSettings {
    /// The first setting that is out of its range, by its key in scenarios, and what is wrong with it.
    pub(crate) fn problem(&self) -> Option<(&'static str, &'static str)> {
        let is_share = |alpha: f64| alpha.is_finite() && alpha >= 0.0;
        let threshold = match self.threshold {
            Threshold::Dynamic { alpha } => is_share(alpha),
            Threshold::Static { .. } => true,
        };
        let weights = self.scheduling.iter().all(|class| match class {
            Class::Weighted(weight) => (1..=MAX_WEIGHT).contains(weight),
            Class::Strict => true,
        });
        let checks = [
            ("threshold", threshold, "alpha is a number from 0 on"),
            ("lossy_alpha", is_share(self.lossy_alpha), "it is a number from 0 on"),
            ("weight", weights, "weights are 1 to 65535"),
        ];
        checks.into_iter().find(|(_, good, _)| !good).map(|(key, _, reason)| (key, reason))
    }
}

/// The most that a queue may weigh: what it may send in a turn is counted in 32 bits.
const MAX_WEIGHT: u32 = 65_535;

/// How much fits behind a pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Headroom {
    /// What the link and the two MACs can hold: 2 × rate × delay, three of the longest frames of the path MTU and a pause
    /// frame, and at least two frames of 4,196 bytes.
    Auto,
    /// Bytes.
    Bytes(u64),
}

/// How much of the shared buffer a port may hold before it pauses its peer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Threshold {
    /// `alpha` times what is free.
    Dynamic {
        /// The factor.
        alpha: f64,
    },
    /// Bytes.
    Static {
        /// How many.
        bytes: u64,
    },
}

/// How a pause reaches the other end of the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PauseMode {
    /// By frames that wait for the frame in front and travel, with quanta that run out and are refreshed.
    Frames,
    /// At once and until told otherwise: an ideal.
    Instant,
}

/// Frees a priority that has been paused for too long by dropping what waits there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watchdog {
    /// Paused without interruption for so long.
    pub after: Time,
    /// Frames are dropped for so long, then the queue works again.
    pub restore: Time,
}

/// How a queue competes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Before all lower priorities and all weighted ones.
    Strict,
    /// Shares what strict ones leave, by weight (deficit round robin).
    Weighted(u32),
}

/// Which of several shortest paths a frame takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Balance {
    /// By a hash of addresses and ports: all frames of a queue pair take one path.
    Flow,
    /// Each frame the next one: frames overtake each other.
    Spray,
}

/// The hosts; all are alike.
#[derive(Clone, Debug, PartialEq)]
pub struct HostSettings {
    /// From the last bit of a frame to the engine.
    pub delay: Time,
    /// Of data; the priority is its upper three bits.
    pub dscp: u8,
    /// Of acknowledgements, if another.
    pub ack_dscp: Option<u8>,
    /// Who sets the rate of a flow.
    pub congestion: Congestion,
    /// How marks are answered; the code point of CNPs is in here.
    pub notification: NotificationPoint,
    /// What is sent again after a loss.
    pub recovery: Recovery,
    /// Path MTU.
    pub path_mtu: PathMtu,
    /// Packets that a queue pair may have outstanding.
    pub window_packets: u32,
    /// Local ACK timeout: 4.096 µs × 2^timeout.
    pub timeout: u8,
    /// Retries, 7 is the most.
    pub retry_cnt: u8,
    /// Bytes of one WRITE; a longer flow is several of them.
    pub message_bytes: u64,
    /// WRITEs of one flow that may be under way.
    pub depth: u32,
    /// How fast a host takes frames in, if slower than its link: bits per second and the bytes in front of it at
    /// which it pauses the switch.
    pub receive_limit: Option<ReceiveLimit>,
}

impl Default for HostSettings {
    fn default() -> Self {
        Self {
            delay: Time::ZERO,
            dscp: 26,
            ack_dscp: Some(56),
            congestion: Congestion::none(),
            notification: NotificationPoint::default(),
            recovery: Recovery::GoBackN,
            path_mtu: PathMtu::Mtu1024,
            window_packets: 4_096,
            timeout: 14,
            retry_cnt: 7,
            message_bytes: 1 << 30,
            depth: 2,
            receive_limit: None,
        }
    }
}

impl HostSettings {
    /// The first setting that is out of its range, by its key in scenarios, and what is wrong with it.
    pub(crate) fn problem(&self) -> Option<(&'static str, &'static str)> {
        let is_code_point = |dscp: u8| dscp <= 63;
        let checks = [
            ("depth", (1..=4_096).contains(&self.depth), "a flow needs 1 to 4096 WRITEs at a time"),
            ("message", (1..=1 << 31).contains(&self.message_bytes), "a WRITE has 1 to 2^31 bytes"),
            ("dscp", is_code_point(self.dscp), "code points are 0 to 63"),
            ("ack_dscp", self.ack_dscp.is_none_or(is_code_point), "code points are 0 to 63"),
            ("timeout", self.timeout <= 31, "timeouts are 0 to 31"),
            ("retry_cnt", self.retry_cnt <= 7, "0 to 7 retries are possible"),
        ];
        checks.into_iter().find(|(_, good, _)| !good).map(|(key, _, reason)| (key, reason))
    }
}

/// A host that cannot keep up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceiveLimit {
    /// Which; all if `None`.
    pub host: Option<u32>,
    /// Bits per second.
    pub rate_bps: u64,
    /// Bytes that wait when it pauses the switch.
    pub xoff_bytes: u64,
}

/// What is looked at while a simulation runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MeasureSettings {
    /// How often rates and queues are looked at.
    pub interval: Time,
    /// Samples of queues begin here: percentiles leave the start out.
    pub warm_up: Time,
    /// The most points of a series; beyond, only percentiles are kept, and the result says so.
    pub most_points: usize,
    /// Ports that are captured, by their place in [`Results::ports`](super::Results::ports):
    /// [`Topology::port_named`](super::Topology::port_named) knows them.
    pub capture: Vec<u32>,
}

impl Default for MeasureSettings {
    fn default() -> Self {
        Self { interval: Time::from_us(10), warm_up: Time::ZERO, most_points: 2_000_000, capture: Vec::new() }
    }
}

/// A route that is not a shortest one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteOverride {
    /// The switch.
    pub at: String,
    /// The host.
    pub to: String,
    /// The neighbours to take.
    pub via: Vec<String>,
}

/// A host that sends pause frames without end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PauseStorm {
    /// Which.
    pub host: u32,
    /// Of this priority.
    pub priority: u8,
    /// From here on.
    pub start: Time,
    /// Until here.
    pub end: Time,
}

/// The priority of a code point: its upper three bits, as class selectors have it (RFC 2474 section 4.2.2).
#[must_use]
pub const fn priority_of(dscp: u8) -> u8 {
    (dscp >> 3) & 0b111
}
