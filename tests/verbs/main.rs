//! The verbs as an application sees them: two contexts in one process, over real sockets and in memory.

use roce_testing as common;

mod causes;
mod cm;
mod concurrency;
mod congestion;
mod device_failure;
mod engines;
mod errors;
mod events;
mod explained;
mod faults;
mod lifetimes;
mod messages;
mod multicast;
mod operations;
mod postponed;
mod raw;
#[path = "../../examples/request_rate.rs"]
#[allow(dead_code, reason = "its main is not called here")]
mod request_rate;
mod retransmission;
#[path = "../../device/src/framed/tests/rig.rs"]
mod rig;
mod roce_v1;
mod rping;
mod shared_receives;
mod sharing;
mod telemetry;
mod wakers;
mod windows;
mod world;
