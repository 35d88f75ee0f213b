//! How two ends find each other: so far an exchange of lines over TCP.

mod exchange;
mod tcp;

pub use exchange::{Exchange, ExchangeError};
pub use tcp::{Tcp, TcpListening};
