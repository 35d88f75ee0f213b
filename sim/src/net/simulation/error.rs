//! The error of building a simulation.

use crate::net::route::RouteError;
use crate::net::switch::BufferTooSmall;
use crate::net::topology::TopologyError;
use crate::net::workload::WorkloadError;

/// The reason why a network cannot be built.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// The topology is invalid.
    #[error("invalid topology")]
    Topology(#[from] TopologyError),
    /// A route is impossible.
    #[error(transparent)]
    Route(#[from] RouteError),
    /// A switch cannot be built.
    #[error("cannot build switch {name}")]
    Buffer {
        /// The name of the switch.
        name: String,
        /// The reason.
        #[source]
        error: BufferTooSmall,
    },
    /// A flow is impossible.
    #[error("invalid workload")]
    Workload(#[from] WorkloadError),
    /// A setting is out of range.
    #[error("{0}")]
    Setting(String),
}
