//! The findings, as text.

use serde::Serialize;

/// The subject of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Step {
    /// The local device and its GID table.
    Device,
    /// The largest packet of the interface and of the path, as far as the kernel knows it.
    Mtu,
    /// Route and neighbour.
    Route,
    /// Whether the Ethernet address that answers for the peer belongs to the peer, and is the only one.
    Neighbour,
    /// Whether a process of the other side owns UDP port 4791.
    UdpPort,
    /// A connection to `roce doctor` on the other side.
    Exchange,
    /// Whether RoCE packets arrive at all.
    Arrival,
    /// Whether RoCE packets arrive undamaged.
    Icrc,
    /// How many RoCE packets are lost.
    Loss,
    /// Whether the DSCP is kept.
    Dscp,
    /// Whether the ECN field is kept.
    Ecn,
    /// Whether addresses and the UDP source port are kept.
    SourcePort,
    /// Whether the IPv6 flow label is kept.
    FlowLabel,
    /// The largest path MTU that gets through.
    PathMtu,
    /// Round trips of messages on a reliable connection.
    RoundTrip,
    /// An rdma_cm request.
    RdmaCm,
}

impl Step {
    /// Returns a human-readable name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Device => "device",
            Self::Mtu => "MTU",
            Self::Route => "route",
            Self::Neighbour => "Ethernet",
            Self::UdpPort => "UDP port 4791",
            Self::Exchange => "other side",
            Self::Arrival => "arrival",
            Self::Icrc => "ICRC",
            Self::Loss => "loss",
            Self::Dscp => "DSCP",
            Self::Ecn => "ECN",
            Self::SourcePort => "source port",
            Self::FlowLabel => "flow label",
            Self::PathMtu => "path MTU",
            Self::RoundTrip => "round trip",
            Self::RdmaCm => "rdma_cm",
        }
    }
}

/// The outcome of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// The step found no problem.
    Ok,
    /// The step found a problem.
    Problem,
    /// The step was not tested; the text contains the reason.
    NotTested,
}

/// The result of a step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// The step.
    pub step: Step,
    /// The outcome.
    pub outcome: Outcome,
    /// The observation, as a sentence without a full stop.
    pub text: String,
    /// The remedy, as a sentence without a full stop. Every problem has one.
    pub remedy: Option<String>,
}

impl Finding {
    pub(super) fn ok(step: Step, text: impl Into<String>) -> Self {
        Self { step, outcome: Outcome::Ok, text: text.into(), remedy: None }
    }

    pub(super) fn problem(step: Step, text: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { step, outcome: Outcome::Problem, text: text.into(), remedy: Some(remedy.into()) }
    }

    pub(super) fn not_tested(step: Step, why: impl Into<String>) -> Self {
        Self { step, outcome: Outcome::NotTested, text: why.into(), remedy: None }
    }

    /// Adds an improvement to a finding without a problem.
    pub(super) fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.remedy = Some(hint.into());
        self
    }

    /// Returns whether the finding is a problem.
    #[must_use]
    pub fn is_problem(&self) -> bool {
        self.outcome == Outcome::Problem
    }
}

/// All findings about one peer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Diagnosis {
    /// The findings, in the order in which they were made.
    pub findings: Vec<Finding>,
}

impl Diagnosis {
    /// Returns whether there are no problems.
    #[must_use]
    pub fn is_healthy(&self) -> bool {
        !self.findings.iter().any(Finding::is_problem)
    }

    /// Returns the number of problems.
    #[must_use]
    pub fn problems(&self) -> usize {
        self.findings.iter().filter(|finding| finding.is_problem()).count()
    }

    /// Returns a summary in one sentence. Usually, the first problem is the cause of the others.
    #[must_use]
    pub fn verdict(&self) -> String {
        let first = self.findings.iter().find(|finding| finding.is_problem());
        let Some(first) = first else {
            let has_exchanged = |step| self.findings.iter().any(|finding| finding.step == step);
            return if has_exchanged(Step::RoundTrip) {
                "RoCE works in both directions".to_owned()
            } else {
                "the peer answers RoCE; to test losses, DSCP, ECN and path MTUs as well, run `roce doctor` \
                 there too"
                    .to_owned()
            };
        };
        let count = match self.problems() {
            1 => "one problem".to_owned(),
            count => format!("{count} problems; begin with the first"),
        };
        format!("{count}: {} ({})", first.text, first.step.name())
    }
}
