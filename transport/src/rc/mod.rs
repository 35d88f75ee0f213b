//! Reliable connection: a requester and a responder that never call each other (IBTA 9.7).

mod catch_up;
mod completer;
mod flight;
mod local;
mod loss;
mod method;
mod mode;
mod owed;
mod paths;
mod pieces;
mod probes;
mod reads;
mod refusal;
mod refuse;
mod reorder;
mod reply;
mod requester;
mod resend;
mod resources;
mod responder;
mod selective;
mod single;
mod spread;
mod timeouts;
mod trimmed;

pub(crate) use requester::RcRequester;
pub(crate) use responder::RcResponder;

/// The state of an RC queue pair that is not among its attributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RcState {
    /// Number of requests of the peer that this end has completed.
    pub msn: roce_packet::Msn,
    /// Retries left: after timeouts and sequence errors, and after RNR NAKs.
    pub retries: [u8; 2],
    /// Ends of the local ACK timeout, in watched time, and of the pause after an RNR NAK.
    pub timers: [Option<crate::Instant>; 2],
}
