//! Queue pair states, and the table of transitions between them (IBTA 10.3, as in `ibv_modify_qp`).

use bitflags::bitflags;

/// The transport of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum QpType {
    /// Reliable connection.
    Rc,
    /// Unreliable connection.
    Uc,
    /// Unreliable datagram.
    Ud,
    /// The initiator of an XRC connection: sends each message to a shared receive queue of the peer (A14).
    XrcSend,
    /// The target of an XRC connection: receives into the shared receive queues of its XRC domain.
    XrcRecv,
}

impl QpType {
    /// Tells whether packets are acknowledged and retransmitted.
    #[must_use]
    pub const fn is_reliable(self) -> bool {
        matches!(self, Self::Rc | Self::XrcSend | Self::XrcRecv)
    }

    /// Tells whether the queue pair is an end of an XRC connection.
    #[must_use]
    pub const fn is_xrc(self) -> bool {
        matches!(self, Self::XrcSend | Self::XrcRecv)
    }
}

/// The state of a queue pair. The numbers are those of libibverbs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum QpState {
    /// New or reset: has no work requests and default attributes.
    #[default]
    Reset = 0,
    /// Accepts receives, and neither sends nor receives packets.
    Init = 1,
    /// Ready to receive.
    Rtr = 2,
    /// Ready to send.
    Rts = 3,
    /// Send queue drained: finishes started requests and holds the others.
    Sqd = 4,
    /// Send queue error: a UC or UD send failed; receives continue.
    Sqe = 5,
    /// Error: all work requests are flushed.
    Err = 6,
}

impl QpState {
    /// All states in the order of their numbers.
    pub const ALL: [Self; 7] =
        [Self::Reset, Self::Init, Self::Rtr, Self::Rts, Self::Sqd, Self::Sqe, Self::Err];

    /// Tells whether send requests may be posted (in ERR and SQE they are flushed).
    #[must_use]
    pub const fn accepts_send(self) -> bool {
        matches!(self, Self::Rts | Self::Sqd | Self::Sqe | Self::Err)
    }

    /// Tells whether receives may be posted (in ERR they are flushed).
    #[must_use]
    pub const fn accepts_recv(self) -> bool {
        !matches!(self, Self::Reset)
    }

    /// Tells whether incoming requests are executed.
    #[must_use]
    pub const fn responds(self) -> bool {
        matches!(self, Self::Rtr | Self::Rts | Self::Sqd | Self::Sqe)
    }

    /// Tells whether incoming responses are handled.
    #[must_use]
    pub const fn requests(self) -> bool {
        matches!(self, Self::Rts | Self::Sqd)
    }

    /// Tells whether posted send requests are started.
    #[must_use]
    pub const fn starts_requests(self) -> bool {
        matches!(self, Self::Rts)
    }

    /// Returns advice on how to make the queue pair accept work requests, for the end of an error message.
    pub(crate) const fn when_it_takes_work(self) -> &'static str {
        match self {
            Self::Reset => {
                "a queue pair accepts receives from INIT on, and sends in RTS: connect it first, or move it \
                 to INIT and post receives"
            }
            Self::Init | Self::Rtr => "a queue pair accepts sends in RTS: connect it first",
            Self::Rts | Self::Sqd | Self::Sqe | Self::Err => "it is neither sent nor received",
        }
    }

    /// Returns the name in capitals, as in the specification.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Reset => "RESET",
            Self::Init => "INIT",
            Self::Rtr => "RTR",
            Self::Rts => "RTS",
            Self::Sqd => "SQD",
            Self::Sqe => "SQE",
            Self::Err => "ERR",
        }
    }
}

bitflags! {
    /// The attributes in a modify call. The bit values are those of libibverbs.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct AttrMask: u32 {
        /// The new state.
        const STATE = 1;
        /// The state that the caller believes the queue pair is in.
        const CUR_STATE = 1 << 1;
        /// Whether draining raises an event.
        const EN_SQD_ASYNC_NOTIFY = 1 << 2;
        /// The operations that peers may perform.
        const ACCESS_FLAGS = 1 << 3;
        /// Partition key index.
        const PKEY_INDEX = 1 << 4;
        /// Port number.
        const PORT = 1 << 5;
        /// Q_Key.
        const QKEY = 1 << 6;
        /// The route to the peer.
        const AV = 1 << 7;
        /// Path MTU.
        const PATH_MTU = 1 << 8;
        /// Local ACK timeout.
        const TIMEOUT = 1 << 9;
        /// Retries after timeouts and sequence errors.
        const RETRY_CNT = 1 << 10;
        /// Retries after RNR NAKs.
        const RNR_RETRY = 1 << 11;
        /// First expected PSN.
        const RQ_PSN = 1 << 12;
        /// Outstanding READs and atomics as requester (ORD).
        const MAX_QP_RD_ATOMIC = 1 << 13;
        /// The delay that RNR NAKs request.
        const MIN_RNR_TIMER = 1 << 15;
        /// First PSN to be sent.
        const SQ_PSN = 1 << 16;
        /// READs and atomics kept as responder (IRD).
        const MAX_DEST_RD_ATOMIC = 1 << 17;
        /// The queue pair number of the peer.
        const DEST_QPN = 1 << 20;
    }
}

/// The attributes of one transition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transition {
    /// Attributes that must be given.
    pub required: AttrMask,
    /// Attributes that may be given.
    pub optional: AttrMask,
}

const fn union(masks: &[AttrMask]) -> AttrMask {
    let mut sum = AttrMask::empty();
    let mut at = 0;
    while at < masks.len() {
        sum = sum.union(masks[at]);
        at += 1;
    }
    sum
}

/// Returns the attributes for the transition between two states, or `None` if it is not possible.
///
/// `STATE` is required unless the state does not change.
#[must_use]
pub fn transition(qp_type: QpType, from: QpState, to: QpState) -> Option<Transition> {
    use AttrMask as A;
    use QpState::{Err, Init, Reset, Rtr, Rts, Sqd, Sqe};
    let connected = !matches!(qp_type, QpType::Ud);
    let rc = qp_type.is_reliable();
    // The directions of the connection: an XRC connection has only one. Attributes of the other direction are
    // accepted and ignored, because some programs pass all attributes to both ends (perftest).
    let (sends, receives) = (qp_type != QpType::XrcRecv, qp_type != QpType::XrcSend);
    let only = |has: bool, mask: A| if has { mask } else { A::empty() };
    // Attributes that may change while the queue pair runs: the Q_Key (UD) or the access flags (RC, UC).
    let running = match qp_type {
        QpType::Ud => union(&[A::CUR_STATE, A::QKEY]),
        QpType::Uc => union(&[A::CUR_STATE, A::ACCESS_FLAGS]),
        QpType::Rc | QpType::XrcSend | QpType::XrcRecv => {
            union(&[A::CUR_STATE, A::ACCESS_FLAGS]).union(only(receives, A::MIN_RNR_TIMER))
        }
    };
    let addressing = union(&[A::PKEY_INDEX, A::PORT, if connected { A::ACCESS_FLAGS } else { A::QKEY }]);
    let (required, optional) = match (from, to) {
        (_, Reset | Err) => (A::empty(), A::empty()),
        (Reset, Init) => (addressing, A::empty()),
        (Init, Init) => (A::empty(), addressing),
        (Init, Rtr) => match qp_type {
            QpType::Ud => (A::empty(), union(&[A::PKEY_INDEX, A::QKEY])),
            QpType::Uc => (
                union(&[A::AV, A::PATH_MTU, A::DEST_QPN, A::RQ_PSN]),
                union(&[A::ACCESS_FLAGS, A::PKEY_INDEX]),
            ),
            QpType::Rc | QpType::XrcSend | QpType::XrcRecv => (
                union(&[A::AV, A::PATH_MTU, A::DEST_QPN, A::RQ_PSN])
                    .union(only(receives, union(&[A::MAX_DEST_RD_ATOMIC, A::MIN_RNR_TIMER]))),
                union(&[A::ACCESS_FLAGS, A::PKEY_INDEX]).union(only(
                    qp_type == QpType::XrcSend,
                    union(&[A::MAX_DEST_RD_ATOMIC, A::MIN_RNR_TIMER]),
                )),
            ),
        },
        (Rtr, Rts) if rc => (
            union(&[A::SQ_PSN, A::TIMEOUT])
                .union(only(sends, union(&[A::MAX_QP_RD_ATOMIC, A::RETRY_CNT, A::RNR_RETRY]))),
            running.union(only(!sends, union(&[A::MAX_QP_RD_ATOMIC, A::RETRY_CNT, A::RNR_RETRY]))),
        ),
        (Rtr, Rts) => (A::SQ_PSN, running),
        (Rts, Rts) | (Sqd, Rts) => (A::empty(), running),
        (Sqe, Rts) if !rc => (A::empty(), running),
        (Rts, Sqd) => (A::empty(), A::EN_SQD_ASYNC_NOTIFY),
        (Sqd, Sqd) => (
            A::empty(),
            match qp_type {
                QpType::Ud => union(&[A::PKEY_INDEX, A::QKEY]),
                QpType::Uc => union(&[A::AV, A::ACCESS_FLAGS, A::PKEY_INDEX]),
                QpType::Rc | QpType::XrcSend | QpType::XrcRecv => {
                    union(&[A::PORT, A::AV, A::TIMEOUT, A::ACCESS_FLAGS, A::PKEY_INDEX])
                        .union(only(sends, union(&[A::RETRY_CNT, A::RNR_RETRY, A::MAX_QP_RD_ATOMIC])))
                        .union(only(receives, union(&[A::MAX_DEST_RD_ATOMIC, A::MIN_RNR_TIMER])))
                }
            },
        ),
        _ => return None,
    };
    let state = if from == to && !matches!(to, Reset | Err) { A::empty() } else { A::STATE };
    let optional = if state.is_empty() { optional.union(A::STATE) } else { optional };
    Some(Transition { required: required.union(state), optional })
}
