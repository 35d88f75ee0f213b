//! Work requests of an application (IBTA 11.4, names as in libibverbs).

use bitflags::bitflags;
use roce_packet::{ImmDt, Path, Qpn};

use crate::ids::{LKey, RKey};
use crate::memory::WindowBinding;
use crate::qp::QpType;

/// Maximum number of scatter/gather elements of one work request.
pub const MAX_SGE: usize = 32;
/// Maximum number of inline bytes.
pub const MAX_INLINE: usize = 512;
/// Maximum length of a message, 2^31 bytes (IBTA 9.7.7).
pub const MAX_MESSAGE: u32 = 1 << 31;

/// One range of local memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sge {
    /// First virtual address.
    pub addr: u64,
    /// Length in bytes.
    pub length: u32,
    /// The key of the region that contains the range.
    pub lkey: LKey,
}

bitflags! {
    /// Options of a send work request. The bit values are those of libibverbs.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct SendFlags: u32 {
        /// Do not start before all earlier READs and atomics of this queue have completed.
        const FENCE = 1;
        /// Produce a completion on success (errors always produce one).
        const SIGNALED = 2;
        /// Request a solicited event at the receiver.
        const SOLICITED = 4;
    }
}

/// The operation of a send work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendOp {
    /// Sends the message into the peer's next receive.
    Send,
    /// Sends the message into the peer's next receive, with four bytes of immediate data.
    SendWithImm(ImmDt),
    /// Sends the message into the peer's next receive, and makes the peer invalidate this key of its own.
    SendWithInvalidate(RKey),
    /// Writes the message into the peer's memory.
    Write {
        /// First remote virtual address.
        remote_addr: u64,
        /// The peer's key.
        rkey: RKey,
    },
    /// Writes the message into the peer's memory, then produces a completion with immediate data at the peer.
    WriteWithImm {
        /// First remote virtual address.
        remote_addr: u64,
        /// The peer's key.
        rkey: RKey,
        /// Immediate data for the completion.
        imm: ImmDt,
    },
    /// Reads the peer's memory into the local elements.
    Read {
        /// First remote virtual address.
        remote_addr: u64,
        /// The peer's key.
        rkey: RKey,
    },
    /// Replaces 8 bytes with `swap` if they are equal to `compare`. The old value is written to the local
    /// element, in host byte order.
    CompareSwap {
        /// Remote virtual address, aligned to 8.
        remote_addr: u64,
        /// The peer's key.
        rkey: RKey,
        /// Expected value.
        compare: u64,
        /// New value.
        swap: u64,
    },
    /// Adds to 8 bytes. The old value is written to the local element, in host byte order.
    FetchAdd {
        /// Remote virtual address, aligned to 8.
        remote_addr: u64,
        /// The peer's key.
        rkey: RKey,
        /// The value to add, wrapping.
        add: u64,
    },
    /// Writes 8 bytes at once, in order with earlier READs and atomics.
    AtomicWrite {
        /// Remote virtual address, aligned to 8.
        remote_addr: u64,
        /// The peer's key.
        rkey: RKey,
    },
    /// Makes earlier writes to remote memory visible or persistent before completing.
    Flush {
        /// First remote virtual address.
        remote_addr: u64,
        /// The peer's key.
        rkey: RKey,
        /// Length in bytes, ignored for the whole region.
        length: u32,
        /// The guarantee at completion.
        placement: FlushPlacement,
        /// Flush the whole region instead of the range.
        whole_region: bool,
    },
    /// Binds a type 2 window to this queue pair under the key `new_rkey`, or a type 1 window for all queue
    /// pairs of the protection domain.
    BindWindow {
        /// The window's current key.
        window: RKey,
        /// The new key. Only its variant (low 8 bits) may differ. For a type 1 window it is
        /// [`RKey::next_variant`].
        new_rkey: RKey,
        /// The memory and the rights of the window.
        binding: WindowBinding,
    },
    /// Invalidates a type 2 window bound to this queue pair.
    LocalInvalidate {
        /// The window's key.
        rkey: RKey,
    },
}

/// The way in which the requester executes an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Course {
    /// Sends as many packets as the message needs; an acknowledgement completes it.
    Segments,
    /// Requests pieces of the message; the responses complete it.
    Read,
    /// Sends one packet; its response completes it.
    Single,
    /// Sends no packet.
    Local,
}

impl SendOp {
    #[inline]
    pub(crate) const fn course(&self) -> Course {
        match self {
            Self::Send
            | Self::SendWithImm(_)
            | Self::SendWithInvalidate(_)
            | Self::Write { .. }
            | Self::WriteWithImm { .. } => Course::Segments,
            Self::Read { .. } => Course::Read,
            Self::CompareSwap { .. }
            | Self::FetchAdd { .. }
            | Self::AtomicWrite { .. }
            | Self::Flush { .. } => Course::Single,
            Self::BindWindow { .. } | Self::LocalInvalidate { .. } => Course::Local,
        }
    }

    /// Tells whether a response packet completes the request, instead of an acknowledgement.
    #[inline]
    pub(crate) const fn awaits_response(&self) -> bool {
        matches!(self.course(), Course::Read | Course::Single)
    }

    /// Tells whether queue pairs of this type support the operation (IBTA table 34).
    pub(crate) const fn is_supported_by(&self, qp_type: QpType) -> bool {
        match self {
            // An XRC target sends nothing.
            Self::Send | Self::SendWithImm(_) => !matches!(qp_type, QpType::XrcRecv),
            Self::Write { .. } | Self::WriteWithImm { .. } => {
                matches!(qp_type, QpType::Rc | QpType::Uc | QpType::XrcSend)
            }
            Self::SendWithInvalidate(_)
            | Self::Read { .. }
            | Self::CompareSwap { .. }
            | Self::FetchAdd { .. }
            | Self::BindWindow { .. }
            | Self::LocalInvalidate { .. } => matches!(qp_type, QpType::Rc | QpType::XrcSend),
            Self::AtomicWrite { .. } | Self::Flush { .. } => matches!(qp_type, QpType::Rc),
        }
    }
}

bitflags! {
    /// The guarantee of a FLUSH at its completion.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct FlushPlacement: u8 {
        /// Written data is visible to everyone.
        const GLOBAL_VISIBILITY = 1;
        /// Written data survives a power failure.
        const PERSISTENCE = 2;
    }
}

/// The source of the bytes of a send.
#[derive(Clone, Copy, Debug)]
pub enum Payload<'a> {
    /// Registered memory, read while the packets are built. It must not change until completion.
    Elements(&'a [Sge]),
    /// Bytes that are copied at once and need no registration. At most the queue pair's `max_inline`.
    Inline(&'a [u8]),
}

impl Payload<'_> {
    /// An empty payload.
    pub const NONE: Self = Payload::Elements(&[]);

    /// Returns the length in bytes of the message: the bytes sent, or the result of a READ or an atomic.
    #[allow(clippy::len_without_is_empty, reason = "whether there are none makes no difference")]
    #[must_use]
    pub fn len(&self) -> u64 {
        match self {
            Self::Elements(elements) => elements.iter().map(|element| u64::from(element.length)).sum(),
            Self::Inline(bytes) => bytes.len() as u64,
        }
    }
}

/// The receiver of a UD message: the address handle and the two numbers of `ibv_send_wr`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdDestination {
    /// The route, made from an address handle.
    pub path: Path,
    /// The receiving queue pair number, or [`Qpn::MULTICAST`].
    pub remote_qpn: Qpn,
    /// The receiver's Q_Key. If its top bit is set, the sender's own Q_Key is sent instead (IBTA 10.2.5).
    pub remote_qkey: u32,
}

/// A send work request.
#[derive(Clone, Copy, Debug)]
pub struct SendWr<'a> {
    /// Returned in the completion.
    pub wr_id: u64,
    /// The operation.
    pub op: SendOp,
    /// The options.
    pub flags: SendFlags,
    /// The source of the bytes, or the destination of the result.
    pub payload: Payload<'a>,
    /// For UD only: the receiver.
    pub destination: Option<UdDestination>,
    /// For XRC only: the 24-bit number of the shared receive queue at the peer. Its protection domain also
    /// determines the memory that a WRITE, READ or atomic may access.
    pub remote_srqn: u32,
}

impl<'a> SendWr<'a> {
    /// Creates a signaled request for a connected queue pair.
    #[must_use]
    pub fn new(wr_id: u64, op: SendOp, elements: &'a [Sge]) -> Self {
        let payload = Payload::Elements(elements);
        Self { wr_id, op, flags: SendFlags::SIGNALED, payload, destination: None, remote_srqn: 0 }
    }

    /// Creates a signaled request whose bytes are copied at once.
    #[must_use]
    pub fn inline(wr_id: u64, op: SendOp, bytes: &'a [u8]) -> Self {
        let payload = Payload::Inline(bytes);
        Self { wr_id, op, flags: SendFlags::SIGNALED, payload, destination: None, remote_srqn: 0 }
    }

    /// Sets the flags.
    #[must_use]
    pub fn with_flags(mut self, flags: SendFlags) -> Self {
        self.flags = flags;
        self
    }

    /// Sets the UD receiver.
    #[must_use]
    pub fn to(mut self, destination: impl Into<UdDestination>) -> Self {
        self.destination = Some(destination.into());
        self
    }
}

/// A receive work request.
#[derive(Clone, Copy, Debug)]
pub struct RecvWr<'a> {
    /// Returned in the completion.
    pub wr_id: u64,
    /// The memory for the message. A UD receive needs 40 bytes more than the message.
    pub elements: &'a [Sge],
}

/// An error of posting a work request. Nothing was queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PostError {
    /// The queue pair does not exist.
    #[error("there is no such queue pair")]
    UnknownQp,
    /// The shared receive queue does not exist.
    #[error("there is no such shared receive queue")]
    UnknownSrq,
    /// The state forbids posting (IBTA 10.3).
    #[error(
        "the queue pair is in state {}, which does not accept this work request; {}", .0.name(),
        .0.when_it_takes_work()
    )]
    WrongState(crate::qp::QpState),
    /// The queue is full.
    #[error("the queue is full with {capacity} work requests; poll completions first")]
    QueueFull {
        /// Capacity of the queue.
        capacity: usize,
    },
    /// The request has more scatter/gather elements than the queue pair supports.
    #[error("{have} scatter/gather elements, but the queue pair accepts {limit}")]
    TooManyElements {
        /// Number of elements given.
        have: usize,
        /// `max_send_sge` or `max_recv_sge`.
        limit: usize,
    },
    /// The request has more inline bytes than the queue pair supports.
    #[error("{have} inline bytes, but the queue pair accepts {limit}")]
    InlineTooLong {
        /// Number of bytes given.
        have: usize,
        /// `max_inline`.
        limit: usize,
    },
    /// The message is longer than 2^31 bytes, or than the path MTU on UD.
    #[error("a message of {have} bytes is too long; the maximum is {limit} bytes")]
    MessageTooLong {
        /// Length in bytes.
        have: u64,
        /// The limit.
        limit: u64,
    },
    /// The transport of this queue pair does not support the operation (IBTA table 34).
    #[error("this transport has no such operation")]
    UnsupportedOperation,
    /// A UD request lacks a destination, or a connected one has a destination.
    #[error("a UD work request needs a destination, and other work requests must not have one")]
    Destination,
    /// The operation moves exactly 8 bytes (atomics and ATOMIC WRITE).
    #[error("this operation needs exactly {need} bytes of local memory, not {have}")]
    WrongLength {
        /// Required number of bytes.
        need: u64,
        /// Number of bytes given.
        have: u64,
    },
    /// An element exceeds its memory region. The engine does not look up keys when a request is posted, so it
    /// never returns this error; a library that creates elements from regions does.
    #[error("an element exceeds its memory region")]
    OutsideRegion,
    /// READs and atomics need memory for their result.
    #[error("this operation cannot be inline")]
    CannotBeInline,
    /// A queue pair with a shared receive queue has no receive queue of its own.
    #[error("the queue pair takes its receives from a shared receive queue; post them there")]
    UsesSrq,
    /// READs and atomics need `max_rd_atomic` of at least 1.
    #[error("max_rd_atomic of the queue pair is 0, so the queue pair cannot start a READ or atomic")]
    NoReadAtomicResources,
}
