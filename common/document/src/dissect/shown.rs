//! A packet of a capture, with what earlier packets say about it.

use roce_analysis::walk::Walk;
use roce_capture::CapturedPacket;

use super::flows::Mark;

/// A packet of a capture, with what earlier packets say about it. It is serialized as an object of
/// `roce/dissect/1`.
#[derive(Clone, Copy, Debug)]
pub struct Shown<'a> {
    /// The packet.
    pub packet: &'a CapturedPacket<'a>,
    /// Its headers.
    pub walk: &'a Walk<'a>,
    /// Capture time of the first packet of the file, in nanoseconds.
    pub first_ns: Option<u64>,
    /// What [`Flows`](super::Flows) concluded from its PSN.
    pub mark: Option<Mark>,
}

impl Shown<'_> {
    /// Returns the time since the first packet in nanoseconds.
    #[must_use]
    pub fn since_first(&self) -> Option<i128> {
        let (time, first) = self.packet.time_ns.zip(self.first_ns)?;
        Some(i128::from(time) - i128::from(first))
    }
}
