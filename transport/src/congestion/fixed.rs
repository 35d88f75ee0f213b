//! A rate that never changes.

use super::{CongestionControl, Rate};

/// Sends at one rate and ignores all notifications. For measurements, and as the smallest example of an algorithm.
#[derive(Clone, Copy, Debug)]
pub struct FixedRate(pub Rate);

impl CongestionControl for FixedRate {
    fn rate(&self) -> Rate {
        self.0
    }
}
