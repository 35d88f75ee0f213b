//! The API for applications. Its objects and semantics follow libibverbs.
//!
//! In this example, one queue pair sends a message into a receive of another. The two devices are a pair in
//! memory. With [`Context::open`]`("udp:192.0.2.1")` the peer may be on another machine. The application
//! exchanges the endpoints by any means, or connects the queue pairs with [`Context::listen`] and
//! [`Context::connect`].
//!
//! ```
//! use roce::device::memory::MemoryDevice;
//! use roce::verbs::*;
//!
//! fn main() -> Result<(), Box<dyn std::error::Error>> {
//!     let (near, far) = MemoryDevice::pair("192.0.2.1".parse()?, "192.0.2.2".parse()?)?;
//!     let near = Context::builder().attach(near)?;
//!     let far = Context::builder().attach(far)?;
//!     let (near_pd, far_pd) = (near.alloc_pd()?, far.alloc_pd()?);
//!     let (near_cq, far_cq) = (near.create_cq(16, None)?, far.create_cq(16, None)?);
//!     let near_qp = near_pd.create_qp(&QueuePairOptions::new(QpType::Rc, &near_cq))?;
//!     let far_qp = far_pd.create_qp(&QueuePairOptions::new(QpType::Rc, &far_cq))?;
//!     near_qp.connect(&far_qp.endpoint()?, &ConnectOptions::default())?;
//!     far_qp.connect(&near_qp.endpoint()?, &ConnectOptions::default())?;
//!
//!     let buffer = far_pd.allocate(4096, Access::LOCAL_WRITE)?;
//!     far_qp.post_recv(&RecvWr { wr_id: 7, elements: &[buffer.element(0..4096)] })?;
//!     near_qp.post_send(&SendWr::inline(1, SendOp::Send, b"hello"))?;
//!
//!     let mut done = [Wc::default()];
//!     near_cq.wait(&mut done, None)?;
//!     done[0].result()?;
//!     far_cq.wait(&mut done, None)?;
//!     let received = done[0].result()?;
//!     assert_eq!((received.wr_id, received.byte_len), (7, 5));
//!     let mut text = [0; 5];
//!     buffer.read(0, &mut text)?;
//!     assert_eq!(&text, b"hello");
//!     Ok(())
//! }
//! ```
//!
//! | libibverbs, librdmacm | here | example |
//! |---|---|---|
//! | `ibv_open_device` | [`Context::open`], [`Context::builder`] | [`ContextBuilder`] |
//! | `ibv_query_device`, `ibv_query_port`, `ibv_query_gid_table` | [`Context::query`], [`Context::gid_table`] | [`DeviceAttributes`] |
//! | `ibv_alloc_pd` | [`Context::alloc_pd`] | above |
//! | `ibv_reg_mr` | [`ProtectionDomain::allocate`], [`ProtectionDomain::register`] | [`MemoryRegion`] |
//! | `ibv_alloc_mw`, `ibv_bind_mw` | [`ProtectionDomain::alloc_window`], [`MemoryWindow::bind`] | [`MemoryWindow`] |
//! | `ibv_create_comp_channel`, `ibv_get_cq_event` | [`Context::create_channel`], [`CompletionChannel::wait`] | [`CompletionChannel`] |
//! | `ibv_create_cq`, `ibv_poll_cq`, `ibv_req_notify_cq` | [`Context::create_cq`], [`CompletionQueue::poll`], [`CompletionQueue::request_notification`] | [`CompletionQueue`], [`AsyncCompletionQueue`] |
//! | the completion vector of `ibv_create_cq` | [`ContextBuilder::engines`], [`Context::create_cq_on`] | [`ContextBuilder::engines`] |
//! | `ibv_create_srq`, `ibv_post_srq_recv` | [`ProtectionDomain::create_srq`], [`SharedReceiveQueue::post_recv`] | [`SharedReceiveQueue`] |
//! | `ibv_create_qp`, `ibv_modify_qp`, `ibv_query_qp` | [`ProtectionDomain::create_qp`], [`QueuePair::modify`], [`QueuePair::query`] | [`QueuePairOptions`], [`QueuePair`] |
//! | `ibv_post_send`, `ibv_post_recv` | [`QueuePair::post_send`], [`QueuePair::post_recv`] | above, [`QueuePair`] |
//! | `ibv_create_ah`, `ibv_attach_mcast` |[`Context::create_address_handle`], [`AddressHandle`], [`QueuePair::attach_multicast`] | [`Context::create_address_handle`], [`QueuePair::attach_multicast`] | [`Context::create_address_handle`] |
//! | `ibv_get_async_event` | [`Context::async_event`] | [`SharedReceiveQueue`] |
//! | `rdma_bind_addr`, `rdma_listen` | [`Context::listen`] | [`CmListener`] |
//! | `rdma_get_request`, `rdma_accept`, `rdma_reject` | [`CmListener::accept`], [`ConnectRequest::accept`], [`ConnectRequest::reject`] | [`CmListener`] |
//! | `rdma_resolve_addr`, `rdma_connect` | [`Context::connect`], [`Context::start_connect`] | [`CmListener`], [`Connection`] |
//! | the calls for `RDMA_PS_UDP` | [`Context::resolve`], [`CmListener::accept_datagrams`] | [`DatagramService`] |
//! | `rdma_get_cm_event`, `rdma_disconnect` | [`Connection::next_event`], [`Connection::disconnect`] | [`Connection`] |
//!
//! Every object keeps the objects that it depends on alive, and is destroyed when its last handle is dropped.
//! [`raw`] offers the verbs on identifiers, for callers that manage the lifetimes of their objects
//! themselves.
//!
//! # Progress
//!
//! The protocol runs in threads of the process, not in hardware. [`CompletionQueue::poll`] receives and
//! sends. If the application makes no calls, a background thread does both, so a peer's READ is answered even
//! then.
//!
//! [`QueuePair::post_send`] usually transmits before it returns. If the application posts several requests
//! between two polls, requests may wait so that they leave together: until the next poll or request for a
//! notification, until 32 requests or 64 KiB wait, or until the background thread sends them.
//!
//! # Memory that others write to
//!
//! A peer may write into a [`MemoryRegion`] at any time, while this process reads it. Plain Rust references
//! to such bytes would be unsound, because the compiler may assume that the bytes behind a `&[u8]` do not
//! change. Therefore a region gives out no references. [`MemoryRegion::read`] and [`MemoryRegion::write`]
//! copy. Every access, by the application and by the engine, is an atomic access of the machine. A race
//! yields a mix of old and new bytes, never undefined behaviour. A thread that has seen a completion sees all
//! bytes that the completed operation wrote. See [`SharedMemory`].

mod address;
mod asynchronous;
mod builder;
mod channel;
mod cm;
mod context;
mod cq;
mod engines;
mod errno;
mod error;
#[doc(hidden)]
pub mod example;
mod foreign;
mod gids;
mod guarded;
mod memory;
mod on_demand;
mod pd;
mod qp;
mod qp_options;
mod racy;
pub mod raw;
mod remote;
mod srq;

pub use address::AddressHandle;
pub use asynchronous::AsyncCompletionQueue;
pub use builder::ContextBuilder;
pub use channel::{ChannelSleep, ChannelTurn, ChannelWait, CompletionChannel, WaitError};
pub use cm::{
    CmListener, ConnectRequest, Connection, ConnectionError, ConnectionEvent, ConnectionParameters,
    DatagramRequest, DatagramService,
};
pub use context::{Context, DeviceAttributes};
pub use cq::{CompletionQueue, PollInProgress, RawCq};
pub use error::VerbsError;
pub use foreign::ForeignMemory;
pub use memory::SharedMemory;
pub use on_demand::OnDemandMemory;
pub use pd::{MemoryRegion, MemoryWindow, ProtectionDomain};
pub use qp::QueuePair;
pub use qp_options::{ConnectOptions, Endpoint, QueuePairOptions};
pub use raw::{Raw, RawConnect, RawRequest};
pub use remote::RemoteMemory;
pub use srq::SharedReceiveQueue;

pub use crate::device::{Capabilities, Device, OpenError, OpenOptions};
pub use crate::driver::{GidEntry, PathOptions};
pub use roce_packet::mad::{
    CmReq, CmTimeout, CommId, PortSpace, RejReason, ServiceId, SidrStatus, TransportService,
};
pub use roce_packet::{Encapsulation, Gid, ImmDt, Path, PathMtu, Psn, Qpn, RnrTimer};
pub use roce_transport::cm::{
    CmConnectRequest, CmError, CmEvent, CmOffer, CmQpParameters, CmSidrRequest, CmState, CmTiming,
};
pub use roce_transport::congestion::{self, Congestion, NotificationPoint, Observation, Paths, Rate};
pub use roce_transport::{
    Access, AsyncEvent, AttrMask, Cause, Counters, CqError, CqId, CreateQpError, Denial, DestroyError, Ends,
    EngineConfig, FlushPlacement, Invalid, KeyError, LKey, LocalDenial, Memory, ModifyQpError, Notify,
    OutOfBounds, Pacing, Payload, PdError, PdId, PostError, ProcessSlot, QpAttr, QpAttributes,
    QpCapabilities, QpInit, QpOptions, QpState, QpType, RKey, Reason, Recovery, RecvWr, RegionAttributes,
    RegionChange, RegisterError, Retransmission, Rule, SelectiveRepeat, SendFlags, SendOp, SendWr, Sge,
    SrqAttributes, SrqError, SrqId, UdDestination, Wc, WcFlags, WcOpcode, WcStatus, WindowBinding,
    WindowType, WorkError, XrcdError, XrcdId,
};
