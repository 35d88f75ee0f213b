//! Congestion control algorithms that a program brings to the command; see [`main_with`](super::main_with).

use std::sync::OnceLock;

use roce_transport::congestion::{Algorithm, Congestion, CongestionError, NotificationPoint};

static ALGORITHMS: OnceLock<Vec<Algorithm>> = OnceLock::new();

/// Called once, before the command line is read.
pub(super) fn bring(algorithms: Vec<Algorithm>) {
    // Whoever comes second changes nothing: options may have been read already.
    let _ = ALGORITHMS.set(algorithms);
}

pub(super) fn algorithms() -> &'static [Algorithm] {
    ALGORITHMS.get().map_or(&[], Vec::as_slice)
}

/// Reads `--congestion`.
pub(super) fn parse_congestion(text: &str) -> Result<(Congestion, NotificationPoint), CongestionError> {
    Congestion::parse_among(text, algorithms())
}
