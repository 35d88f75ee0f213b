//! Reliable connection: a requester and a responder that never call each other (IBTA 9.7).

mod completer;
mod flight;
mod local;
mod loss;
mod mode;
mod pieces;
mod reorder;
mod reply;
mod requester;
mod resources;
mod responder;
mod selective;
mod single;
mod timeouts;
mod trimmed;

pub(crate) use requester::RcRequester;
pub(crate) use responder::RcResponder;
