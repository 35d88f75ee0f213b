//! Why two machines do not talk RoCE to each other: probes, and in words what is wrong and what to change.
//!
//! One side waits ([`Doctor::serve`]), the other one asks ([`Doctor::examine`]); they agree over TCP on what to
//! send each other, and compare what was sent with what arrived. Where nobody waits, a request of rdma_cm is
//! sent instead: whatever the peer answers to it proves that RoCE works there.
//!
//! ```text
//! wire       what the two tell each other          watch   headers of what arrives
//! probe      bursts of UD datagrams, both ways     trips   RC messages there and back, byte by byte
//! local      device, MTU, route, UDP port          cm      the request of rdma_cm
//! client, serve   who does what when               judge   from numbers to sentences
//! ```
//!
//! The sentences are explained in `docs/doctor.md`.

mod client;
mod cm;
mod finding;
mod judge;
mod local;
mod probe;
mod serve;
mod trips;
mod watch;
mod wire;

use std::net::{IpAddr, SocketAddr};

pub use finding::{Diagnosis, Finding, Outcome, Step};

use crate::exchange::{Exchange, ExchangeError};
use roce::verbs::{Context, ContextBuilder, PathOptions, VerbsError, WaitError};
use roce_device::Device;

/// The port of rdma_cm that is asked for: one where nobody listens as a rule, so that nobody is disturbed.
pub const SERVICE_PORT: u16 = 4791;

/// Why an examination could not go on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DoctorError {
    /// The exchange with the other side.
    #[error(transparent)]
    Exchange(#[from] ExchangeError),
    /// A verb.
    #[error(transparent)]
    Verbs(#[from] VerbsError),
    /// Waiting failed.
    #[error(transparent)]
    Wait(#[from] WaitError),
    /// The device has no GID with this index, or none at all.
    #[error("this device has no such GID; `roce devices -v` shows GID tables")]
    NoAddress,
    /// The device takes no packets.
    #[error(
        "the device did not send within 5 s what was posted; the neighbour may not answer (`ip neigh`), or the link \
         is down (`ip link`)"
    )]
    NothingLeaves,
    /// The other side asked for something that is no path MTU.
    #[error("{0} is no path MTU; do both sides run the same version?")]
    PathMtu(usize),
    /// The other side asked for too much.
    #[error("the other side asked for {0}; do both sides run the same version?")]
    Unreasonable(String),
}

/// Whom to examine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its address.
    pub address: IpAddr,
    /// The TCP port where a doctor may wait.
    pub exchange_port: u16,
    /// The port of rdma_cm to ask for where none does.
    pub service_port: u16,
}

impl Peer {
    fn exchange(&self) -> SocketAddr {
        SocketAddr::new(self.address, self.exchange_port)
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
    ) -> Result<Self, DoctorError> {
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

    /// Examines the way to a peer; `told` hears of every finding at once.
    pub fn examine(&self, peer: &Peer, told: &mut dyn FnMut(&Finding)) -> Diagnosis {
        client::examine(self, peer, told)
    }

    /// Takes part in the examination by a client that has connected; returns how many problems it found.
    ///
    /// # Errors
    ///
    /// When the client does not keep to the rules, goes away, or a verb fails.
    pub fn serve(&self, exchange: Exchange) -> Result<usize, DoctorError> {
        serve::serve(self, exchange)
    }

    fn probe(&self) -> Result<probe::Probe, DoctorError> {
        probe::Probe::new(&self.context, self.log.clone(), self.path)
    }
}
