//! The paths of a queue pair, as a value and as text.

use alloc::borrow::ToOwned;
use alloc::boxed::Box;
use alloc::string::String;
use alloc::sync::Arc;
use core::fmt;
use core::str::FromStr;

use super::penalty::Penalty;
use super::policy::{PathPolicy, PathStart};
use super::recycle::Recycle;
use super::reps::{Reps, RepsParameters};
use super::round_robin::RoundRobin;
use crate::parameters;
use crate::parameters::ParameterRange::Number;
use crate::parameters::{ParameterError, Parameters as _};

parameters! {
    /// The paths of a queue pair, whatever the policy.
    pub struct PathParameters {
        /// Number of paths, that is of UDP source ports, rounded up to a power of two.
        paths: u32 = 64, Number(1, 1_024), "", "";
        /// Losses in a row on one path, with no other fate between them, that exclude it; 0 excludes none.
        losses: u32 = 2, Number(0, 255), "packets", "";
        /// Time until an excluded path is probed; it doubles until a probe succeeds, up to 1,024-fold.
        probe: u32 = 100, Number(1, 1_000_000), "us", "";
    }
}

/// A function that creates a policy for a queue pair.
type MakePolicy = dyn Fn(&PathStart) -> Box<dyn PathPolicy> + Send + Sync;

/// The policy that selects the path of each packet.
#[derive(Clone, Default)]
pub enum Policy {
    /// One path: the source port of the queue pair.
    #[default]
    One,
    /// All paths in turn.
    RoundRobin,
    /// All paths in turn, except those that were congested lately.
    Penalty,
    /// The paths of packets that arrived without a mark.
    Recycle,
    /// REPS: recycled entropies, with a cache that survives failures.
    Reps(RepsParameters),
    /// A policy from another crate; see [`Policy::custom`].
    Custom {
        /// The name of the policy.
        name: &'static str,
        /// A function that creates an instance for each queue pair.
        make: Arc<MakePolicy>,
    },
}

impl Policy {
    /// The names of the policies of this crate.
    pub const NAMES: [&'static str; 5] = ["one", "round-robin", "penalty", "recycle", "reps"];

    /// Returns a policy that this crate does not contain.
    pub fn custom(
        name: &'static str,
        make: impl Fn(&PathStart) -> Box<dyn PathPolicy> + Send + Sync + 'static,
    ) -> Self {
        Self::Custom { name, make: Arc::new(make) }
    }

    fn with_defaults(name: &str) -> Option<Self> {
        Some(match name {
            "one" => Self::One,
            "round-robin" => Self::RoundRobin,
            "penalty" => Self::Penalty,
            "recycle" => Self::Recycle,
            "reps" => Self::Reps(RepsParameters::default()),
            _ => return None,
        })
    }

    /// Returns the name of the policy.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::One => "one",
            Self::RoundRobin => "round-robin",
            Self::Penalty => "penalty",
            Self::Recycle => "recycle",
            Self::Reps(_) => "reps",
            Self::Custom { name, .. } => name,
        }
    }

    /// Creates an instance for a queue pair, or returns `None` for one path.
    #[must_use]
    pub fn make(&self, start: &PathStart) -> Option<Box<dyn PathPolicy>> {
        Some(match self {
            Self::One => return None,
            Self::RoundRobin => Box::new(RoundRobin::new(start)),
            Self::Penalty => Box::new(Penalty::new(start)),
            Self::Recycle => Box::new(Recycle::new(start)),
            Self::Reps(parameters) => Box::new(Reps::new(parameters, start)),
            Self::Custom { make, .. } => make(start),
        })
    }
}

impl PartialEq for Policy {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Reps(own), Self::Reps(other)) => own == other,
            (Self::Custom { make: own, .. }, Self::Custom { make: other, .. }) => {
                core::ptr::addr_eq(Arc::as_ptr(own), Arc::as_ptr(other))
            }
            _ => core::mem::discriminant(self) == core::mem::discriminant(other),
        }
    }
}

impl Eq for Policy {}

impl fmt::Debug for Policy {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())?;
        if let Self::Reps(parameters) = self { write!(formatter, ":{parameters}") } else { Ok(()) }
    }
}

/// The paths over which an RC queue pair sends.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Paths {
    /// The policy that selects the path of each packet.
    pub policy: Policy,
    /// Number of paths, and when one is excluded.
    pub parameters: PathParameters,
}

/// An error in the text of paths.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PathsError {
    /// The policy does not exist.
    #[error("there is no policy for paths {name:?}; there are {}", Policy::NAMES.join(", "))]
    Unknown {
        /// The given name.
        name: String,
    },
    /// A parameter is wrong.
    #[error("invalid parameter of {policy}")]
    Parameter {
        /// The policy.
        policy: &'static str,
        /// The error of the parameter.
        #[source]
        error: ParameterError,
    },
}

impl Paths {
    /// Returns one path.
    #[must_use]
    pub fn one() -> Self {
        Self::default()
    }

    /// Returns the paths of this policy with default parameters.
    #[must_use]
    pub fn new(policy: Policy) -> Self {
        Self { policy, parameters: PathParameters::default() }
    }

    /// Returns the number of paths, a power of two.
    #[must_use]
    pub fn count(&self) -> u16 {
        match self.policy {
            Policy::One => 1,
            _ => u16::try_from(self.parameters.in_range().paths.next_power_of_two()).unwrap_or(1),
        }
    }

    fn take(&mut self, piece: &str) -> Result<(), ParameterError> {
        let (name, value) = parameters::split(piece)?;
        let own = match &mut self.policy {
            Policy::One => return Err(parameters::unknown(name, &[])),
            Policy::Reps(reps) => {
                if reps.take(name, value)? {
                    return Ok(());
                }
                RepsParameters::PARAMETERS
            }
            Policy::RoundRobin | Policy::Penalty | Policy::Recycle | Policy::Custom { .. } => &[],
        };
        if self.parameters.take(name, value)? {
            return Ok(());
        }
        Err(parameters::unknown(name, &[PathParameters::PARAMETERS, own]))
    }
}

/// Reads `NAME[:name=value,…]` with a name of [`Policy::NAMES`] and the parameters of [`PathParameters`],
/// and for `reps` those of [`RepsParameters`], for example `reps:paths=128,freeze=1000`.
impl FromStr for Paths {
    type Err = PathsError;

    fn from_str(text: &str) -> Result<Self, PathsError> {
        let (name, rest) = text.split_once(':').unwrap_or((text, ""));
        let policy =
            Policy::with_defaults(name).ok_or_else(|| PathsError::Unknown { name: name.to_owned() })?;
        let mut paths = Self::new(policy);
        for piece in rest.split(',').filter(|piece| !piece.is_empty()) {
            let policy = paths.policy.name();
            paths.take(piece).map_err(|error| PathsError::Parameter { policy, error })?;
        }
        Ok(paths)
    }
}

/// The form that [`FromStr`] reads.
impl fmt::Display for Paths {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.policy.name())?;
        match &self.policy {
            Policy::One => Ok(()),
            Policy::Reps(own) => write!(formatter, ":{},{own}", self.parameters),
            _ => write!(formatter, ":{}", self.parameters),
        }
    }
}
