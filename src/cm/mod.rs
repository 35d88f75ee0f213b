//! How two ends find each other: so far an exchange of lines over TCP.

mod exchange;

pub use exchange::{Exchange, ExchangeError};
