//! What the interpreter asks of the NIC under test, and the answers.

use std::net::IpAddr;

use roce_packet::{PathMtu, Qpn};
use roce_transport::{Access, QpState, QpType};

/// Settings of the connection between the script and the NIC under test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// The transport.
    pub qp_type: QpType,
    /// The path MTU.
    pub mtu: PathMtu,
    /// The first PSN of the script's requests.
    pub psn: u32,
    /// The first PSN of the NIC's requests.
    pub nic_psn: u32,
    /// The rights of the NIC's queue pair.
    pub rights: Access,
    /// The state to which the NIC's queue pair goes.
    pub state: QpState,
    /// Code of the local ACK timeout of the NIC.
    pub timeout: u8,
    /// Retries of the NIC after timeouts and sequence NAKs.
    pub retry: u8,
    /// Retries of the NIC after RNR NAKs.
    pub rnr_retry: u8,
    /// Code of the shortest time in the NIC's RNR NAKs.
    pub rnr_timer: u8,
    /// READs and atomics outstanding in each direction.
    pub reads: u8,
    /// The Q_Key of a UD queue pair.
    pub qkey: u32,
    /// The congestion control of the NIC's queue pair.
    pub congestion: Option<String>,
}

/// A part of a memory of the NIC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryArea {
    /// The name.
    pub memory: String,
    /// The first byte.
    pub at: usize,
    /// The length in bytes.
    pub len: usize,
}

/// The operation of a posted request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields are those of the work requests of `roce_transport`")]
pub enum Operation {
    /// SEND.
    Send { imm: Option<u32>, invalidate: Option<u32> },
    /// RDMA WRITE.
    Write { va: u64, rkey: u32, imm: Option<u32> },
    /// RDMA READ.
    Read { va: u64, rkey: u32 },
    /// Fetch and add.
    FetchAdd { va: u64, rkey: u32, add: u64 },
    /// Compare and swap.
    CompareSwap { va: u64, rkey: u32, compare: u64, swap: u64 },
    /// Atomic write.
    AtomicWrite { va: u64, rkey: u32 },
    /// Flush of a range for global visibility.
    Flush { va: u64, rkey: u32, len: u32 },
    /// Invalidate a window of the NIC.
    LocalInvalidate { rkey: u32 },
}

/// A request for the send queue of the NIC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkRequest {
    /// The identifier.
    pub id: u64,
    /// The operation.
    pub operation: Operation,
    /// The memory of the NIC.
    pub area: Option<MemoryArea>,
    /// Whether it waits for earlier READs and atomics.
    pub has_fence: bool,
    /// Whether it asks for a solicited event.
    pub is_solicited: bool,
}

/// A request of the interpreter to the NIC under test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// Connect a queue pair to the script.
    Connect(Settings),
    /// Register memory.
    Memory {
        /// The name.
        name: String,
        /// The length in bytes.
        len: usize,
        /// The rights of peers.
        rights: Access,
        /// Whether it belongs to another protection domain than the queue pair.
        is_foreign: bool,
    },
    /// Bind a window.
    Window {
        /// The name.
        name: String,
        /// The memory below it.
        area: MemoryArea,
        /// The rights of peers.
        rights: Access,
    },
    /// Write into memory.
    Write(MemoryArea, Vec<u8>),
    /// Read memory.
    Read(MemoryArea),
    /// Deregister memory.
    Revoke(String),
    /// Post a receive.
    Receive(u64, Option<MemoryArea>),
    /// Post a request.
    Post(WorkRequest),
    /// Move the queue pair to a state.
    Modify(QpState),
    /// Return the state of the queue pair.
    State,
    /// Return a counter.
    Counter(String),
    /// Return and remove all completions.
    Completions,
    /// Return and remove all asynchronous events, by name.
    Events,
}

/// The queue pair of the NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Connected {
    /// Its number.
    pub qpn: Qpn,
    /// The queue pair number of the script.
    pub own_qpn: Qpn,
    /// The first PSN that it expects, which may differ from the `psn` in the settings.
    pub own_psn: u32,
    /// The first PSN of its requests, which may differ from the one in the settings.
    pub nic_psn: u32,
    /// Its address.
    pub address: IpAddr,
    /// The address of the script.
    pub own_address: IpAddr,
    /// The UDP source port of the script's packets.
    pub source_port: u16,
}

/// A completion at the NIC.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The identifier of the request.
    pub id: u64,
    /// The status, as libibverbs names it without its prefix.
    pub status: &'static str,
    /// Bytes received or read.
    pub bytes: u32,
    /// The immediate data.
    pub imm: Option<u32>,
    /// The key that the script's SEND invalidated.
    pub invalidated: Option<u32>,
}

/// The answer of the NIC under test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It is done.
    Done,
    /// The queue pair is connected.
    Connected(Connected),
    /// Memory is registered, or a window is bound.
    Memory {
        /// The first virtual address.
        va: u64,
        /// The key.
        rkey: u32,
    },
    /// The content of memory.
    Bytes(Vec<u8>),
    /// The value of a counter.
    Count(u64),
    /// The state of the queue pair.
    State(QpState),
    /// The completions.
    Completions(Vec<Completion>),
    /// The events.
    Events(Vec<&'static str>),
}

/// The reason why a request was not carried out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// This NIC or this connection does not offer the request, so the script does not apply.
    Unable(String),
    /// The request failed.
    Failed(String),
}
