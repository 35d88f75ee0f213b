//! NICs under test, and the loops between them and the interpreter.

mod agent;
mod device;
mod ends;
mod engine;
mod perftest;
mod rdma_cm;
mod virtual_time;

pub use agent::{AGENT, Agent, AgentError};
pub use device::{Connect, Control, DeviceError, Stated, run_device};
pub use ends::{OwnEnd, Parameters};
pub use engine::EngineNic;
pub use perftest::{PerftestError, connect_perftest};
pub use rdma_cm::RDMA_CM_TARGET;
pub use virtual_time::{VirtualNic, run_virtual};
