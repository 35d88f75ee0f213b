//! How two ends find each other: an exchange of lines over TCP, or connection management over queue pair 1.

pub(crate) mod service;
mod tcp;

pub use tcp::{Tcp, TcpListening};
