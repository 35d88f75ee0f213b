//! A packet network in virtual time whose hosts run the real engine.
//!
//! A [`Topology`] lists hosts, switches and links. [`Settings`] configure them, and a list of [`FlowSpec`]s
//! describes the traffic. A [`Simulation`] handles one event after the other, in whole picoseconds, and
//! returns [`Results`]. Every random number follows from the seed, so the same input gives the same
//! [`Results::trace_hash`].
//!
//! Hosts are [`Engine`](roce_transport::Engine)s with queue pairs, work requests and completions, as in a
//! program that uses a real network. Frames carry the datagrams of those engines. Hosts handle each of them
//! at once, unless an [`Application`] is simulated too.
//! `docs/reference/simulator.md` lists the idealisations. A [`Network`] is a simulation whose messages an
//! external scheduler sends.
//!
//! ```
//! use roce_sim::net::{LinkSpec, Settings, Simulation, Time, Topology, incast};
//!
//! let topology = Topology::star(3, LinkSpec::DEFAULT)?;
//! let flows = incast(3, 2, 2, 1_000_000, Time::ZERO)?;
//! let mut simulation = Simulation::new(&topology, &flows, Settings::default())?;
//! simulation.run_to_end();
//! let results = simulation.results();
//! assert_eq!(results.incomplete(), 0);
//! // Two megabytes through one link of 100 Gb/s: 1,024 bytes of payload are 1,106 on the wire.
//! let slowest = results.completion_quantile(1.0).unwrap_or_default();
//! assert!(slowest > Time::from_us(172) && slowest < Time::from_us(182), "{slowest}");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod application;
mod dependencies;
mod egress;
mod embed;
mod event;
mod failure;
mod flow;
mod frame;
mod histogram;
mod host;
mod ideal;
mod journal;
mod marking;
mod memory;
mod nic;
mod payload;
mod place;
mod port;
mod port_rules;
mod process;
mod queue;
mod receiver;
mod results;
mod route;
mod rules;
mod scale_up;
mod settings;
mod simulation;
mod slowdown;
mod switch;
mod ties;
mod time;
mod topology;
mod trace;
mod waits;
mod work;
mod workload;
mod world;

pub use application::{Application, ApplicationError};
pub use egress::{CONTROL, Egress};
pub use embed::{Handle, Message, Network, NetworkError, NetworkEvent};
pub use failure::{MAX_FAILURES, check_failures};
pub use flow::{FlowCounts, FlowResult, FlowState, Refusal};
pub use frame::{host_address, wire_len};
pub use histogram::Histogram;
pub use journal::{TraceEvent, TraceValue, fields_of, record_event};
pub use marking::Marking;
pub use memory::{MemoryEstimate, MemoryPart};
pub use payload::MAX_FLOW;
pub use port::{DropReason, PauseStep, PortStats};
pub use queue::EventQueue;
pub use receiver::{ReadSettings, ReceiveLimit};
pub use results::{
    HostResult, PausePoint, PortResult, QueuePoint, RatePoint, Results, TotalPoint, port_name,
};
pub use route::{RouteError, check_routes};
pub use rules::{Admission, FrameView, NamedRules, PortView, SwitchRules};
pub use settings::{
    Balance, Class, Failed, Failure, FlowOperation, Headroom, HostSettings, MeasureSettings, PRIORITIES,
    PauseMode, PauseStorm, PayloadMode, PortChanges, PortRule, RouteOverride, Settings, SwitchSettings,
    Threshold, Trimming, Watchdog, priority_of,
};
pub use simulation::{BuildError, Simulation};
pub use slowdown::{Percentiles, SIZE_CLASSES, SizeRange, Slowdowns};
pub use switch::BufferTooSmall;
pub use ties::Ties;
pub use time::Time;
pub use topology::{
    Clos, Link, LinkSpec, MAX_HOSTS, Node, NodeId, NodeKind, ScaleUp, Topology, TopologyError,
    TopologyFileError,
};
pub use waits::{Deadlock, WaitEnd};
pub use work::data_packets;
pub use workload::{
    After, CdfError, Collective, DataParallel, FindHost, FlowSizes, FlowSpec, Incasts, MAX_FLOWS, MAX_LOAD,
    MAX_TASKS, MixtureOfExperts, Operation, OperationAlgorithm, OperationKind, OperationResult, Pipeline,
    Plan, Poisson, Schedule, Task, TaskId, Transfer, WorkloadError, all_to_all, check as check_flows,
    delay_starts, incast, incasts, on_off, parse_flows, parse_flows_of, permutation, poisson, shuffle,
    uneven_shares,
};
pub use world::{Captured, CapturedContent};
