//! The paths of a queue pair, as a value and as text.

use alloc::borrow::ToOwned;
use alloc::boxed::Box;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use core::str::FromStr;

use super::penalty::Penalty;
use super::policy::{PathPolicy, PathStart};
use super::recycle::Recycle;
use super::reps::{Reps, RepsParameters};
use super::round_robin::RoundRobin;
use crate::parameters::ParameterRange::Number;
use crate::parameters::{NoParameters, ParameterError, Parameters};
use crate::{Custom, parameters};

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
    Custom(Custom<PathStart, Box<dyn PathPolicy>>),
}

impl Policy {
    /// The names of the policies of this crate.
    pub const NAMES: [&'static str; 5] = ["one", "round-robin", "penalty", "recycle", "reps"];

    /// Returns a policy that this crate does not contain.
    pub fn custom(
        name: &'static str,
        make: impl Fn(&PathStart) -> Box<dyn PathPolicy> + Send + Sync + 'static,
    ) -> Self {
        Self::custom_with(name, NoParameters, move |_, start| make(start))
    }

    /// Returns a policy that this crate does not contain, with parameters that text can set. Their type is
    /// usually one that [`parameters!`](crate::parameters!) defines. None may be called like one of
    /// [`PathParameters`], which it would hide.
    pub fn custom_with<P: Parameters + Clone + Send + Sync + 'static>(
        name: &'static str,
        parameters: P,
        make: impl Fn(&P, &PathStart) -> Box<dyn PathPolicy> + Send + Sync + 'static,
    ) -> Self {
        Self::Custom(Custom::new(name, parameters, make))
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
            Self::Custom(custom) => custom.name(),
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
            Self::Custom(custom) => custom.make(start),
        })
    }
}

impl PartialEq for Policy {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Reps(own), Self::Reps(other)) => own == other,
            (Self::Custom(own), Self::Custom(other)) => own == other,
            _ => core::mem::discriminant(self) == core::mem::discriminant(other),
        }
    }
}

impl Eq for Policy {}

impl fmt::Debug for Policy {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Reps(parameters) => write!(formatter, "{}:{parameters}", self.name()),
            Self::Custom(custom) => custom.fmt(formatter),
            _ => formatter.write_str(self.name()),
        }
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
    #[error("there is no policy for paths {name:?}; there are {known}")]
    Unknown {
        /// The given name.
        name: String,
        /// The existing policies.
        known: String,
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

    /// Reads text like [`FromStr`], but also accepts the names of `own`: policies that this crate does not
    /// contain ([`Policy::custom`]), with their parameters. These names take precedence.
    ///
    /// # Errors
    ///
    /// Returns an error if the text is not valid; the error names the wrong part and the expected one.
    pub fn parse_among(text: &str, own: &[Policy]) -> Result<Self, PathsError> {
        let (name, rest) = text.split_once(':').unwrap_or((text, ""));
        let found = own.iter().find(|policy| policy.name() == name).cloned();
        let policy = found.or_else(|| Policy::with_defaults(name)).ok_or_else(|| PathsError::Unknown {
            name: name.to_owned(),
            known: own.iter().map(Policy::name).chain(Policy::NAMES).collect::<Vec<&str>>().join(", "),
        })?;
        let mut paths = Self::new(policy);
        for piece in rest.split(',').filter(|piece| !piece.is_empty()) {
            let policy = paths.policy.name();
            paths.take(piece).map_err(|error| PathsError::Parameter { policy, error })?;
        }
        Ok(paths)
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
            Policy::Custom(custom) => {
                if custom.take(name, value)? {
                    return Ok(());
                }
                custom.table()
            }
            Policy::RoundRobin | Policy::Penalty | Policy::Recycle => &[],
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
        Self::parse_among(text, &[])
    }
}

/// The form that [`FromStr`] reads.
impl fmt::Display for Paths {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.policy.name())?;
        match &self.policy {
            Policy::One => Ok(()),
            Policy::Reps(own) => write!(formatter, ":{},{own}", self.parameters),
            Policy::Custom(custom) => {
                write!(formatter, ":{}", self.parameters)?;
                parameters::write_list(&custom.parameters(), ",", formatter)
            }
            _ => write!(formatter, ":{}", self.parameters),
        }
    }
}
