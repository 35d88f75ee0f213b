//! The errors of an exchange.

use std::io;
use std::net::IpAddr;
use std::time::Duration;

/// The reason why the exchange with the other side failed. Its text from the other side is safe to print.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExchangeError {
    /// The address does not answer.
    #[error("connecting to {peer}: {source}; check that the server runs there, and see `roce doctor`")]
    Connect {
        /// The address.
        peer: String,
        /// The cause.
        source: io::Error,
    },
    /// The port cannot be listened on.
    #[error("listening on {address}: {source}; choose another port")]
    Listen {
        /// The address.
        address: String,
        /// The cause.
        source: io::Error,
    },
    /// The connection broke.
    #[error("exchanging {what} with {peer}: {source}; look there for the reason")]
    Broken {
        /// The value that was being exchanged.
        what: &'static str,
        /// The other side.
        peer: String,
        /// The cause.
        source: io::Error,
    },
    /// The other side did not send a whole line within the time limit.
    #[error("{peer} has not sent {what} within {} s; is it busy with another client?", .patience.as_secs())]
    Silent {
        /// The awaited value.
        what: &'static str,
        /// The other side.
        peer: String,
        /// The time limit.
        patience: Duration,
    },
    /// The other side closed the connection.
    #[error("{peer} closed the connection before it sent {what}; look there for the reason")]
    Closed {
        /// The awaited value.
        what: &'static str,
        /// The other side.
        peer: String,
    },
    /// The other side closed the connection in the middle of a measurement.
    #[error("{peer} closed the connection during the measurement; look there for the reason")]
    Left {
        /// The other side.
        peer: String,
    },
    /// The other side sent something unexpected.
    #[error("{peer} sent something that is not {what}: {reason}; do both sides run the same version?")]
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
    #[error("`roce {theirs}` runs at {peer}, and this is `roce {own}`; run the same command on both sides")]
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
        "{peer} runs version {theirs} of roce with protocol {protocol}, and this is version {own} with protocol \
         {own_protocol}; install the same version on both sides"
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
        "the client calls from {peer} and asks for packets to {named}; a server sends packets only to the address that \
         a client calls from. Start the client with its --device on {peer}, or call an address of the server that is \
         reached from {named}; a server that is to trust this address is started with --allow-peer {named}. RoCE does \
         not pass NAT"
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
