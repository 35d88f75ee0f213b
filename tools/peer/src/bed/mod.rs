//! NICs under test, and the loops between them and the interpreter.

mod agent;
mod device;
mod engine;
mod perftest;
mod virtual_time;

pub use agent::{AGENT, Agent, AgentError};
pub use device::{Connect, Control, DeviceError, OwnEnd, Parameters, Stated, run_device};
pub use engine::EngineNic;
pub use perftest::{PerftestError, connect_perftest};
pub use virtual_time::{VirtualNic, run_virtual};
