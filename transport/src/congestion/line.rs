//! The rate of the link as a limit of all packets of an engine.

use super::Rate;
use super::control::wire_len;
use super::pacer::Pacer;
use roce_packet::Path;

use crate::Instant;
use crate::config::EngineConfig;

/// Spaces the packets of all queue pairs at the rate of the link, like the port of a NIC. This applies in
/// addition to the spacing of each queue pair by its own algorithm.
#[derive(Debug)]
pub(crate) struct LineLimit {
    pacer: Pacer,
    rate: Rate,
    preamble: bool,
}

impl LineLimit {
    /// Creates the limit, or returns `None` if the settings do not limit the engine.
    pub(crate) fn new(config: &EngineConfig) -> Option<Self> {
        let pacing = &config.pacing;
        config.limit_to_line_rate.then(|| Self {
            pacer: Pacer::new(Instant::ZERO, pacing.burst),
            rate: config.line_rate,
            preamble: pacing.preamble,
        })
    }

    /// Tells whether earlier packets still occupy the link at `now`.
    pub(crate) fn is_busy(&mut self, now: Instant) -> bool {
        self.pacer.settle(now, self.rate);
        self.free_at().is_some()
    }

    /// Returns the time when the link becomes free, or `None` if it was free at the last call of
    /// [`Self::is_busy`].
    pub(crate) fn free_at(&self) -> Option<Instant> {
        self.pacer.ready_at(self.rate)
    }

    /// Records a packet that leaves. Call [`Self::is_busy`] first.
    pub(crate) fn sent(&mut self, path: &Path, len: usize) {
        self.pacer.charge(wire_len(path, len, self.preamble), self.rate);
    }
}
