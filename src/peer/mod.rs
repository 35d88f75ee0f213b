//! Connected ends in a few lines: a [`Peer`] bundles the objects of [`verbs`](crate::verbs) that a connection
//! needs, and its calls return [`Operation`]s.

mod calls;
mod end;
mod error;
mod offer;
mod operation;
mod options;
mod requests;

pub use calls::Peer;
pub use error::Error;
pub use operation::Operation;
pub use options::{Listener, PeerOptions, connect, connect_async, listen, loopback};
