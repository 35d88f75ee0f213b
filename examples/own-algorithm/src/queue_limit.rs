//! Rules of switches: a queue has a limit, and data that does not fit is trimmed, in networks that trim, or
//! dropped.

use roce_sim::net::{Admission, FrameView, NamedRules, PortView, SwitchRules, Time};
use roce_transport::congestion::ParameterRange::Number;
use roce_transport::congestion::parameters;

parameters! {
    /// The parameters, which text can set: `queue-limit:packets=16`.
    pub struct QueueLimitParameters {
        /// Packets of 1,024 bytes that a queue holds at most.
        packets: u32 = 64, Number(1, 1_000_000), "packets", "";
    }
}

/// Returns the rules with their name.
pub(crate) fn rules() -> NamedRules {
    NamedRules::new("queue-limit", QueueLimitParameters::default(), |own, _switch| {
        Box::new(QueueLimit { bytes: u64::from(own.packets) * 1_086 })
    })
}

/// Each switch has one.
#[derive(Debug)]
struct QueueLimit {
    bytes: u64,
}

impl SwitchRules for QueueLimit {
    fn admits(&mut self, _now: Time, frame: &FrameView, port: &PortView) -> Option<Admission> {
        let is_full = port.own_queue_bytes + u64::from(frame.queue_bytes) > self.bytes;
        (is_full && frame.has_payload).then_some(Admission::Trim)
    }
}
