//! The capabilities and attributes of a queue pair.

use core::fmt;

use roce_packet::{Path, PathMtu, Psn, Qpn, RnrTimer};

use super::state::{AttrMask, QpState, QpType};
use crate::congestion::Congestion;
use crate::congestion::Paths;
use crate::ids::{CqId, PdId, SrqId};
use crate::memory::Access;
use crate::recovery::Recovery;
use crate::wr::{MAX_INLINE, MAX_SGE};

/// Maximum number of work requests in one queue.
pub const MAX_QP_WR: usize = 1 << 16;
/// Maximum number of outstanding READs and atomics in one direction of a queue pair.
pub const MAX_RD_ATOMIC: u8 = 128;
/// The only partition key of a RoCE port: the default partition, full member.
pub const DEFAULT_P_KEY: u16 = 0xffff;

/// The sizes of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpCapabilities {
    /// Maximum number of send requests, 1 to [`MAX_QP_WR`].
    pub max_send_wr: usize,
    /// Maximum number of receives, 0 to [`MAX_QP_WR`]; ignored with a shared receive queue.
    pub max_recv_wr: usize,
    /// Maximum number of elements of a send request, 0 to [`MAX_SGE`].
    pub max_send_sge: usize,
    /// Maximum number of elements of a receive, 0 to [`MAX_SGE`].
    pub max_recv_sge: usize,
    /// Maximum number of inline bytes of a send request, 0 to [`MAX_INLINE`].
    pub max_inline: usize,
}

impl Default for QpCapabilities {
    fn default() -> Self {
        Self { max_send_wr: 128, max_recv_wr: 128, max_send_sge: 4, max_recv_sge: 4, max_inline: 64 }
    }
}

impl QpCapabilities {
    pub(crate) fn check(&self) -> Result<(), CreateQpError> {
        let limits = [
            ("max_send_wr", self.max_send_wr, MAX_QP_WR),
            ("max_recv_wr", self.max_recv_wr, MAX_QP_WR),
            ("max_send_sge", self.max_send_sge, MAX_SGE),
            ("max_recv_sge", self.max_recv_sge, MAX_SGE),
            ("max_inline", self.max_inline, MAX_INLINE),
        ];
        for (name, have, limit) in limits {
            if have > limit {
                return Err(CreateQpError::CapabilityTooLarge { name, have, limit });
            }
        }
        Ok(())
    }
}

/// The arguments for the creation of a queue pair.
#[derive(Clone, Copy, Debug)]
pub struct QpInit {
    /// Transport.
    pub qp_type: QpType,
    /// Protection domain.
    pub pd: PdId,
    /// Completion queue of send requests.
    pub send_cq: CqId,
    /// Completion queue of receives.
    pub recv_cq: CqId,
    /// Shared receive queue that replaces the receive queue of the queue pair.
    pub srq: Option<SrqId>,
    /// Sizes.
    pub capabilities: QpCapabilities,
    /// Whether all send requests are signaled, whatever their flags.
    pub signal_all: bool,
}

/// Optional settings of a queue pair. Those that are `None` are taken from
/// [`EngineConfig`](crate::EngineConfig).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QpOptions {
    /// The congestion control.
    pub congestion: Option<Congestion>,
    /// The loss recovery (RC).
    pub recovery: Option<Recovery>,
    /// The paths (RC).
    pub paths: Option<Paths>,
}

/// An error of the creation of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CreateQpError {
    /// The protection domain does not exist.
    #[error("there is no such protection domain")]
    UnknownProtectionDomain,
    /// A completion queue does not exist.
    #[error("there is no such completion queue")]
    UnknownCq,
    /// The XRC domain does not exist.
    #[error("there is no such XRC domain")]
    UnknownXrcDomain,
    /// The target of an XRC domain was requested from the wrong verb.
    #[error("an XRC target is created only from an XRC domain")]
    XrcTarget,
    /// The shared receive queue does not exist.
    #[error("there is no such shared receive queue")]
    UnknownSrq,
    /// A size is above its limit.
    #[error("{name} is {have}, the maximum is {limit}")]
    CapabilityTooLarge {
        /// Name of the field.
        name: &'static str,
        /// Requested size.
        have: usize,
        /// Maximum size.
        limit: usize,
    },
    /// Queue pair 1 already exists, or it was requested with a transport other than UD.
    #[error("queue pair 1 exists once and is UD")]
    Gsi,
    /// The configured number of queue pairs is in use.
    #[error("all {limit} queue pairs are in use; destroy one or raise the limit")]
    TooManyQps {
        /// The configured limit.
        limit: usize,
    },
}

/// The attributes of a modify call: those that are `Some` are given. `QpAttr::default()` gives none.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct QpAttr {
    /// The new state.
    pub state: Option<QpState>,
    /// The state that the caller expects the queue pair to be in; a mismatch is an error.
    pub cur_state: Option<QpState>,
    /// Whether draining raises [`crate::AsyncEvent::SqDrained`].
    pub en_sqd_async_notify: Option<bool>,
    /// Rights of peers through this queue pair: REMOTE_WRITE, REMOTE_READ, REMOTE_ATOMIC, FLUSH_*.
    pub access: Option<Access>,
    /// Partition key index. Must be 0, because a RoCE port has one partition key.
    pub pkey_index: Option<u16>,
    /// Port number. Must be 1.
    pub port: Option<u8>,
    /// Q_Key (UD).
    pub qkey: Option<u32>,
    /// The route to the peer. Its UDP source port is final: the device was asked for it.
    pub path: Option<Path>,
    /// Path MTU, equal at both ends.
    pub path_mtu: Option<PathMtu>,
    /// Local ACK timeout: 4.096 µs × 2^timeout, 1 to 31. 0 means no timer: a lost packet is never recovered.
    pub timeout: Option<u8>,
    /// Retries after timeouts and sequence errors, 0 to 7.
    pub retry_cnt: Option<u8>,
    /// Retries after RNR NAKs, 0 to 6; 7 means forever.
    pub rnr_retry: Option<u8>,
    /// First expected PSN.
    pub rq_psn: Option<Psn>,
    /// Outstanding READs and atomics as requester, at most the peer's `max_dest_rd_atomic`.
    pub max_rd_atomic: Option<u8>,
    /// The delay that RNR NAKs request from the peer.
    pub min_rnr_timer: Option<RnrTimer>,
    /// First PSN to be sent.
    pub sq_psn: Option<Psn>,
    /// READs and atomics kept as responder, at most [`MAX_RD_ATOMIC`].
    pub max_dest_rd_atomic: Option<u8>,
    /// The queue pair number of the peer.
    pub dest_qpn: Option<Qpn>,
}

impl QpAttr {
    /// Creates attributes that only contain a state.
    #[must_use]
    pub fn to_state(state: QpState) -> Self {
        Self { state: Some(state), ..Self::default() }
    }

    /// Returns the mask of the attributes that are given.
    #[must_use]
    pub fn mask(&self) -> AttrMask {
        let given = [
            (self.state.is_some(), AttrMask::STATE),
            (self.cur_state.is_some(), AttrMask::CUR_STATE),
            (self.en_sqd_async_notify.is_some(), AttrMask::EN_SQD_ASYNC_NOTIFY),
            (self.access.is_some(), AttrMask::ACCESS_FLAGS),
            (self.pkey_index.is_some(), AttrMask::PKEY_INDEX),
            (self.port.is_some(), AttrMask::PORT),
            (self.qkey.is_some(), AttrMask::QKEY),
            (self.path.is_some(), AttrMask::AV),
            (self.path_mtu.is_some(), AttrMask::PATH_MTU),
            (self.timeout.is_some(), AttrMask::TIMEOUT),
            (self.retry_cnt.is_some(), AttrMask::RETRY_CNT),
            (self.rnr_retry.is_some(), AttrMask::RNR_RETRY),
            (self.rq_psn.is_some(), AttrMask::RQ_PSN),
            (self.max_rd_atomic.is_some(), AttrMask::MAX_QP_RD_ATOMIC),
            (self.min_rnr_timer.is_some(), AttrMask::MIN_RNR_TIMER),
            (self.sq_psn.is_some(), AttrMask::SQ_PSN),
            (self.max_dest_rd_atomic.is_some(), AttrMask::MAX_DEST_RD_ATOMIC),
            (self.dest_qpn.is_some(), AttrMask::DEST_QPN),
        ];
        given.into_iter().filter(|(given, _)| *given).fold(AttrMask::empty(), |sum, (_, bit)| sum | bit)
    }
}

/// An error of a modify call. The call changed nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ModifyQpError {
    /// The queue pair does not exist.
    #[error("there is no such queue pair")]
    UnknownQp,
    /// The queue pair is not in the state that the caller expected.
    #[error("the queue pair is in state {}, not in {}", .actual.name(), .believed.name())]
    CurrentState {
        /// The actual state.
        actual: QpState,
        /// The state given by the caller.
        believed: QpState,
    },
    /// The transition does not exist.
    #[error("a {qp_type:?} queue pair cannot go from {} to {}", .from.name(), .to.name())]
    Transition {
        /// Transport.
        qp_type: QpType,
        /// Current state.
        from: QpState,
        /// Requested state.
        to: QpState,
    },
    /// Required attributes are missing.
    #[error("the transition from {} to {} also requires {}", .from.name(), .to.name(), Names(*.missing))]
    Missing {
        /// Current state.
        from: QpState,
        /// Requested state.
        to: QpState,
        /// The missing attributes.
        missing: AttrMask,
    },
    /// Attributes are not allowed in this transition.
    #[error("the transition from {} to {} does not accept {}", .from.name(), .to.name(), Names(*.extra))]
    NotAllowed {
        /// Current state.
        from: QpState,
        /// Requested state.
        to: QpState,
        /// The attributes that are not allowed.
        extra: AttrMask,
    },
    /// A value is out of range.
    #[error("{name} cannot be {have}, the maximum is {limit}")]
    OutOfRange {
        /// Name of the attribute.
        name: &'static str,
        /// Given value.
        have: u32,
        /// Largest valid value.
        limit: u32,
    },
}

/// The names in a mask, for messages.
struct Names(AttrMask);

impl fmt::Display for Names {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, (name, _)) in self.0.iter_names().enumerate() {
            let separator = if index > 0 { ", " } else { "" };
            write!(formatter, "{separator}{name}")?;
        }
        Ok(())
    }
}

/// The attributes in force, as returned by a query.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct QpAttributes {
    /// State.
    pub state: QpState,
    /// Whether draining raises an event.
    pub en_sqd_async_notify: bool,
    /// Operations that peers may perform.
    pub access: Access,
    /// Partition key, always [`DEFAULT_P_KEY`].
    pub p_key: u16,
    /// Q_Key (UD).
    pub qkey: u32,
    /// The route to the peer, or `None` before it is set.
    pub path: Option<Path>,
    /// Path MTU.
    pub path_mtu: PathMtu,
    /// Local ACK timeout exponent.
    pub timeout: u8,
    /// Retries after timeouts and sequence errors.
    pub retry_cnt: u8,
    /// Retries after RNR NAKs.
    pub rnr_retry: u8,
    /// Outstanding READs and atomics as requester.
    pub max_rd_atomic: u8,
    /// READs and atomics kept as responder.
    pub max_dest_rd_atomic: u8,
    /// Requested RNR delay.
    pub min_rnr_timer: RnrTimer,
    /// The queue pair number of the peer.
    pub dest_qpn: Qpn,
    /// The next PSN that will be sent for the first time.
    pub sq_psn: Psn,
    /// The next expected PSN.
    pub rq_psn: Psn,
}

impl QpAttributes {
    pub(crate) fn new(path_mtu: PathMtu) -> Self {
        Self {
            state: QpState::Reset,
            en_sqd_async_notify: false,
            access: Access::empty(),
            p_key: DEFAULT_P_KEY,
            qkey: 0,
            path: None,
            path_mtu,
            timeout: 0,
            retry_cnt: 0,
            rnr_retry: 0,
            max_rd_atomic: 0,
            max_dest_rd_atomic: 0,
            min_rnr_timer: RnrTimer::default(),
            dest_qpn: Qpn::new(0),
            sq_psn: Psn::new(0),
            rq_psn: Psn::new(0),
        }
    }
}
