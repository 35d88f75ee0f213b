//! Reliable connection: a requester and a responder that never call each other (IBTA 9.7).

mod catch_up;
mod completer;
mod flight;
mod local;
mod loss;
mod method;
mod mode;
mod owed;
mod pieces;
mod probes;
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
mod timeouts;
mod trimmed;

pub(crate) use requester::RcRequester;
pub(crate) use responder::RcResponder;
