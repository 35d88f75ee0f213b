//! Finds out why two machines cannot exchange RoCE packets, and what to change.
//!
//! One side waits ([`Doctor::serve`]), the other one asks ([`Doctor::examine`]); they agree over TCP on what to
//! send each other, and compare what was sent with what arrived. Without a server, the client sends a request of
//! rdma_cm instead: any answer proves that RoCE works there.
//!
//! ```text
//! wire       messages between the two sides        watch   headers of what arrives
//! probe      bursts of UD datagrams, both ways     trips   RC messages there and back, byte by byte
//! local      device, MTU, route, UDP port          cm      the request of rdma_cm
//! neighbour  Ethernet addresses that answer
//! client, serve   who does what when               judge   from numbers to sentences
//! ```
//!
//! The sentences are explained in `docs/doctor.md`.

mod client;
mod cm;
mod finding;
mod judge;
mod local;
mod neighbour;
mod probe;
mod serve;
mod trips;
mod watch;
mod wire;

use std::net::{IpAddr, SocketAddr, SocketAddrV6};

pub use finding::{Diagnosis, Finding, Outcome, Step};

use crate::exchange::Exchange;
use crate::harness::{ToolError, tell_failure};
use roce::verbs::{Context, ContextBuilder, PathOptions};
use roce_device::Device;

/// The port of rdma_cm that is asked for: a port that is usually free, so that no service is disturbed.
pub const SERVICE_PORT: u16 = 4791;

/// What the two sides greet each other as.
const TOOL: &str = "doctor";

fn not_a_path_mtu(bytes: usize) -> ToolError {
    ToolError::Peer(format!(
        "asks for path MTU {bytes}, which does not exist; run the same version on both sides"
    ))
}

fn unreasonable(request: &str) -> ToolError {
    ToolError::Peer(format!("asks for {request}; run the same version on both sides"))
}

/// Whom to examine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its address.
    pub address: IpAddr,
    /// The zone of a link-local address: the index of the interface that leads to it; otherwise 0.
    pub zone: u32,
    /// The TCP port where a doctor may wait.
    pub exchange_port: u16,
    /// The port of rdma_cm to ask for where none does.
    pub service_port: u16,
}

impl Peer {
    fn exchange(&self) -> SocketAddr {
        match self.address {
            IpAddr::V6(address) => SocketAddrV6::new(address, self.exchange_port, 0, self.zone).into(),
            IpAddr::V4(_) => SocketAddr::new(self.address, self.exchange_port),
        }
    }
}

/// An open device that is watched.
#[derive(Debug)]
pub struct Doctor {
    context: Context,
    log: watch::Log,
    path: PathOptions,
}

impl Doctor {
    /// Takes a device that is open. `sgid_index` chooses a GID of its table.
    ///
    /// # Errors
    ///
    /// When the operating system refuses a descriptor or thread.
    pub fn new(
        builder: ContextBuilder,
        device: Box<dyn Device>,
        sgid_index: Option<usize>,
    ) -> Result<Self, ToolError> {
        let (watch, log) = watch::Watch::around(device);
        let context = builder.attach(Box::new(watch))?;
        Ok(Self { context, log, path: PathOptions::default().sgid_index(sgid_index) })
    }

    /// The context, for instance to listen on its address.
    #[must_use]
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// The address that is sent from: that of the chosen GID, or the first.
    #[must_use]
    pub fn address(&self) -> Option<IpAddr> {
        self.context.gid_address(self.path.sgid_index)
    }

    /// Examines the way to a peer; and calls `on_finding` with each finding as soon as it is made.
    pub fn examine(&self, peer: &Peer, on_finding: &mut dyn FnMut(&Finding)) -> Diagnosis {
        client::examine(self, peer, on_finding)
    }

    /// Takes part in the examination by a client that has connected; returns how many problems it found.
    ///
    /// # Errors
    ///
    /// When the client does not keep to the rules, goes away, or a verb fails. The client is told of every error that is not
    /// its own.
    pub fn serve(&self, mut exchange: Exchange) -> Result<usize, ToolError> {
        let problems = serve::serve(self, &mut exchange);
        tell_failure(&mut exchange, &problems);
        problems
    }

    fn probe(&self) -> Result<probe::Probe, ToolError> {
        probe::Probe::new(&self.context, self.log.clone(), self.path)
    }
}
