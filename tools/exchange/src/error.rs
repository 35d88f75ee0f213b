//! The errors of an exchange.

use std::io;
use std::net::IpAddr;
use std::time::Duration;

/// The reason why the exchange with the other side failed. Its text from the other side is safe to print.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExchangeError {
    /// The address does not answer.
    #[error(
        "cannot connect to {peer} (check that the server runs there, and examine the path with `roce \
         doctor`)"
    )]
    Connect {
        /// The address.
        peer: String,
        /// The cause.
        source: io::Error,
    },
    /// The port cannot be listened on.
    #[error("cannot listen on {address} (choose another port)")]
    Listen {
        /// The address.
        address: String,
        /// The cause.
        source: io::Error,
    },
    /// The connection broke.
    #[error("cannot exchange {what} with {peer} (the messages there may state the reason)")]
    Broken {
        /// The value that was being exchanged.
        what: &'static str,
        /// The other side.
        peer: String,
        /// The cause.
        source: io::Error,
    },
    /// The other side did not send a whole line within the time limit.
    #[error(
        "{peer} has not sent {what} within {} s; check whether it is busy with another client",
        .patience.as_secs()
    )]
    Silent {
        /// The awaited value.
        what: &'static str,
        /// The other side.
        peer: String,
        /// The time limit.
        patience: Duration,
    },
    /// The other side closed the connection.
    #[error("{peer} closed the connection before it sent {what}; the messages there may state the reason")]
    Closed {
        /// The awaited value.
        what: &'static str,
        /// The other side.
        peer: String,
    },
    /// The other side closed the connection in the middle of a measurement.
    #[error("{peer} closed the connection during the measurement; the messages there may state the reason")]
    Left {
        /// The other side.
        peer: String,
    },
    /// The other side sent something unexpected.
    #[error(
        "{peer} did not send {what}: {reason}; check the address and the port, and run the same version on \
         both sides"
    )]
    Unexpected {
        /// The awaited value.
        what: &'static str,
        /// The other side.
        peer: String,
        /// The difference.
        reason: String,
    },
    /// The other side has ended and reported its reason.
    #[error("the other side, {peer}, failed: {reason}")]
    Failed {
        /// The other side.
        peer: String,
        /// The error that the other side reported.
        reason: String,
    },
    /// The other side runs another tool.
    #[error("{peer} runs `roce {theirs}`, but this is `roce {own}`; run the same command on both sides")]
    OtherTool {
        /// The other side.
        peer: String,
        /// The tool here.
        own: &'static str,
        /// The tool there.
        theirs: String,
    },
    /// The other side runs another version.
    #[error(
        "{peer} runs version {theirs} of roce with protocol {protocol}, but this is version {own} with \
         protocol {own_protocol}; install the same version on both sides"
    )]
    OtherVersion {
        /// The other side.
        peer: String,
        /// The version here.
        own: &'static str,
        /// The protocol here.
        own_protocol: u32,
        /// The version there.
        theirs: String,
        /// The protocol there.
        protocol: u32,
    },
    /// The client asks for packets to an address that is not its own.
    #[error(
        "the client connects from {peer} and requests packets to {named}, but a server sends packets only to \
         the address that a client connects from. Start the client with a --device on {peer}, or connect to \
         an address of the server that is reachable from {named}; to trust this address, start the server \
         with --allow-peer {named}. RoCE does not work through NAT"
    )]
    NotThePeer {
        /// The address that the client named.
        named: IpAddr,
        /// The address of the TCP connection.
        peer: IpAddr,
    },
}

impl ExchangeError {
    /// Returns whether no server listens on the port, or not yet.
    #[must_use]
    pub fn is_refused(&self) -> bool {
        matches!(self, Self::Connect { source, .. } if source.kind() == io::ErrorKind::ConnectionRefused)
    }
}

impl ExchangeError {
    /// Returns whether the other side has ended, so that this side need not send it a notice.
    #[must_use]
    pub const fn is_end_of_peer(&self) -> bool {
        matches!(
            self,
            Self::Failed { .. }
                | Self::Closed { .. }
                | Self::Left { .. }
                | Self::Broken { .. }
                | Self::Connect { .. }
        )
    }
}
