//! A packet to print, in each of the three output formats.

use super::flows::Mark;
use crate::decode::walk::Walk;
use roce_capture::CapturedPacket;

/// A packet to print.
pub(super) struct Shown<'a> {
    pub(super) packet: &'a CapturedPacket<'a>,
    pub(super) walk: &'a Walk<'a>,
    /// The capture time of the first packet of the file.
    pub(super) first_ns: Option<u64>,
    pub(super) mark: Option<Mark>,
}

impl Shown<'_> {
    /// Returns the time since the first packet in nanoseconds.
    pub(super) fn since_first(&self) -> Option<i128> {
        let (time, first) = self.packet.time_ns.zip(self.first_ns)?;
        Some(i128::from(time) - i128::from(first))
    }
}
