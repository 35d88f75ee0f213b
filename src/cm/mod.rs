//! How two ends find each other: an exchange of lines over TCP, or connection management over queue pair 1.

mod exchange;
mod messages;
pub mod perftest;
mod rping;
pub(crate) mod service;

pub use crate::tcp::{Tcp, TcpListening};
pub use exchange::{Exchange, ExchangeError};
pub use messages::{LARGEST_MESSAGE, Messages, connect_when_listening};
pub use rping::{
    MAX_PING, MIN_PING, RPING_PORT, RpingError, RpingPlan, client as rping_client, serve as rping_serve,
};
