//! Limits of receiving hosts.

use roce_transport::congestion::Pulls;

/// A receive rate that is lower than that of the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReceiveLimit {
    /// The number of the host. `None` stands for all hosts.
    pub host: Option<u32>,
    /// Bits per second.
    pub rate_bps: u64,
    /// The number of waiting bytes at which the host pauses the switch.
    pub xoff_bytes: u64,
}

/// How hosts request READs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ReadSettings {
    /// The maximum number of response packets that one request asks for. 0, the default, requests a READ as a
    /// whole, as RNICs do, or 128 packets at a time if there is a rate or a policy.
    pub packets: u32,
    /// The rate at which a host requests responses, including their headers, as a factor of the rate of its
    /// link: above 0, at most 10. `None`, the default, does not limit it.
    pub rate: Option<f64>,
    /// A policy of a program that decides when a host requests responses, instead of the rate.
    pub policy: Option<Pulls>,
    /// The DSCP of READ requests. `None`, the default, is that of data.
    pub dscp: Option<u8>,
}

impl ReadSettings {
    /// Returns whether rate and DSCP are in their ranges.
    pub(super) fn is_valid(&self) -> bool {
        let is_code_point = self.dscp.is_none_or(|dscp| dscp <= 63);
        is_code_point && self.rate.is_none_or(|rate| rate > 0.0 && rate <= 10.0)
    }
}
