//! The settings of a network besides its topology.

use roce_packet::PathMtu;
use roce_transport::Recovery;
use roce_transport::congestion::{Congestion, NotificationPoint};

use super::failure::Failure;
use super::marking::Marking;
use super::port_rules::PortRule;
use super::time::Time;

/// Priorities of a link.
pub const PRIORITIES: usize = 8;

/// All settings of a simulation. `Settings::default()` is a lossless network with links of 100 Gb/s, as data centres build it.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// The seed of every random decision.
    pub seed: u64,
    /// Whether payload is real or implied.
    pub payload: PayloadMode,
    /// The time at which the simulation stops.
    pub stop: Time,
    /// The largest number of threads of a run. No result depends on it. A network is divided between switches with hosts, so one with
    /// a single such switch has one thread, and so has one with [`PauseMode::Instant`].
    pub threads: usize,
    /// Switches.
    pub switch: SwitchSettings,
    /// Hosts.
    pub host: HostSettings,
    /// Settings of some flows, which take the place of [`Self::host`]. What belongs to a host and not to a queue pair is that of
    /// `host` nevertheless: delay, DSCP of acknowledgements, window, notification of congestion, and limit of the receive rate.
    pub profiles: Vec<HostSettings>,
    /// The profile of each flow, counted from 1, and 0 for `host`; flows behind the end have that of `host`, too.
    pub flow_profiles: Vec<u16>,
    /// What is sampled, and how often.
    pub measure: MeasureSettings,
    /// Routes other than the shortest ones.
    pub routes: Vec<RouteOverride>,
    /// Hosts that send pause frames without cause.
    pub storms: Vec<PauseStorm>,
    /// Links and switches that fail.
    pub failures: Vec<Failure>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            seed: 1,
            payload: PayloadMode::Implied,
            stop: Time::from_us(10_000_000),
            threads: 1,
            switch: SwitchSettings::default(),
            host: HostSettings::default(),
            profiles: Vec::new(),
            flow_profiles: Vec::new(),
            measure: MeasureSettings::default(),
            routes: Vec::new(),
            storms: Vec::new(),
            failures: Vec::new(),
        }
    }
}

impl Settings {
    /// The settings of a flow, and whether they are its own.
    pub(crate) fn of_flow(&self, flow: u32) -> (&HostSettings, bool) {
        let profile = self.flow_profiles.get(flow as usize).copied().unwrap_or_default();
        let own = usize::from(profile).checked_sub(1).and_then(|place| self.profiles.get(place));
        own.map_or((&self.host, false), |own| (own, true))
    }

    /// The settings of all flows.
    fn all_hosts(&self) -> impl Iterator<Item = &HostSettings> {
        std::iter::once(&self.host).chain(&self.profiles)
    }

    /// The largest path MTU in bytes.
    pub(crate) fn largest_mtu(&self) -> usize {
        self.all_hosts().map(|host| host.path_mtu.bytes()).max().unwrap_or_default()
    }

    /// The priorities of data, one bit each.
    pub(crate) fn data_priorities(&self) -> u8 {
        self.all_hosts().fold(0, |bits, host| bits | 1 << priority_of(host.dscp))
    }

    /// Why frames cannot be trimmed as the settings say, and in which of [`SwitchSettings::port_rules`], if it is one of them.
    pub(crate) fn trimming_problem(&self) -> Option<(Option<usize>, &'static str)> {
        self.switch.trimming_problem(self.data_priorities())
    }

    /// The first setting of hosts out of its range, as [`HostSettings::problem`].
    pub(crate) fn host_problem(&self) -> Option<(&'static str, &'static str)> {
        self.all_hosts().find_map(HostSettings::problem)
    }
}

/// Whether datagrams have payload bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PayloadMode {
    /// Datagrams have every byte, a pattern that the receiver checks, and a real ICRC.
    Real,
    /// Datagrams have headers only; payload and ICRC are implied. The events are the same at the same times, and the run is much
    /// faster.
    Implied,
}

/// The settings of all switches, and what is different at some of them.
#[derive(Clone, Debug, PartialEq)]
pub struct SwitchSettings {
    /// Bytes of the buffer of each switch, which its ports share.
    pub buffer_bytes: u64,
    /// Bytes that each port has for each lossless priority besides the shared part.
    pub reserve_bytes: u64,
    /// Bytes that each port still accepts for each lossless priority after it has sent a pause.
    pub headroom: Headroom,
    /// When a lossless priority of a port is paused.
    pub threshold: Threshold,
    /// A pause ends when the port holds this number of bytes less than the threshold.
    pub xon_offset_bytes: u64,
    /// A lossy queue holds at most `lossy_alpha` × the free bytes.
    pub lossy_alpha: f64,
    /// Lossless priorities, one bit each.
    pub pfc: u8,
    /// How a pause reaches the other end.
    pub pause: PauseMode,
    /// The watchdog against queues that stay paused.
    pub watchdog: Option<Watchdog>,
    /// Marking, per priority.
    pub marking: [Marking; PRIORITIES],
    /// The rate of a port for which the thresholds of marking hold, in bits per second. At ports of another rate they are
    /// larger or smaller in proportion. `None`: the same thresholds at every port.
    pub marking_rate_bps: Option<u64>,
    /// What is different at some switches and ports.
    pub port_rules: Vec<PortRule>,
    /// The scheduling class of each priority.
    pub scheduling: [Class; PRIORITIES],
    /// How frames choose among several shortest paths.
    pub balance: Balance,
    /// What happens to data without room: it is trimmed, or dropped if this is `None`.
    pub trimming: Option<Trimming>,
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
            marking_rate_bps: None,
            port_rules: Vec::new(),
            scheduling: [Class::Strict; PRIORITIES],
            balance: Balance::Flow,
            trimming: None,
        }
    }
}

/// A switch that has no room for a frame cuts its payload away and forwards the headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trimming {
    /// The DSCP of trimmed frames; its upper three bits are their priority, whose queue may drop them.
    pub dscp: u8,
    /// Bytes of a trimmed frame, Ethernet header to frame check sequence; more if its headers are longer.
    pub frame_bytes: u32,
    /// A frame is trimmed if its queue would become longer than this, although the buffer has room. `None`: only without room.
    pub above_bytes: Option<u64>,
}

impl Default for Trimming {
    fn default() -> Self {
        Self { dscp: 44, frame_bytes: 64, above_bytes: None }
    }
}

impl Trimming {
    /// Why it is impossible in a network with these lossless priorities and those of data.
    pub(super) fn problem(&self, pfc: u8, data: u8) -> Option<&'static str> {
        let priority = priority_of(self.dscp);
        let checks = [
            (self.dscp <= 63, "dscp must be 0 to 63"),
            ((64..=512).contains(&self.frame_bytes), "to must be 64 to 512 bytes"),
            (pfc >> priority & 1 == 0, "the priority of its dscp is lossless"),
            (data >> priority & 1 == 0, "the priority of its dscp is that of data"),
        ];
        checks.into_iter().find(|(good, _)| !good).map(|(_, reason)| reason)
    }
}

impl SwitchSettings {
    /// How frames of a priority (0 to 7; above that, never) are marked at a port of this rate in bits per second: `marking`, with the
    /// thresholds in proportion to `marking_rate`.
    #[must_use]
    pub fn marking_of_port(&self, rate_bps: u64, priority: usize) -> Marking {
        let marking = self.marking.get(priority).copied().unwrap_or(Marking::Off);
        self.marking_rate_bps.map_or(marking, |reference| marking.scaled(rate_bps, reference))
    }

    /// The first setting out of its range, without those of [`Self::port_rules`]: its key in scenarios and the reason.
    pub(super) fn own_problem(&self) -> Option<(&'static str, &'static str)> {
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
            ("marking_rate", self.marking_rate_bps != Some(0), "it must be above 0"),
            ("threshold", threshold, "alpha must be a number from 0 up"),
            ("lossy_alpha", is_share(self.lossy_alpha), "it must be a number from 0 up"),
            ("weight", weights, "it must be 1 to 65535"),
        ];
        checks.into_iter().find(|(_, good, _)| !good).map(|(key, _, reason)| (key, reason))
    }
}

/// The largest weight of a queue: the bytes that it may send in a turn are counted in 32 bits.
const MAX_WEIGHT: u32 = 65_535;

/// The size of the headroom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Headroom {
    /// The bytes that the link and the two MACs can hold: 2 × rate × delay, three of the longest frames of the path MTU and a pause
    /// frame, and at least two frames of 4,196 bytes.
    Auto,
    /// This number of bytes.
    Bytes(u64),
}

/// The share of the buffer that a port may use before it pauses its peer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Threshold {
    /// `alpha` × the free bytes.
    Dynamic {
        /// The factor.
        alpha: f64,
    },
    /// A fixed number of bytes.
    Static {
        /// The threshold.
        bytes: u64,
    },
}

/// How a pause reaches the other end of the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PauseMode {
    /// As pause frames, which wait for the frame in transmission and travel over the link, with quanta that expire and are
    /// refreshed.
    Frames,
    /// At once, and until its end is requested. This is an idealisation.
    Instant,
}

/// Drops the frames of a priority that has been paused for too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watchdog {
    /// The duration of an uninterrupted pause that triggers the watchdog.
    pub after: Time,
    /// How long frames are dropped before the queue works again.
    pub restore: Time,
}

/// The scheduling class of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Class {
    /// Served before all lower priorities and all weighted queues.
    Strict,
    /// Shares the rate that strict queues leave, by weight (deficit round robin).
    Weighted(u32),
}

/// How frames choose among several shortest paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Balance {
    /// A hash of addresses and ports chooses: all frames of a queue pair take one path.
    Flow,
    /// As [`Flow`](Self::Flow), and each port gets a share of the hashes in proportion to the rate of its link (weighted ECMP).
    Weighted,
    /// Each frame takes the next path in turn, so frames overtake each other.
    Spray,
    /// Each frame takes the path whose port has the fewest queued bytes in this switch, so frames overtake each other.
    Adaptive,
    /// A flow takes a new random path after each gap between two of its frames that is at least this long.
    Flowlet {
        /// The gap. With one that is longer than the difference in delay between the paths, frames do not overtake each other.
        gap: Time,
    },
}

/// The operation that moves the bytes of a flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FlowOperation {
    /// The sender writes into the memory of the receiver.
    #[default]
    Write,
    /// The sender sends, and the receiver has posted receives in time.
    Send,
    /// The receiver reads from the memory of the sender, so the flow begins with a request of the receiver. It is the receiver
    /// that knows when the flow has ended; the sender never does.
    Read,
}

impl FlowOperation {
    /// What belongs to sender and receiver as requester and responder, or the other way round.
    pub(super) fn order<T>(self, [sender, receiver]: [T; 2]) -> [T; 2] {
        match self {
            Self::Write | Self::Send => [sender, receiver],
            Self::Read => [receiver, sender],
        }
    }
}

/// The settings of all hosts.
#[derive(Clone, Debug, PartialEq)]
pub struct HostSettings {
    /// The operation of each flow.
    pub operation: FlowOperation,
    /// The time from the last bit of a frame to its handling by the engine.
    pub delay: Time,
    /// The DSCP of data; its upper three bits are the priority.
    pub dscp: u8,
    /// The DSCP of acknowledgements, if it differs from that of data.
    pub ack_dscp: Option<u8>,
    /// The congestion control of each flow.
    pub congestion: Congestion,
    /// How the receiver answers marks; it contains the DSCP of CNPs.
    pub notification: NotificationPoint,
    /// The recovery of lost packets.
    pub recovery: Recovery,
    /// Path MTU.
    pub path_mtu: PathMtu,
    /// Packets that a queue pair may have unacknowledged.
    pub window_packets: u32,
    /// Local ACK timeout: 4.096 µs × 2^timeout.
    pub timeout: u8,
    /// Retries, 0 to 7.
    pub retry_cnt: u8,
    /// Bytes of one WRITE, SEND or READ; a longer flow is several of them.
    pub message_bytes: u64,
    /// WRITEs, SENDs or READs of one flow that may be outstanding. Of READs, 128 at most are.
    pub depth: u32,
    /// A limit on the rate at which hosts receive, if it is lower than that of the link.
    pub receive_limit: Option<ReceiveLimit>,
}

impl Default for HostSettings {
    fn default() -> Self {
        Self {
            operation: FlowOperation::Write,
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
    /// The number of packets of a flow of so many bytes.
    pub(crate) fn packets_of(&self, bytes: u64) -> u64 {
        let mtu = self.path_mtu.bytes() as u64;
        let whole = bytes / self.message_bytes * self.message_bytes.div_ceil(mtu);
        whole + (bytes % self.message_bytes).div_ceil(mtu)
    }

    /// The first setting out of its range: its key in scenarios and the reason.
    pub(crate) fn problem(&self) -> Option<(&'static str, &'static str)> {
        let is_code_point = |dscp: u8| dscp <= 63;
        let checks = [
            ("depth", (1..=4_096).contains(&self.depth), "it must be 1 to 4096 WRITEs"),
            ("message", (1..=1 << 31).contains(&self.message_bytes), "a WRITE has 1 to 2^31 bytes"),
            ("dscp", is_code_point(self.dscp), "it must be 0 to 63"),
            ("ack_dscp", self.ack_dscp.is_none_or(is_code_point), "it must be 0 to 63"),
            ("timeout", self.timeout <= 31, "it must be 0 to 31"),
            ("retry_cnt", self.retry_cnt <= 7, "it must be 0 to 7"),
        ];
        checks.into_iter().find(|(_, good, _)| !good).map(|(key, _, reason)| (key, reason))
    }
}

/// A host that receives at a lower rate than that of its link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceiveLimit {
    /// The number of the host; all hosts if `None`.
    pub host: Option<u32>,
    /// Bits per second.
    pub rate_bps: u64,
    /// The number of waiting bytes at which it pauses the switch.
    pub xoff_bytes: u64,
}

/// What is sampled and captured while a simulation runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MeasureSettings {
    /// The time between two samples of rates and queues.
    pub interval: Time,
    /// The time of the first sample of queues, so that percentiles do not contain the start.
    pub warm_up: Time,
    /// The largest number of points of a series. Later points count for percentiles only, and the results give their number.
    pub most_points: usize,
    /// Ports that are captured, by their index in [`Results::ports`](super::Results::ports):
    /// [`Topology::port_named`](super::Topology::port_named) finds it.
    pub capture: Vec<u32>,
}

impl Default for MeasureSettings {
    fn default() -> Self {
        Self { interval: Time::from_us(10), warm_up: Time::ZERO, most_points: 2_000_000, capture: Vec::new() }
    }
}

/// A route that replaces the shortest paths.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteOverride {
    /// The switch.
    pub at: String,
    /// The host.
    pub to: String,
    /// The neighbours to forward to.
    pub via: Vec<String>,
}

/// A host that sends pause frames without cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PauseStorm {
    /// The number of the host.
    pub host: u32,
    /// The priority that it pauses.
    pub priority: u8,
    /// The start.
    pub start: Time,
    /// The end.
    pub end: Time,
}

/// The priority of a code point: its upper three bits, as class selectors have it (RFC 2474 section 4.2.2).
#[must_use]
pub const fn priority_of(dscp: u8) -> u8 {
    (dscp >> 3) & 0b111
}
