//! Work requests: what an application asks of a queue pair (IBTA 11.4, names after libibverbs).

use bitflags::bitflags;
use roce_packet::{ImmDt, Path, Qpn};

use crate::ids::{LKey, RKey};
use crate::memory::WindowBinding;
use crate::qp::QpType;

/// The most scatter/gather elements one work request can have.
pub const MAX_SGE: usize = 32;
/// The most bytes that can be posted inline.
pub const MAX_INLINE: usize = 512;
/// The longest message, 2^31 bytes (IBTA 9.7.7).
pub const MAX_MESSAGE: u32 = 1 << 31;

/// One piece of local memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sge {
    /// First virtual address.
    pub addr: u64,
    /// Bytes.
    pub length: u32,
    /// The key of the region it lies in.
    pub lkey: LKey,
}

bitflags! {
    /// How a send work request is to be treated. Bit values are those of libibverbs.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct SendFlags: u32 {
        /// Do not start before all earlier READs and atomics of this queue have completed.
        const FENCE = 1;
        /// Produce a completion on success (errors always produce one).
        const SIGNALED = 2;
        /// Ask the receiver for a solicited event.
        const SOLICITED = 4;
    }
}

/// What a send work request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendOp {
    /// Into the peer's next receive.
    Send,
    /// The same with four bytes of immediate data.
    SendWithImm(ImmDt),
    /// The same, and the peer invalidates this key of its own.
    SendWithInvalidate(RKey),
    /// Into the peer's memory.
    Write {
        /// First remote virtual address.
        remote_addr: u64,
        /// The peer's key.
        rkey: RKey,
    },
    /// Into the peer's memory, then a completion at the peer that carries the immediate data.
    WriteWithImm {
        /// First remote virtual address.
        remote_addr: u64,
        /// The peer's key.
        rkey: RKey,
        /// Delivered with the completion.
        imm: ImmDt,
    },
    /// From the peer's memory into the local elements.
    Read {
        /// First remote virtual address.
        remote_addr: u64,
        /// The peer's key.
        rkey: RKey,
    },
    /// 8 bytes: replace by `swap` if equal to `compare`. The old value lands in the local element, in
    /// host byte order.
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
    /// 8 bytes: add. The old value lands in the local element, in host byte order.
    FetchAdd {
        /// Remote virtual address, aligned to 8.
        remote_addr: u64,
        /// The peer's key.
        rkey: RKey,
        /// What to add, wrapping.
        add: u64,
    },
    /// 8 bytes written at once, in order with earlier READs and atomics.
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
        /// Bytes, ignored for the whole region.
        length: u32,
        /// What is promised at completion.
        placement: FlushPlacement,
        /// Flush the whole region instead of the range.
        whole_region: bool,
    },
    /// Binds a type 2 window to this queue pair under the key `new_rkey`; or a type 1 window, for all queue pairs of the protection
    /// domain.
    BindWindow {
        /// The window's present key.
        window: RKey,
        /// The key from now on; only the variant (low 8 bits) may differ. For a type 1 window it is [`RKey::next_variant`].
        new_rkey: RKey,
        /// What it covers.
        binding: WindowBinding,
    },
    /// Invalidates a type 2 window bound to this queue pair.
    LocalInvalidate {
        /// The window's key.
        rkey: RKey,
    },
}

/// How the requester carries an operation out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Course {
    /// In as many packets as the message needs; an acknowledgement completes it.
    Segments,
    /// By requests for pieces of the message; the responses complete it.
    Read,
    /// By one packet; its response completes it.
    Single,
    /// Without a packet.
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

    /// Whether a response packet completes the request, and not an acknowledgement.
    #[inline]
    pub(crate) const fn awaits_response(&self) -> bool {
        matches!(self.course(), Course::Read | Course::Single)
    }

    /// Whether queue pairs of this type have the operation (IBTA table 34).
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
    /// What a FLUSH promises at its completion.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct FlushPlacement: u8 {
        /// Written data is visible to everyone.
        const GLOBAL_VISIBILITY = 1;
        /// Written data survives a loss of power.
        const PERSISTENCE = 2;
    }
}

/// Where the bytes of a send come from.
#[derive(Clone, Copy, Debug)]
pub enum Payload<'a> {
    /// Registered memory, read while the packets are built. It must stay unchanged until completion.
    Elements(&'a [Sge]),
    /// Copied now; needs no registration. At most the queue pair's `max_inline`.
    Inline(&'a [u8]),
}

impl Payload<'_> {
    /// No bytes.
    pub const NONE: Self = Payload::Elements(&[]);

    /// The length of the message in bytes: what an operation sends, or what a READ or an atomic returns.
    #[allow(clippy::len_without_is_empty, reason = "whether there are none makes no difference")]
    #[must_use]
    pub fn len(&self) -> u64 {
        match self {
            Self::Elements(elements) => elements.iter().map(|element| u64::from(element.length)).sum(),
            Self::Inline(bytes) => bytes.len() as u64,
        }
    }
}

/// The receiver of a UD message: what an address handle and the two numbers of `ibv_send_wr` say.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UdDestination {
    /// The route, made from an address handle.
    pub path: Path,
    /// The receiving queue pair, or [`Qpn::MULTICAST`].
    pub remote_qpn: Qpn,
    /// Its Q_Key. With the top bit set the sender's own Q_Key goes out instead (IBTA 10.2.5).
    pub remote_qkey: u32,
}

/// A send work request.
#[derive(Clone, Copy, Debug)]
pub struct SendWr<'a> {
    /// Returned in the completion.
    pub wr_id: u64,
    /// What to do.
    pub op: SendOp,
    /// How.
    pub flags: SendFlags,
    /// With which bytes.
    pub payload: Payload<'a>,
    /// For UD only: the receiver.
    pub destination: Option<UdDestination>,
    /// For XRC only: the number of the shared receive queue at the peer, whose protection domain also decides what a WRITE, READ or
    /// atomic may access; 24 bits.
    pub remote_srqn: u32,
}

impl<'a> SendWr<'a> {
    /// A signaled request on a connected queue pair.
    #[must_use]
    pub fn new(wr_id: u64, op: SendOp, elements: &'a [Sge]) -> Self {
        let payload = Payload::Elements(elements);
        Self { wr_id, op, flags: SendFlags::SIGNALED, payload, destination: None, remote_srqn: 0 }
    }

    /// A signaled request whose bytes are copied at once.
    #[must_use]
    pub fn inline(wr_id: u64, op: SendOp, bytes: &'a [u8]) -> Self {
        let payload = Payload::Inline(bytes);
        Self { wr_id, op, flags: SendFlags::SIGNALED, payload, destination: None, remote_srqn: 0 }
    }

    /// With other flags.
    #[must_use]
    pub fn with_flags(mut self, flags: SendFlags) -> Self {
        self.flags = flags;
        self
    }

    /// To a UD receiver.
    #[must_use]
    pub fn to(mut self, destination: impl Into<UdDestination>) -> Self {
        self.destination = Some(destination.into());
        self
    }
}

impl SendWr<'_> {
    /// To a shared receive queue of an XRC target.
    #[must_use]
    pub fn to_srq(mut self, number: u32) -> Self {
        self.remote_srqn = number;
        self
    }
}

/// A receive work request.
#[derive(Clone, Copy, Debug)]
pub struct RecvWr<'a> {
    /// Returned in the completion.
    pub wr_id: u64,
    /// Where the message goes. A UD receive needs 40 bytes more than the message.
    pub elements: &'a [Sge],
}

/// Why a work request was not taken. Nothing of it was queued.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PostError {
    /// No such queue pair.
    #[error("there is no such queue pair")]
    UnknownQp,
    /// No such shared receive queue.
    #[error("there is no such shared receive queue")]
    UnknownSrq,
    /// The state forbids posting (IBTA 10.3).
    #[error(
        "the queue pair is in state {}, which takes no such work request; {}", .0.name(),
        .0.when_it_takes_work()
    )]
    WrongState(crate::qp::QpState),
    /// The queue holds as many requests as it can.
    #[error("the queue is full with {capacity} work requests; poll completions first")]
    QueueFull {
        /// Its capacity.
        capacity: usize,
    },
    /// More scatter/gather elements than the queue pair was made for.
    #[error("{have} scatter/gather elements where the queue pair takes {limit}")]
    TooManyElements {
        /// Elements given.
        have: usize,
        /// `max_send_sge` or `max_recv_sge`.
        limit: usize,
    },
    /// More inline bytes than the queue pair was made for.
    #[error("{have} inline bytes where the queue pair takes {limit}")]
    InlineTooLong {
        /// Bytes given.
        have: usize,
        /// `max_inline`.
        limit: usize,
    },
    /// Longer than 2^31 bytes, or than the path MTU on UD.
    #[error("a message of {have} bytes is longer than the {limit} bytes that are possible here")]
    MessageTooLong {
        /// Bytes.
        have: u64,
        /// The limit.
        limit: u64,
    },
    /// The transport of this queue pair has no such operation (IBTA table 34).
    #[error("this transport has no such operation")]
    UnsupportedOperation,
    /// A UD request without a destination, or a connected one with it.
    #[error("a UD work request needs a destination and any other must have none")]
    Destination,
    /// Atomics and ATOMIC WRITE move exactly 8 bytes.
    #[error("this operation needs exactly {need} bytes of local memory, not {have}")]
    WrongLength {
        /// Bytes needed.
        need: u64,
        /// Bytes given.
        have: u64,
    },
    /// READs and atomic results need memory to land in.
    #[error("this operation cannot be inline")]
    CannotBeInline,
    /// A queue pair with a shared receive queue has no receive queue of its own.
    #[error("the queue pair takes its receives from a shared receive queue; post them there")]
    UsesSrq,
    /// READs and atomics need `max_rd_atomic` of at least 1.
    #[error("max_rd_atomic of the queue pair is 0, so it can start no READ or atomic")]
    NoReadAtomicResources,
}
