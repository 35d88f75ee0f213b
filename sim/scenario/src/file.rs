//! The tables of a scenario file as read by serde. `docs/reference/simulator.md` explains every key. An
//! unknown key is an error.

use std::collections::BTreeMap;

use roce_sim::net::PauseMode;
use serde::Deserialize;
use serde::de::IgnoredAny;
use toml::Spanned;

use super::expect::ExpectedValue;
use super::flows::Table as FlowTable;
use super::import::WorkloadTable;
use super::operations::{CollectiveTable, TrainingTable};
use super::profile::Profile;
use super::values::{Bytes, Rate, Span};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct File {
    pub(super) name: String,
    #[serde(default)]
    pub(super) description: String,
    /// The expected result, as text.
    #[serde(default)]
    pub(super) expectation: String,
    #[serde(default = "one")]
    pub(super) seed: u64,
    #[serde(default)]
    pub(super) ties: Ties,
    #[serde(default)]
    pub(super) payload: Payload,
    pub(super) stop: Option<Span>,
    #[serde(default)]
    pub(super) open_ended: bool,
    pub(super) topology: Spanned<Topology>,
    #[serde(default)]
    pub(super) switch: Switch,
    #[serde(default)]
    pub(super) host: Host,
    #[serde(default)]
    pub(super) group: Vec<Spanned<Group>>,
    #[serde(default)]
    pub(super) measure: Measure,
    #[serde(default)]
    pub(super) flows: Vec<Spanned<FlowTable>>,
    #[serde(default)]
    pub(super) collective: Vec<Spanned<CollectiveTable>>,
    #[serde(default)]
    pub(super) training: Vec<Spanned<TrainingTable>>,
    #[serde(default)]
    pub(super) workload: Vec<Spanned<WorkloadTable>>,
    #[serde(default)]
    pub(super) route: Vec<Spanned<Route>>,
    #[serde(default)]
    pub(super) storm: Vec<Spanned<Storm>>,
    #[serde(default)]
    pub(super) failure: Vec<Spanned<Failure>>,
    /// The table for `roce bridge`, which also reads the other tables and treats packets like the simulated
    /// switch.
    #[serde(default, rename = "bridge")]
    _bridge: IgnoredAny,
    #[serde(default)]
    pub(super) sweep: Vec<Spanned<Sweep>>,
    #[serde(default)]
    pub(super) expect: Vec<Spanned<Expect>>,
    /// Contents that replace files, by the names that other tables use.
    #[serde(default)]
    pub(super) files: BTreeMap<String, String>,
}

fn one() -> u64 {
    1
}

/// The order of simultaneous frames and starts.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Ties {
    #[default]
    Seed,
    Port,
}

impl From<Ties> for roce_sim::net::Ties {
    fn from(ties: Ties) -> Self {
        match ties {
            Ties::Seed => Self::Seed,
            Ties::Port => Self::Port,
        }
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Payload {
    #[default]
    Implied,
    Real,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table [topology]")]
pub(super) struct Topology {
    pub(super) kind: Shape,
    /// The number of hosts of a star, or of hosts at each switch.
    pub(super) hosts: Option<usize>,
    pub(super) switches: Option<usize>,
    pub(super) left: Option<usize>,
    pub(super) right: Option<usize>,
    pub(super) leaves: Option<usize>,
    pub(super) spines: Option<usize>,
    pub(super) servers: Option<usize>,
    pub(super) rails: Option<usize>,
    pub(super) pods: Option<usize>,
    pub(super) tors: Option<usize>,
    pub(super) depth: Option<u32>,
    pub(super) fanout: Option<usize>,
    pub(super) k: Option<usize>,
    /// The name of a topology file, or its text.
    pub(super) file: Option<String>,
    pub(super) text: Option<String>,
    /// The links to hosts.
    pub(super) rate: Option<Rate>,
    pub(super) delay: Option<Span>,
    /// The links between switches, if they differ from the links to hosts.
    pub(super) fabric_rate: Option<Rate>,
    pub(super) fabric_delay: Option<Span>,
    pub(super) scale_up: Option<ScaleUp>,
    #[serde(default)]
    pub(super) faults: Vec<Spanned<Fault>>,
}

/// The second network of a domain of hosts.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table such as { hosts = 8, rate = \"3600Gbps\" }")]
pub(super) struct ScaleUp {
    /// The hosts of a domain.
    pub(super) hosts: Option<u32>,
    pub(super) rate: Rate,
    pub(super) delay: Option<Span>,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Shape {
    PointToPoint,
    Star,
    Bus,
    Line,
    Ring,
    FullMesh,
    Tree,
    Dumbbell,
    LeafSpine,
    RailOptimised,
    Clos,
    FatTree,
    File,
    Hpcc,
    Htsim,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table in [[topology.faults]]")]
pub(super) struct Fault {
    /// The two ends by name, or all links if missing.
    pub(super) link: Option<[String; 2]>,
    /// The end that sends the packets to which the plan applies, or both directions if missing.
    pub(super) from: Option<String>,
    pub(super) plan: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table [switch]")]
pub(super) struct Switch {
    pub(super) buffer: Option<Bytes>,
    pub(super) reserve: Option<Bytes>,
    pub(super) headroom: Option<Headroom>,
    pub(super) threshold: Option<Spanned<Threshold>>,
    pub(super) xon_offset: Option<Bytes>,
    pub(super) lossy_alpha: Option<Spanned<f64>>,
    pub(super) pfc: Option<Spanned<Vec<u8>>>,
    pub(super) pause: Option<Pause>,
    pub(super) watchdog: Option<Spanned<Watchdog>>,
    pub(super) balance: Option<Balance>,
    /// The gap that ends a flowlet.
    pub(super) flowlet_gap: Option<Spanned<Span>>,
    pub(super) trimming: Option<Spanned<Trimming>>,
    /// The name of rules of the program that reads the scenario, with parameters.
    pub(super) rules: Option<Spanned<String>>,
    /// Exceptions for some switches and ports.
    #[serde(default)]
    pub(super) port: Vec<Spanned<Port>>,
    /// The port rate to which the marking thresholds apply.
    pub(super) marking_rate: Option<Spanned<Rate>>,
    /// The marking of the data priority.
    pub(super) marking: Option<Spanned<Marking>>,
    #[serde(default)]
    pub(super) queue: Vec<Spanned<Queue>>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "\"auto\" or a size such as \"40KB\"")]
pub(super) enum Headroom {
    Auto(Auto),
    Bytes(Bytes),
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Auto {
    Auto,
}

#[derive(Debug, Deserialize)]
#[serde(
    deny_unknown_fields,
    expecting = "a table for threshold, such as { alpha = 0.125 } or { bytes = \"100KB\" }"
)]
pub(super) struct Threshold {
    pub(super) alpha: Option<f64>,
    pub(super) bytes: Option<Bytes>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Pause {
    Frames,
    Instant,
}

impl From<Pause> for PauseMode {
    fn from(pause: Pause) -> Self {
        match pause {
            Pause::Frames => Self::Frames,
            Pause::Instant => Self::Instant,
        }
    }
}

#[derive(Debug, Deserialize)]
#[serde(
    deny_unknown_fields,
    expecting = "a table for watchdog, such as { after = \"1ms\", restore = \"1ms\" }"
)]
pub(super) struct Watchdog {
    #[serde(default)]
    pub(super) off: bool,
    pub(super) after: Option<Span>,
    pub(super) restore: Option<Span>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Balance {
    Flow,
    Weighted,
    Spray,
    Adaptive,
    Flowlet,
}

#[derive(Debug, Deserialize)]
#[serde(
    deny_unknown_fields,
    expecting = "a table for trimming, such as { above = \"100KB\" } or { off = true }"
)]
pub(super) struct Trimming {
    #[serde(default)]
    pub(super) off: bool,
    pub(super) dscp: Option<u8>,
    /// The length of a trimmed frame in bytes.
    pub(super) to: Option<Bytes>,
    /// The queue length above which frames are trimmed.
    pub(super) above: Option<Bytes>,
}

#[derive(Debug, Deserialize)]
#[serde(
    deny_unknown_fields,
    expecting = "a table for marking, such as { kmin = \"100KB\", kmax = \"400KB\", pmax = 0.2 }"
)]
pub(super) struct Marking {
    #[serde(default)]
    pub(super) off: bool,
    pub(super) step: Option<Bytes>,
    pub(super) kmin: Option<Bytes>,
    pub(super) kmax: Option<Bytes>,
    pub(super) pmax: Option<f64>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table in [[switch.queue]]")]
pub(super) struct Queue {
    pub(super) priority: u8,
    /// The weight. A queue without a weight is strict.
    pub(super) weight: Option<u32>,
    pub(super) marking: Option<Marking>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table in [[switch.port]]")]
pub(super) struct Port {
    /// The name of a switch or a pattern, or all switches if missing.
    pub(super) switch: Option<String>,
    /// The host or switch at the other end of the link or a pattern, or all nodes if missing.
    pub(super) to: Option<String>,
    pub(super) rate: Option<Rate>,
    /// The priority to which `marking` and `weight` apply.
    pub(super) priority: Option<u8>,
    pub(super) marking: Option<Marking>,
    pub(super) weight: Option<Weight>,
    pub(super) reserve: Option<Bytes>,
    pub(super) headroom: Option<Headroom>,
    pub(super) threshold: Option<Threshold>,
    pub(super) xon_offset: Option<Bytes>,
    pub(super) lossy_alpha: Option<f64>,
    pub(super) pfc: Option<Vec<u8>>,
    pub(super) watchdog: Option<Watchdog>,
    pub(super) trimming: Option<Trimming>,
    // The following settings apply to whole switches.
    pub(super) buffer: Option<Bytes>,
    pub(super) balance: Option<Balance>,
    pub(super) flowlet_gap: Option<Span>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged, expecting = "a number, or \"strict\"")]
pub(super) enum Weight {
    Strict(Strict),
    Share(u32),
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Strict {
    Strict,
}

/// Hosts with their own application, or whose flows have their own settings.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table in [[group]]")]
pub(super) struct Group {
    pub(super) hosts: Vec<String>,
    pub(super) host: Option<Profile>,
    pub(super) application: Option<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table [host]")]
pub(super) struct Host {
    pub(super) congestion: Option<Spanned<String>>,
    pub(super) recovery: Option<Spanned<String>>,
    pub(super) paths: Option<Spanned<String>>,
    pub(super) delay: Option<Span>,
    pub(super) application: Option<Spanned<String>>,
    pub(super) poll_time: Option<Spanned<Span>>,
    pub(super) wake_up_time: Option<Spanned<Span>>,
    pub(super) socket_buffer: Option<Spanned<Bytes>>,
    pub(super) dscp: Option<Spanned<u8>>,
    pub(super) ack_dscp: Option<Spanned<u8>>,
    pub(super) path_mtu: Option<Spanned<u16>>,
    pub(super) window: Option<u32>,
    pub(super) timeout: Option<Spanned<u8>>,
    pub(super) retry_cnt: Option<Spanned<u8>>,
    pub(super) message: Option<Spanned<Bytes>>,
    pub(super) depth: Option<Spanned<u32>>,
    pub(super) receive_limit: Option<Spanned<ReceiveLimit>>,
    pub(super) reads: Option<Spanned<Reads>>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table for reads, such as { packets = 8, rate = 1.0 }")]
pub(super) struct Reads {
    pub(super) packets: Option<u32>,
    pub(super) rate: Option<f64>,
    pub(super) policy: Option<String>,
    pub(super) dscp: Option<u8>,
}

#[derive(Debug, Deserialize)]
#[serde(
    deny_unknown_fields,
    expecting = "a table for receive_limit, such as { rate = \"10Gbps\", xoff = \"100KB\" }"
)]
pub(super) struct ReceiveLimit {
    pub(super) host: Option<String>,
    pub(super) rate: Rate,
    pub(super) xoff: Bytes,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table [measure]")]
pub(super) struct Measure {
    pub(super) interval: Option<Spanned<Span>>,
    pub(super) warm_up: Option<Span>,
    pub(super) points: Option<usize>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table in [[route]]")]
pub(super) struct Route {
    pub(super) at: String,
    pub(super) to: String,
    pub(super) via: Vec<String>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table in [[storm]]")]
pub(super) struct Storm {
    pub(super) host: String,
    pub(super) priority: u8,
    pub(super) start: Span,
    pub(super) end: Span,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Failure {
    /// The two ends of a link by name.
    pub(super) link: Option<[String; 2]>,
    pub(super) switch: Option<String>,
    pub(super) at: Span,
    pub(super) until: Option<Span>,
    pub(super) reroute_after: Option<Span>,
}

/// A key that the scenario proposes to vary, and its values.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table in [[sweep]]")]
pub(super) struct Sweep {
    pub(super) name: String,
    pub(super) values: Vec<toml::Value>,
}

/// A condition that a run should meet.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, expecting = "a table in [[expect]]")]
pub(super) struct Expect {
    pub(super) metric: String,
    pub(super) relation: String,
    pub(super) value: ExpectedValue,
}
