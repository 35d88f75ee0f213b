//! Finds out why two machines cannot exchange RoCE packets, and what to change.
//!
//! One side waits ([`Doctor::serve`]), the other one examines it ([`Doctor::examine`]). They agree over TCP
//! on what to send, and compare the sent with the received packets. Without a server, the client sends an
//! rdma_cm request instead: any answer proves that RoCE works there.
//!
//! ```text
//! wire       messages between the two sides        watch   headers of what arrives
//! probe      bursts of UD datagrams, both ways     trips   RC messages there and back, byte by byte
//! local      device, MTU, route, UDP port          cm      the request of rdma_cm
//! neighbour  Ethernet addresses that answer
//! client, serve   who does what when               judge   from numbers to sentences
//! ```
//!
//! The sentences are explained in `docs/how-to/doctor.md`.
//!
//! The crate may use the library `roce`, the devices and all crates below them, and `roce-exchange` to talk
//! to the other side. Nothing here reads a command line or writes to a terminal.
#![forbid(unsafe_code)]

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

use roce::verbs::{Context, ContextBuilder, PathOptions};
use roce_device::Device;
use roce_exchange::{Exchange, ToolError, tell_failure};

/// The rdma_cm port of the request. It is usually free, so that no service is disturbed.
pub const SERVICE_PORT: u16 = 4791;

/// The tool name in the greetings of the two sides.
const TOOL: &str = "doctor";

fn not_a_path_mtu(bytes: usize) -> ToolError {
    ToolError::Peer(format!(
        "asks for path MTU {bytes}, which does not exist; run the same version on both sides"
    ))
}

fn unreasonable(request: &str) -> ToolError {
    ToolError::Peer(format!("asks for {request}; run the same version on both sides"))
}

/// The peer to examine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The address of the peer.
    pub address: IpAddr,
    /// The zone of a link-local address: the index of the interface that leads to it; otherwise 0.
    pub zone: u32,
    /// The TCP port on which a doctor may wait.
    pub exchange_port: u16,
    /// The rdma_cm port of the request if no doctor waits.
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

/// An open device that is observed.
#[derive(Debug)]
pub struct Doctor {
    context: Context,
    log: watch::Log,
    path: PathOptions,
}

impl Doctor {
    /// Takes an open device. `sgid_index` selects a GID of its table.
    ///
    /// # Errors
    ///
    /// The operating system refuses a descriptor or thread.
    pub fn new(
        builder: ContextBuilder,
        device: Box<dyn Device>,
        sgid_index: Option<usize>,
    ) -> Result<Self, ToolError> {
        let (watch, log) = watch::Watch::around(device);
        let context = builder.attach(watch)?;
        Ok(Self { context, log, path: PathOptions::default().sgid_index(sgid_index) })
    }

    /// Returns the context, for instance to listen on its address.
    #[must_use]
    pub fn context(&self) -> &Context {
        &self.context
    }

    /// Returns the source address: that of the selected GID, or the first.
    #[must_use]
    pub fn address(&self) -> Option<IpAddr> {
        self.context.gid_address(self.path.sgid_index)
    }

    /// Examines the path to a peer, and calls `on_finding` with each finding at once.
    pub fn examine(&self, peer: &Peer, on_finding: &mut dyn FnMut(&Finding)) -> Diagnosis {
        client::examine(self, peer, on_finding)
    }

    /// Takes part in the examination by a connected client. Returns the number of problems that it found.
    ///
    /// # Errors
    ///
    /// The client breaks the rules or leaves, or a verb fails. The client is told of every error that is not
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
