//! Queue pair states and the table of transitions between them (IBTA 10.3, as `ibv_modify_qp` has it).

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
    /// The initiator of an extended reliable connection: it sends, each message to a shared receive queue at the peer (annex A14).
    XrcSend,
    /// The target of an extended reliable connection: it receives into the shared receive queues of its XRC domain.
    XrcRecv,
}

impl QpType {
    /// Whether packets are acknowledged and sent again.
    #[must_use]
    pub const fn is_reliable(self) -> bool {
        matches!(self, Self::Rc | Self::XrcSend | Self::XrcRecv)
    }

    /// Whether it is an end of an extended reliable connection.
    #[must_use]
    pub const fn is_xrc(self) -> bool {
        matches!(self, Self::XrcSend | Self::XrcRecv)
    }
}

/// The state of a queue pair. Numbers are those of libibverbs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum QpState {
    /// Just made, or reset: forgets everything.
    #[default]
    Reset = 0,
    /// Takes receives, moves nothing.
    Init = 1,
    /// Ready to receive.
    Rtr = 2,
    /// Ready to send.
    Rts = 3,
    /// Send queue drained: finishes what was started, holds the rest.
    Sqd = 4,
    /// Send queue error: a UC or UD send failed; receives go on.
    Sqe = 5,
    /// Everything is flushed.
    Err = 6,
}

impl QpState {
    /// All states in the order of their numbers.
    pub const ALL: [Self; 7] =
        [Self::Reset, Self::Init, Self::Rtr, Self::Rts, Self::Sqd, Self::Sqe, Self::Err];

    /// Whether send requests may be posted (in ERR and SQE they are flushed).
    #[must_use]
    pub const fn accepts_send(self) -> bool {
        matches!(self, Self::Rts | Self::Sqd | Self::Sqe | Self::Err)
    }

    /// Whether receives may be posted (in ERR they are flushed).
    #[must_use]
    pub const fn accepts_recv(self) -> bool {
        !matches!(self, Self::Reset)
    }

    /// Whether incoming requests are executed.
    #[must_use]
    pub const fn responds(self) -> bool {
        matches!(self, Self::Rtr | Self::Rts | Self::Sqd | Self::Sqe)
    }

    /// Whether incoming responses are looked at.
    #[must_use]
    pub const fn requests(self) -> bool {
        matches!(self, Self::Rts | Self::Sqd)
    }

    /// Whether send requests that were not started yet are started.
    #[must_use]
    pub const fn starts_requests(self) -> bool {
        matches!(self, Self::Rts)
    }

    /// What has to be done before work requests can be posted, for the end of a message.
    pub(crate) const fn when_it_takes_work(self) -> &'static str {
        match self {
            Self::Reset => {
                "receives are taken from INIT on and sends in RTS: connect the queue pair first, or move it to INIT and post \
                 receives"
            }
            Self::Init | Self::Rtr => "sends are taken in RTS: connect the queue pair first",
            Self::Rts | Self::Sqd | Self::Sqe | Self::Err => "it is neither sent nor received",
        }
    }

    /// The name in capitals, as the specification writes it.
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
    /// Which attributes a modify call carries. Bit values are those of libibverbs.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct AttrMask: u32 {
        /// The state to go to.
        const STATE = 1;
        /// The state that the caller believes the queue pair is in.
        const CUR_STATE = 1 << 1;
        /// Whether draining raises an event.
        const EN_SQD_ASYNC_NOTIFY = 1 << 2;
        /// What peers may do.
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
        /// First PSN to expect.
        const RQ_PSN = 1 << 12;
        /// READs and atomics outstanding as requester (ORD).
        const MAX_QP_RD_ATOMIC = 1 << 13;
        /// The delay that RNR NAKs ask for.
        const MIN_RNR_TIMER = 1 << 15;
        /// First PSN to send.
        const SQ_PSN = 1 << 16;
        /// READs and atomics kept as responder (IRD).
        const MAX_DEST_RD_ATOMIC = 1 << 17;
        /// The peer's queue pair.
        const DEST_QPN = 1 << 20;
    }
}

/// What one transition asks for.
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

/// The rule for going from one state to another, or `None` where that is not possible.
///
/// `STATE` is required everywhere but where the state stays as it is.
#[must_use]
pub fn transition(qp_type: QpType, from: QpState, to: QpState) -> Option<Transition> {
    use AttrMask as A;
    use QpState::{Err, Init, Reset, Rtr, Rts, Sqd, Sqe};
    let connected = !matches!(qp_type, QpType::Ud);
    let rc = qp_type.is_reliable();
    // The two directions of a reliable connection, of which an extended one has one. What belongs to the other direction is taken
    // and has no effect: there are programs that give both ends everything (perftest).
    let (sends, receives) = (qp_type != QpType::XrcRecv, qp_type != QpType::XrcSend);
    let only = |has: bool, mask: A| if has { mask } else { A::empty() };
    // What a running queue pair may have changed: the Q_Key of a UD, the rights of a connected one.
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
