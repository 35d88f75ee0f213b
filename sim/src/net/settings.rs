//! The settings of a network besides its topology.

use roce_packet::PathMtu;
use roce_transport::congestion::{Congestion, NotificationPoint, Paths};
use roce_transport::{Recovery, TrafficClasses};

use super::application::Application;
use super::marking::Marking;
use super::receiver::{ReadSettings, ReceiveLimit};
use super::rules::NamedRules;
use super::ties::Ties;
use super::time::Time;
use super::topology::NodeId;

/// The number of priorities of a link.
pub const PRIORITIES: usize = 8;

/// All settings of a simulation. `Settings::default()` is a lossless network as in data centres, with links
/// of 100 Gb/s.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// The seed of every random decision.
    pub seed: u64,
    /// The order of simultaneous arrivals and starts.
    pub ties: Ties,
    /// Whether payload is real or implied.
    pub payload: PayloadMode,
    /// The time at which the simulation stops.
    pub stop: Time,
    /// The maximum number of threads of a run, which does not affect the results. Each thread requires a
    /// switch with hosts. Networks with only one such switch, or with [`PauseMode::Instant`], use one thread.
    pub threads: usize,
    /// Settings of switches.
    pub switch: SwitchSettings,
    /// Settings of hosts.
    pub host: HostSettings,
    /// The application of each host. Hosts beyond the end of the list have that of [`Self::host`].
    pub applications: Vec<Application>,
    /// Settings that replace [`Self::host`] for some flows. Settings of the host itself always come from
    /// `host`: delay, application and its times, DSCP of acknowledgements, window, congestion notification
    /// and receive limit.
    pub profiles: Vec<HostSettings>,
    /// The profile of each flow, counted from 1; 0 stands for `host`. Flows beyond the end of the list use
    /// `host`.
    pub flow_profiles: Vec<u16>,
    /// The data to sample, and the intervals.
    pub measure: MeasureSettings,
    /// Routes that replace the shortest paths.
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
            ties: Ties::Seed,
            payload: PayloadMode::Implied,
            stop: Time::from_us(10_000_000),
            threads: 1,
            switch: SwitchSettings::default(),
            host: HostSettings::default(),
            applications: Vec::new(),
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
    /// Returns the settings of a flow, and whether the settings come from a profile.
    pub(crate) fn of_flow(&self, flow: u32) -> (&HostSettings, bool) {
        let profile = self.flow_profiles.get(flow as usize).copied().unwrap_or_default();
        let own = usize::from(profile).checked_sub(1).and_then(|place| self.profiles.get(place));
        own.map_or((&self.host, false), |own| (own, true))
    }

    /// Returns the application of a host.
    pub(crate) fn application_of(&self, host: u32) -> Application {
        self.applications.get(host as usize).copied().unwrap_or(self.host.application)
    }

    /// Returns the number of hosts with an application, of this number of hosts.
    pub(crate) fn with_application(&self, hosts: usize) -> usize {
        (0..hosts as u32).filter(|host| self.application_of(*host) != Application::Immediate).count()
    }

    /// Returns the settings of all flows.
    fn all_hosts(&self) -> impl Iterator<Item = &HostSettings> {
        std::iter::once(&self.host).chain(&self.profiles)
    }

    /// Returns the largest path MTU in bytes.
    pub(crate) fn largest_mtu(&self) -> usize {
        self.all_hosts().map(|host| host.path_mtu.bytes()).max().unwrap_or_default()
    }

    /// Returns the priorities of data, one bit each.
    pub(crate) fn data_priorities(&self) -> u8 {
        self.all_hosts().fold(0, |bits, host| bits | 1 << priority_of(host.dscp))
    }

    /// Returns why the network cannot trim frames as configured, with the index of the entry of
    /// [`SwitchSettings::port_rules`] if one is the cause.
    #[must_use]
    pub fn trimming_problem(&self) -> Option<(Option<usize>, &'static str)> {
        self.switch.trimming_problem(self.data_priorities())
    }

    /// Returns the first setting of hosts that is out of range, like [`HostSettings::problem`].
    pub(crate) fn host_problem(&self) -> Option<(&'static str, &'static str)> {
        self.all_hosts().find_map(HostSettings::problem)
    }
}

/// Whether datagrams have payload bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PayloadMode {
    /// Datagrams contain all bytes and a real ICRC. The payload is a pattern that the receiver checks.
    Real,
    /// Datagrams contain headers only; payload and ICRC are implied. Events and their times are the same as
    /// with real payload, and the run is much faster.
    Implied,
}

/// The settings of all switches, and the exceptions for some of them.
#[derive(Clone, Debug, PartialEq)]
pub struct SwitchSettings {
    /// Buffer size of each switch in bytes, shared by its ports.
    pub buffer_bytes: u64,
    /// Bytes reserved for each lossless priority of each port, in addition to the shared buffer.
    pub reserve_bytes: u64,
    /// Bytes that each port accepts for each lossless priority after it has sent a pause.
    pub headroom: Headroom,
    /// The number of bytes at which a lossless priority of a port is paused.
    pub threshold: Threshold,
    /// A pause ends when the port holds this number of bytes less than the threshold.
    pub xon_offset_bytes: u64,
    /// The limit of a lossy queue, as a multiple of the free bytes.
    pub lossy_alpha: f64,
    /// Lossless priorities, one bit each.
    pub pfc: u8,
    /// The way in which a pause reaches the other end.
    pub pause: PauseMode,
    /// The watchdog for queues that stay paused.
    pub watchdog: Option<Watchdog>,
    /// ECN marking, by priority.
    pub marking: [Marking; PRIORITIES],
    /// The port rate in bits per second to which the marking thresholds apply. Ports with other rates scale
    /// the thresholds in proportion. With `None`, all ports use the same thresholds.
    pub marking_rate_bps: Option<u64>,
    /// Exceptions for some switches and ports.
    pub port_rules: Vec<PortRule>,
    /// The scheduling class of each priority.
    pub scheduling: [Class; PRIORITIES],
    /// The choice among several shortest paths.
    pub balance: Balance,
    /// Trimming of data frames that do not fit into the buffer. With `None`, such frames are dropped.
    pub trimming: Option<Trimming>,
    /// Decisions of a program, which precede those of the other settings.
    pub rules: Option<NamedRules>,
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
            rules: None,
        }
    }
}

/// Settings that replace others at some ports. If several rules change a setting of a port, the last rule
/// applies.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PortRule {
    /// The switches, by number in the order of the topology. `None` selects all switches.
    pub switches: Option<Vec<u32>>,
    /// The nodes at the other end of the link, as indices into [`Topology::nodes`](super::Topology::nodes).
    /// `None` selects all nodes.
    pub neighbours: Option<Vec<NodeId>>,
    /// The rate of the link in bits per second. `None` selects all rates.
    pub rate_bps: Option<u64>,
    /// The changed settings.
    pub changes: PortChanges,
}

/// Changes of the settings in [`SwitchSettings`] of a port or a switch. `None` keeps a setting.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PortChanges {
    /// The buffer size of a switch. A rule for some ports cannot change the size, because all ports share the
    /// buffer.
    pub buffer_bytes: Option<u64>,
    /// The path selection of a switch. A rule for some ports cannot change this setting.
    pub balance: Option<Balance>,
    /// Bytes in addition to the shared buffer, for frames that arrive at the port.
    pub reserve_bytes: Option<u64>,
    /// Bytes that can arrive at the port after it has sent a pause.
    pub headroom: Option<Headroom>,
    /// The number of bytes at which the port pauses its neighbour.
    pub threshold: Option<Threshold>,
    /// The difference between that threshold and the end of the pause.
    pub xon_offset_bytes: Option<u64>,
    /// The largest length of a lossy queue of the port.
    pub lossy_alpha: Option<f64>,
    /// The lossless priorities of frames that arrive at the port, one bit each, for which the port pauses its
    /// neighbour.
    pub pfc: Option<u8>,
    /// The watchdog of the port's queues.
    pub watchdog: Option<Option<Watchdog>>,
    /// The trimming of frames for the port.
    pub trimming: Option<Option<Trimming>>,
    /// The marking of some priorities.
    pub marking: [Option<Marking>; PRIORITIES],
    /// The scheduling class of some priorities.
    pub scheduling: [Option<Class>; PRIORITIES],
}

/// Settings of a switch that removes the payload of a frame that does not fit, and forwards the headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Trimming {
    /// The DSCP of trimmed frames. The upper three bits are the priority, whose queue can drop trimmed
    /// frames.
    pub dscp: u8,
    /// Length of a trimmed frame in bytes, from Ethernet header to frame check sequence. A frame with longer
    /// headers is longer.
    pub frame_bytes: u32,
    /// The queue length above which frames are trimmed although the buffer has room. `None` trims only frames
    /// that do not fit.
    pub above_bytes: Option<u64>,
}

impl Default for Trimming {
    fn default() -> Self {
        Self { dscp: 44, frame_bytes: 64, above_bytes: None }
    }
}

impl Trimming {
    /// Returns why these settings are invalid in a network with the given lossless and data priorities.
    pub(super) fn problem(&self, pfc: u8, data: u8) -> Option<&'static str> {
        let priority = priority_of(self.dscp);
        let checks = [
            (self.dscp <= 63, "dscp must be 0 to 63"),
            ((64..=512).contains(&self.frame_bytes), "to must be 64 to 512 bytes"),
            (pfc >> priority & 1 == 0, "the priority of its dscp is lossless"),
            (data >> priority & 1 == 0, "the priority of its dscp is also the priority of data"),
        ];
        checks.into_iter().find(|(good, _)| !good).map(|(_, reason)| reason)
    }
}

impl SwitchSettings {
    /// Returns the marking of a priority at a port of this rate in bits per second. The thresholds of
    /// `marking` are scaled in proportion to `marking_rate_bps`. Priorities above 7 are never marked.
    #[must_use]
    pub fn marking_of_port(&self, rate_bps: u64, priority: usize) -> Marking {
        let marking = self.marking.get(priority).copied().unwrap_or(Marking::Off);
        self.marking_rate_bps.map_or(marking, |reference| marking.scaled(rate_bps, reference))
    }

    /// Returns the scenario key of the first setting that is out of range and the reason, except for
    /// [`Self::port_rules`].
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

/// The largest weight of a queue. The bytes that a queue may send in one round are counted in 32 bits.
const MAX_WEIGHT: u32 = 65_535;

/// The size of the headroom.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Headroom {
    /// The bytes that the link and the two MACs can hold: 2 × rate × delay, three frames of the largest path
    /// MTU and a pause frame, and at least two frames of 4,196 bytes.
    Auto,
    /// The given number of bytes.
    Bytes(u64),
}

/// The number of bytes that a port can use before it pauses its peer.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Threshold {
    /// A multiple of the free bytes.
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

/// The way in which a pause reaches the other end of the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PauseMode {
    /// Pause frames with quanta that expire and are refreshed. A pause frame waits for the frame in
    /// transmission and travels over the link.
    Frames,
    /// An idealised pause without delay, until the end of the pause is requested.
    Instant,
}

/// A watchdog that drops the frames of a priority that has been paused for too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watchdog {
    /// The duration of an uninterrupted pause that triggers the watchdog.
    pub after: Time,
    /// The time for which frames are dropped before the queue works again.
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

/// The choice among several shortest paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Balance {
    /// By a hash of addresses and ports, so that all frames of a queue pair take the same path.
    Flow,
    /// Like [`Flow`](Self::Flow), with a share of the hashes for each port in proportion to its link rate
    /// (weighted ECMP).
    Weighted,
    /// Each frame takes the next path in turn. Frames can overtake each other.
    Spray,
    /// Each frame takes the path whose port has the fewest queued bytes in this switch. Frames can overtake
    /// each other.
    Adaptive,
    /// A flow takes a new random path after each gap between two of its frames that is at least this long.
    Flowlet {
        /// The minimum gap. Frames do not overtake each other if the gap exceeds the differences in path
        /// delay.
        gap: Time,
    },
}

/// The operation that moves the bytes of a flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FlowOperation {
    /// The sender writes into the memory of the receiver.
    #[default]
    Write,
    /// The sender sends, and the receiver posts receive requests in time.
    Send,
    /// The receiver reads from the memory of the sender, so the flow begins with a request of the receiver.
    /// Only the receiver knows when the flow has ended.
    Read,
}

impl FlowOperation {
    /// Orders a pair of values for sender and receiver as those of requester and responder.
    pub(super) fn order<T>(self, [sender, receiver]: [T; 2]) -> [T; 2] {
        match self {
            Self::Write | Self::Send => [sender, receiver],
            Self::Read => [receiver, sender],
        }
    }
}

/// The times that a check of the device can take, and the longest time of a wake-up.
const POLL_TIMES: std::ops::RangeInclusive<Time> = Time::from_ns(10)..=Time::from_us(1_000);
const LONGEST_WAKE_UP: Time = Time::from_us(1_000_000);

/// The settings of all hosts.
#[derive(Clone, Debug, PartialEq)]
pub struct HostSettings {
    /// The operation of each flow.
    pub operation: FlowOperation,
    /// The time from the last bit of a frame to its handling by the engine.
    pub delay: Time,
    /// The application of each host.
    pub application: Application,
    /// The time that a thread of an application takes to check the device.
    pub poll_time: Time,
    /// The time that a sleeping thread of an application takes to run once it is woken.
    pub wake_up_time: Time,
    /// The bytes of frames that wait at a host with an application: those that no thread has received, and
    /// those that it has sent.
    pub socket_buffer_bytes: u64,
    /// The DSCP of data, whose upper three bits are the priority.
    pub dscp: u8,
    /// The DSCP of acknowledgements, if it differs from that of data.
    pub ack_dscp: Option<u8>,
    /// The congestion control of each flow.
    pub congestion: Congestion,
    /// The receiver's reaction to congestion marks, including the DSCP of CNPs.
    pub notification: NotificationPoint,
    /// The recovery of lost packets.
    pub recovery: Recovery,
    /// The UDP source ports of each flow.
    pub paths: Paths,
    /// Path MTU.
    pub path_mtu: PathMtu,
    /// The maximum number of unacknowledged packets of a queue pair.
    pub window_packets: u32,
    /// Local ACK timeout: 4.096 µs × 2^timeout.
    pub timeout: u8,
    /// Retries, 0 to 7.
    pub retry_cnt: u8,
    /// Bytes of one WRITE, SEND or READ. A longer flow consists of several.
    pub message_bytes: u64,
    /// The maximum number of outstanding WRITEs, SENDs or READs of one flow. At most 128 READs are
    /// outstanding.
    pub depth: u32,
    /// The receive rate of hosts, if it is lower than that of the link.
    pub receive_limit: Option<ReceiveLimit>,
    /// How hosts request READs.
    pub reads: ReadSettings,
}

impl Default for HostSettings {
    fn default() -> Self {
        Self {
            operation: FlowOperation::Write,
            delay: Time::ZERO,
            application: Application::Immediate,
            poll_time: Time::from_ns(500),
            wake_up_time: Time::from_us(10),
            socket_buffer_bytes: 16 << 20,
            dscp: 26,
            ack_dscp: Some(56),
            congestion: Congestion::none(),
            notification: NotificationPoint::default(),
            recovery: Recovery::GoBackN,
            paths: Paths::one(),
            path_mtu: PathMtu::Mtu1024,
            window_packets: 4_096,
            timeout: 14,
            retry_cnt: 7,
            message_bytes: 1 << 30,
            depth: 2,
            receive_limit: None,
            reads: ReadSettings::default(),
        }
    }
}

impl HostSettings {
    /// Returns the number of packets of a flow of this number of bytes.
    pub(crate) fn packets_of(&self, bytes: u64) -> u64 {
        let mtu = self.path_mtu.bytes() as u64;
        let whole = bytes / self.message_bytes * self.message_bytes.div_ceil(mtu);
        whole + (bytes % self.message_bytes).div_ceil(mtu)
    }

    /// Returns the scenario key of the first setting that is out of range, and the reason.
    #[must_use]
    pub fn problem(&self) -> Option<(&'static str, &'static str)> {
        let is_code_point = |dscp: u8| dscp <= 63;
        let checks = [
            ("depth", (1..=4_096).contains(&self.depth), "it must be 1 to 4096 WRITEs"),
            ("message", (1..=1 << 31).contains(&self.message_bytes), "a WRITE has 1 to 2^31 bytes"),
            ("dscp", is_code_point(self.dscp), "it must be 0 to 63"),
            ("ack_dscp", self.ack_dscp.is_none_or(is_code_point), "it must be 0 to 63"),
            ("timeout", self.timeout <= 31, "it must be 0 to 31"),
            ("retry_cnt", self.retry_cnt <= 7, "it must be 0 to 7"),
            ("poll_time", POLL_TIMES.contains(&self.poll_time), "it must be 10 ns to 1 ms"),
            ("wake_up_time", self.wake_up_time <= LONGEST_WAKE_UP, "it must be at most 1 s"),
            ("reads", self.reads.is_valid(), "rate must be above 0 and at most 10, and dscp 0 to 63"),
            ("socket_buffer", self.socket_buffer_bytes >= 8_192, "it must be at least 8,192 bytes"),
        ];
        if let Some(reason) = self.application.problem() {
            return Some(("application", reason));
        }
        checks.into_iter().find(|(_, good, _)| !good).map(|(key, _, reason)| (key, reason))
    }
}

/// The data to sample and capture during a simulation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MeasureSettings {
    /// The time between two samples of rates and queues.
    pub interval: Time,
    /// The time of the first sample of queues. A later time excludes the start from percentiles.
    pub warm_up: Time,
    /// The largest number of points of a series. Later points only count for percentiles, and the results
    /// contain their number.
    pub most_points: usize,
    /// The ports to capture, by their index in [`Results::ports`](super::Results::ports).
    /// [`Topology::port_named`](super::Topology::port_named) returns the index.
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
    /// The name of the switch.
    pub at: String,
    /// The name of the destination host.
    pub to: String,
    /// The names of the next hops.
    pub via: Vec<String>,
}

/// A link or a switch that fails.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The failing links.
    pub what: Failed,
    /// The time of the failure.
    pub at: Time,
    /// The time of the recovery, or [`Time::NEVER`].
    pub until: Time,
    /// The delay between a failure or recovery and the switches' routes for the new state.
    pub reroute_after: Time,
}

/// The failing links.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failed {
    /// All links between two nodes, given by name.
    Links(String, String),
    /// All links of a switch, given by name.
    Switch(String),
}

/// A host that sends pause frames without cause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PauseStorm {
    /// The number of the host.
    pub host: u32,
    /// The priority that the host pauses.
    pub priority: u8,
    /// The start of the storm.
    pub start: Time,
    /// The end of the storm.
    pub end: Time,
}

/// Returns the priority of a DSCP: its upper three bits, as for class selectors (RFC 2474 section 4.2.2).
#[must_use]
pub const fn priority_of(dscp: u8) -> u8 {
    (dscp >> 3) & 0b111
}

/// Returns the traffic classes of these priorities, one bit each.
pub(super) fn classes_of(priorities: u8) -> TrafficClasses {
    let of_priority = |priority: usize| 0xff_u64 << (8 * priority);
    let set = (0..PRIORITIES).filter(|priority| priorities >> priority & 1 == 1);
    TrafficClasses::from_bits(set.map(of_priority).fold(0, |all, bits| all | bits))
}
