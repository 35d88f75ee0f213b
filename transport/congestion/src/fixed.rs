//! A constant rate.

use crate::{CongestionControl, Rate};

/// Sends at a constant rate and ignores all notifications. For measurements, and as a minimal algorithm.
#[derive(Clone, Copy, Debug)]
pub struct FixedRate(pub Rate);

impl CongestionControl for FixedRate {
    fn rate(&self) -> Rate {
        self.0
    }
}
