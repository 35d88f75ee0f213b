//! The packet processing of a RoCE NIC, without a clock, a socket, a thread or a random source of its own.
//!
//! An [`Engine`] holds the queue pairs, memory keys and completion queues of one device. Its inputs are
//! datagrams and the time; its outputs are datagrams, completions and events. The same engine runs on a
//! network, in a simulator, under a fuzzer and in a debugger, and behaves identically in all four.
//!
//! The engine makes no decision about how bytes are transported: addresses and ports come in a
//! [`roce_packet::Path`], buffers come in a [`TxSlot`], and memory is accessed through [`Memory`].
//!
//! ```
//! use std::sync::Arc;
//! use roce_transport::{Access, Engine, EngineConfig, WordMemory};
//!
//! let mut engine = Engine::new(EngineConfig::from_number(1));
//! let pd = engine.allocate_pd()?;
//! let memory = Arc::new(WordMemory::new(4096));
//! let region = engine.register(pd, 0x1000, memory.clone(), Access::LOCAL_WRITE | Access::REMOTE_READ)?;
//! assert_eq!(region.len, 4096);
//! engine.deregister(region.lkey)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! No call panics because of data from a peer or a request of an application. The engine answers invalid
//! packets with a NAK or drops and counts them ([`Counters`]); applications get typed errors.

#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;
#[cfg(test)]
extern crate std;

mod causes;
pub mod cm;
mod completion;
mod config;
pub mod congestion;
mod counters;
mod engine;
mod event;
mod ids;
mod inbound;
mod integrity;
mod io;
mod memory;
mod number_map;
mod qp;
mod rc;
mod reason;
mod recovery;
mod rq;
mod segment;
mod shared;
mod slot;
mod sq;
mod status;
mod timer;
mod uc;
mod ud;
mod verdict;
mod wr;
mod xrc;

pub use causes::with_causes;
pub use completion::{Cause, Ends, Notify, Occupancy, Wc, WcFlags, WcOpcode, WcStatus, WorkError};
pub use config::{EngineConfig, Pacing, Retransmission};
pub use counters::Counters;
pub use engine::{CqError, DestroyError, Engine, PdError, SrqAttributes, SrqError, XrcdError};
pub use event::{AsyncEvent, Event};
pub use ids::{CqId, LKey, PdId, RKey, SrqId, XrcdId};
pub use io::{
    Allowed, Batch, Body, Identification, MOST_SEGMENTS, Pending, Received, TrafficClasses, Transmit, TxSlot,
};
pub use memory::{
    Access, ChangeError, KeyError, Memory, OutOfBounds, RegionAttributes, RegionChange, RegisterError,
    WindowBinding, WindowType, WordMemory,
};
pub use qp::{
    AttrMask, CreateQpError, DEFAULT_P_KEY, MAX_QP_WR, MAX_RD_ATOMIC, ModifyQpError, QpAttr, QpAttributes,
    QpCapabilities, QpInit, QpOptions, QpState, QpType, Transition, transition,
};
pub use rc::RcState;
pub use reason::{Denial, Invalid, LocalDenial, Reason, Rule};
pub use recovery::{Recovery, RecoveryError, SelectiveRepeat};
pub use roce_congestion::{Instant, units};
pub use slot::ProcessSlot;
pub use ud::GRH_AREA;
pub use verdict::{DropReason, Verdict};
pub use wr::{
    FlushPlacement, MAX_INLINE, MAX_MESSAGE, MAX_SGE, Payload, PostError, RecvWr, SendFlags, SendOp, SendWr,
    Sge, UdDestination,
};
