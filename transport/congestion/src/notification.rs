//! The settings of the notification point: the receiver of marked packets, which notifies their sender
//! (Annex A17).

use core::fmt;

use roce_packet::{DEFAULT_CNP_DSCP, DEFAULT_CNP_PCP};

use crate::parameters::ParameterRange::{Number, Words};
use crate::parameters::{Value, parameters};

/// The scope of the minimum interval between notifications.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CnpScope {
    /// One interval for each receiving queue pair.
    QueuePair,
    /// One interval for each pair of addresses.
    AddressPair,
    /// One interval for everything that this engine receives.
    Port,
}

impl Value for CnpScope {
    fn from_raw(raw: u32) -> Self {
        match raw {
            0 => Self::QueuePair,
            1 => Self::AddressPair,
            _ => Self::Port,
        }
    }
    fn raw(self) -> u32 {
        self as u32
    }
}

parameters! {
    /// Settings for notifications of marks, named as in the hardware (sysfs `roce_np`, kernel debugfs
    /// `cc_params`), and three settings of our own. They apply to RC, UC and UD, whether or not this side
    /// controls its own rate.
    pub struct NotificationPoint {
        /// Whether marks are answered with notifications.
        cnp_enable: bool = true, Number(0, 1), "", "";
        /// Minimum time between two notifications of one scope.
        min_time_between_cnps: u32 = 4, Number(0, 1_000_000), "us", "np_min_time_between_cnps";
        /// DSCP of notifications.
        cnp_dscp: u32 = DEFAULT_CNP_DSCP as u32, Number(0, 63), "", "np_cnp_dscp";
        /// Priority of notifications on a VLAN.
        cnp_802p_prio: u32 = DEFAULT_CNP_PCP as u32, Number(0, 7), "", "np_cnp_prio";
        /// Time from a marked packet to its notification.
        cnp_delay: u32 = 0, Number(0, 1_000_000_000), "ns", "";
        /// Scope of the minimum time between notifications.
        cnp_scope: CnpScope = CnpScope::QueuePair, Words(&["qp", "address-pair", "port"]), "", "";
    }
}

impl NotificationPoint {
    /// Returns the settings of the receiver in a preset of [`DcqcnParameters`](crate::DcqcnParameters).
    #[must_use]
    pub fn preset(name: &str) -> Option<Self> {
        let min_time_between_cnps = match name {
            "paper" | "tester" => 50,
            "cx-default" => 4,
            "hpcc" | "ns3" => 0,
            _ => return None,
        };
        Some(Self { min_time_between_cnps, ..Self::default() })
    }

    /// Returns the minimum time between two notifications of one scope, in nanoseconds.
    #[must_use]
    pub fn interval(&self) -> u64 {
        u64::from(self.min_time_between_cnps) * 1000
    }
}

impl fmt::Display for CnpScope {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::QueuePair => "qp",
            Self::AddressPair => "address-pair",
            Self::Port => "port",
        })
    }
}
