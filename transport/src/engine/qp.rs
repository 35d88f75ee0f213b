//! A queue pair with its two halves, as the engine stores it.

use crate::qp::QpCore;
use crate::rc::{RcRequester, RcResponder};
use crate::rq::Receive;
use crate::sq::SendQueue;
use crate::uc::{UcRequester, UcResponder};
use crate::ud::{UdRequester, UdResponder};

/// One queue pair of an engine.
#[derive(Debug)]
pub(crate) struct Qp {
    pub(crate) core: QpCore,
    pub(crate) halves: Halves,
    /// Whether the requester sends before the responder: the half that sent last comes last.
    pub(crate) requester_turn: bool,
    /// Number of superpackets that requests began ahead of a pending acknowledgement. The maximum if the
    /// acknowledgement leaves next.
    pub(crate) passed: u8,
    /// Whether the queue pair is in the engine's ready queue.
    pub(crate) scheduled: bool,
}

/// The two halves by transport. They never call each other.
#[derive(Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "nearly every queue pair is RC, and a box would cost a load per packet"
)]
pub(crate) enum Halves {
    Rc(RcRequester, RcResponder),
    Uc(UcRequester, UcResponder),
    Ud(UdRequester, UdResponder),
}

impl Halves {
    pub(crate) fn sq(&self) -> &SendQueue {
        match self {
            Self::Rc(requester, _) => &requester.sq,
            Self::Uc(requester, _) => &requester.sq,
            Self::Ud(requester, _) => &requester.sq,
        }
    }

    pub(crate) fn sq_mut(&mut self) -> &mut SendQueue {
        match self {
            Self::Rc(requester, _) => &mut requester.sq,
            Self::Uc(requester, _) => &mut requester.sq,
            Self::Ud(requester, _) => &mut requester.sq,
        }
    }

    /// Drops pending answers of the responder.
    pub(crate) fn abandon_answers(&mut self) {
        if let Self::Rc(_, responder) = self {
            responder.abandon_answers();
        }
    }

    /// Takes a partly filled receive out of the responder, so that it can be flushed.
    pub(crate) fn take_receive(&mut self) -> Option<Receive> {
        match self {
            Self::Rc(_, responder) => responder.take_receive(),
            Self::Uc(_, responder) => responder.take_receive(),
            Self::Ud(..) => None,
        }
    }
}
