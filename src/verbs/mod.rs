//! What applications program against: objects and semantics after libibverbs.
//!
//! | libibverbs | here |
//! |---|---|
//! | `ibv_open_device` | [`Context::open`] |
//! | `ibv_alloc_pd` | [`Context::alloc_pd`] |
//! | `ibv_reg_mr` | [`ProtectionDomain::allocate`], [`ProtectionDomain::register`] |
//! | `ibv_alloc_mw`, `ibv_bind_mw` | [`ProtectionDomain::alloc_window`], [`MemoryWindow::bind`] |
//! | `ibv_create_comp_channel` | [`Context::create_channel`] |
//! | `ibv_create_cq`, `ibv_poll_cq`, `ibv_req_notify_cq` | [`Context::create_cq`], [`CompletionQueue::poll`], [`CompletionQueue::request_notification`] |
//! | `ibv_create_srq` | [`ProtectionDomain::create_srq`] |
//! | `ibv_create_qp`, `ibv_modify_qp`, `ibv_query_qp` | [`ProtectionDomain::create_qp`], [`QueuePair::modify`], [`QueuePair::query`] |
//! | `ibv_post_send`, `ibv_post_recv` | [`QueuePair::post_send`], [`QueuePair::post_recv`] |
//! | `ibv_create_ah` | [`Context::create_address_handle`] |
//! | `ibv_get_async_event` | [`Context::async_event`] |
//! | `rdma_bind_addr`, `rdma_listen` | [`Context::listen`] |
//! | `rdma_get_request`, `rdma_accept`, `rdma_reject` | [`CmListener::accept`], [`ConnectRequest::accept`], [`ConnectRequest::reject`] |
//! | `rdma_resolve_addr`, `rdma_connect` | [`Context::connect`], [`Context::start_connect`], [`Context::resolve`] |
//! | `rdma_get_cm_event`, `rdma_disconnect` | [`Connection::next_event`], [`Connection::disconnect`] |
//!
//! Every object keeps what it depends on alive, and is destroyed when its last handle is dropped.
//!
//! # Progress
//!
//! There is no hardware: somebody has to run the protocol. [`QueuePair::post_send`] transmits before it returns,
//! [`CompletionQueue::poll`] receives, and a background thread does both while the application does neither, so
//! that a peer's READ is answered although this process never calls anything.
//!
//! # Memory that others write to
//!
//! A peer may write into a [`MemoryRegion`] at any time, while this process reads it. Plain Rust references
//! to such bytes would be unsound: the compiler may assume that nobody changes what `&[u8]` points to.
//! So a region gives out no references. [`MemoryRegion::read`] and [`MemoryRegion::write`] copy, and
//! every access, by the application and by the engine, is an atomic access of the machine: a race gives
//! old bytes and new bytes side by side, never undefined behaviour. Whoever has seen a completion sees
//! all bytes that the completed operation wrote. See [`SharedMemory`].

mod asynchronous;
mod cm;
mod context;
mod cq;
mod error;
mod gids;
mod memory;
mod pd;
mod qp;
mod srq;

pub use asynchronous::AsyncCompletionQueue;
pub use cm::{
    CmListener, ConnectRequest, Connection, ConnectionError, ConnectionEvent, ConnectionParameters,
    DatagramRequest, DatagramService,
};
pub use context::{Context, ContextBuilder, DeviceAttributes};
pub use cq::{CompletionChannel, CompletionQueue, WaitError};
pub use error::VerbsError;
pub use memory::SharedMemory;
pub use pd::{MemoryRegion, MemoryWindow, ProtectionDomain};
pub use qp::{ConnectOptions, Endpoint, QueuePair, QueuePairOptions};
pub use srq::SharedReceiveQueue;

pub use crate::device::{Capabilities, Device, OpenError, OpenOptions};
pub use crate::driver::{GidEntry, PathOptions};
pub use roce_packet::mad::{CmReq, CmTimeout, CommId, PortSpace, RejReason, ServiceId, SidrStatus};
pub use roce_packet::{Encapsulation, Gid, ImmDt, Path, PathMtu, Psn, Qpn, RnrTimer};
pub use roce_transport::cm::{CmError, CmTiming};
pub use roce_transport::congestion::{self, Congestion, NotificationPoint, Observation, Rate};
pub use roce_transport::{
    Access, AsyncEvent, AttrMask, Cause, Counters, CqError, CqId, CreateQpError, DestroyError, EngineConfig,
    FlushPlacement, KeyError, LKey, Memory, ModifyQpError, Notify, OutOfBounds, Pacing, Payload, PdError,
    PostError, QpAttr, QpAttributes, QpCapabilities, QpState, QpType, RKey, Recovery, RecvWr, RegisterError,
    SelectiveRepeat, SendFlags, SendOp, SendWr, Sge, SrqAttributes, SrqError, SrqId, UdDestination, Wc,
    WcFlags, WcOpcode, WcStatus, WindowBinding, WindowType, WorkError,
};
