//! Congestion control algorithms that a program adds to the command; see [`main_with`](super::main_with).

use std::sync::OnceLock;

use roce_transport::congestion::{Algorithm, Congestion, CongestionError, NotificationPoint};

static ALGORITHMS: OnceLock<Vec<Algorithm>> = OnceLock::new();

/// Stores the algorithms; called once, before the command line is parsed.
pub(super) fn register(algorithms: Vec<Algorithm>) {
    // A second call has no effect: options may have been parsed already.
    let _ = ALGORITHMS.set(algorithms);
}

pub(super) fn registered() -> &'static [Algorithm] {
    ALGORITHMS.get().map_or(&[], Vec::as_slice)
}

/// Parses the value of `--congestion`.
pub(super) fn parse_congestion(text: &str) -> Result<(Congestion, NotificationPoint), CongestionError> {
    Congestion::parse_among(text, registered())
}
