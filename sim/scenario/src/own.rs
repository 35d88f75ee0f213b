//! What a program adds to the scenarios that it reads.

use roce_sim::net::NamedRules;
use roce_transport::congestion::{Algorithm, Policy, Pulls};

/// Algorithms, policies and rules of a program. Scenarios use them by name, with their parameters, like those
/// that exist without the program.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Own {
    /// Congestion control, for `host.congestion` and profiles ([`Algorithm::custom`],
    /// [`Algorithm::custom_with`]).
    pub algorithms: Vec<Algorithm>,
    /// Policies that select the path of each packet, for `host.paths` and profiles ([`Policy::custom`],
    /// [`Policy::custom_with`]).
    pub policies: Vec<Policy>,
    /// Policies of receivers that pull, for `host.reads`.
    pub pulls: Vec<Pulls>,
    /// Rules of switches, for `switch.rules`.
    pub rules: Vec<NamedRules>,
}

impl Own {
    /// No additions.
    pub const NONE: Self =
        Self { algorithms: Vec::new(), policies: Vec::new(), pulls: Vec::new(), rules: Vec::new() };
}

impl From<Vec<Algorithm>> for Own {
    fn from(algorithms: Vec<Algorithm>) -> Self {
        Self { algorithms, ..Self::NONE }
    }
}
