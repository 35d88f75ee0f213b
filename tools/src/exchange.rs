//! The out-of-band exchange of our own tools: one JSON value a line over TCP.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use roce::tcp::{Tcp, TcpListening};
use roce::verbs::Context;

/// The longest line that is read: connections are not trusted.
const LONGEST_LINE: u64 = 1 << 20;
/// The time limit for one line.
const PATIENCE: Duration = Duration::from_secs(60);
/// The same for the first line of a connection.
const FIRST_LINE_PATIENCE: Duration = Duration::from_secs(3);

/// Why the exchange with the other side failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExchangeError {
    /// The address does not answer.
    #[error("connecting to {peer}: {source}; check that the server runs there")]
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
        /// What was being exchanged.
        what: &'static str,
        /// The other side.
        peer: String,
        /// The cause.
        source: io::Error,
    },
    /// The other side sent nothing within the time limit.
    #[error("{peer} has not sent {what} within {} s; is it busy with another client?", .patience.as_secs())]
    Silent {
        /// What was awaited.
        what: &'static str,
        /// The other side.
        peer: String,
        /// The time limit.
        patience: Duration,
    },
    /// The other side closed the connection.
    #[error("{peer} closed the connection before it sent {what}; look there for the reason")]
    Closed {
        /// What was awaited.
        what: &'static str,
        /// The other side.
        peer: String,
    },
    /// The other side sent something else.
    #[error("{peer} sent something that is not {what}: {source}; do both sides run the same version?")]
    Unexpected {
        /// What was awaited.
        what: &'static str,
        /// The other side.
        peer: String,
        /// The cause.
        source: serde_json::Error,
    },
}

/// A connection to the other side.
#[derive(Debug)]
pub struct Exchange {
    reader: BufReader<Tcp>,
    peer: String,
    /// As long as the connection.
    span: tracing::Span,
}

impl Exchange {
    /// Connects to a listening side.
    ///
    /// # Errors
    ///
    /// When no server listens there.
    pub fn connect(address: impl ToSocketAddrs + std::fmt::Debug) -> Result<Self, ExchangeError> {
        let peer = format!("{address:?}");
        let _connect = tracing::debug_span!("connect", peer).entered();
        let stream = TcpStream::connect(address).and_then(Tcp::try_from);
        Self::over(stream.map_err(|source| ExchangeError::Connect { peer, source })?)
    }

    /// Connects to a listening side from the address of a device.
    ///
    /// # Errors
    ///
    /// When no server listens there.
    pub fn connect_from(context: &Context, peer: SocketAddr) -> Result<Self, ExchangeError> {
        let _connect = tracing::debug_span!("connect", %peer).entered();
        let connected = Tcp::connect(context, peer);
        Self::over(connected.map_err(|source| ExchangeError::Connect { peer: peer.to_string(), source })?)
    }

    /// The same with a time limit.
    ///
    /// # Errors
    ///
    /// When no server listens there, or it does not answer in time; the error says which.
    pub fn connect_within(
        context: &Context,
        peer: SocketAddr,
        patience: Duration,
    ) -> Result<Self, ExchangeError> {
        let _connect = tracing::debug_span!("connect", %peer).entered();
        let connected = Tcp::connect_within(context, peer, patience);
        Self::over(connected.map_err(|source| ExchangeError::Connect { peer: peer.to_string(), source })?)
    }

    /// Waits for one connection on `address`.
    ///
    /// # Errors
    ///
    /// When the port is taken.
    pub fn accept(address: SocketAddr) -> Result<Self, ExchangeError> {
        let failed = |source| ExchangeError::Listen { address: address.to_string(), source };
        let listener = TcpListener::bind(address).map_err(failed)?;
        Self::accept_from(&listener)
    }

    /// Waits for one connection on a listener.
    ///
    /// # Errors
    ///
    /// When the listener breaks.
    pub fn accept_from(listener: &TcpListener) -> Result<Self, ExchangeError> {
        let address =
            listener.local_addr().map_or_else(|_| "the listener".into(), |address| address.to_string());
        let accepted = listener.accept().and_then(|(stream, _)| Tcp::try_from(stream));
        Self::over(accepted.map_err(|source| ExchangeError::Listen { address, source })?)
    }

    /// Waits for one connection to a device.
    ///
    /// # Errors
    ///
    /// When the device fails.
    pub fn accept_on(listening: &TcpListening) -> Result<Self, ExchangeError> {
        let address = listening.local_addr().to_string();
        Self::over(listening.accept().map_err(|source| ExchangeError::Listen { address, source })?)
    }

    fn over(mut stream: Tcp) -> Result<Self, ExchangeError> {
        let peer = stream.peer_addr().to_string();
        let set = stream.set_read_timeout(Some(PATIENCE));
        set.map_err(|source| ExchangeError::Broken { what: "anything", peer: peer.clone(), source })?;
        // Not within the span of connecting, which ends here.
        let span = tracing::debug_span!(parent: None, "exchange", peer);
        Ok(Self { reader: BufReader::new(stream), peer, span })
    }

    /// The name of the other side.
    #[must_use]
    pub fn peer(&self) -> &str {
        &self.peer
    }

    /// The address of the other side.
    #[must_use]
    pub fn peer_address(&self) -> IpAddr {
        self.reader.get_ref().peer_addr().ip()
    }

    /// Sends one value.
    ///
    /// # Errors
    ///
    /// When the connection is broken.
    pub fn send<T: Serialize>(&mut self, what: &'static str, value: &T) -> Result<(), ExchangeError> {
        let _send = tracing::trace_span!(parent: &self.span, "send", what).entered();
        let broken = |source| ExchangeError::Broken { what, peer: self.peer.clone(), source };
        let mut line = serde_json::to_vec(value).map_err(|error| broken(error.into()))?;
        line.push(b'\n');
        self.reader.get_mut().write_all(&line).map_err(broken)
    }

    /// Receives one value.
    ///
    /// # Errors
    ///
    /// When the connection is broken or closed, or the line holds something else.
    pub fn receive<T: DeserializeOwned>(&mut self, what: &'static str) -> Result<T, ExchangeError> {
        self.receive_line(what, PATIENCE)
    }

    /// Receives the first value of a connection. The time limit is short: a client that is slow with it is
    /// probably another program, and other clients wait.
    ///
    /// # Errors
    ///
    /// As [`Self::receive`].
    pub fn receive_first<T: DeserializeOwned>(&mut self, what: &'static str) -> Result<T, ExchangeError> {
        self.set_patience(what, FIRST_LINE_PATIENCE)?;
        let first = self.receive_line(what, FIRST_LINE_PATIENCE)?;
        self.set_patience(what, PATIENCE)?;
        Ok(first)
    }

    fn set_patience(&mut self, what: &'static str, patience: Duration) -> Result<(), ExchangeError> {
        let set = self.reader.get_mut().set_read_timeout(Some(patience));
        set.map_err(|source| ExchangeError::Broken { what, peer: self.peer.clone(), source })
    }

    fn receive_line<T: DeserializeOwned>(
        &mut self,
        what: &'static str,
        patience: Duration,
    ) -> Result<T, ExchangeError> {
        let _receive = tracing::trace_span!(parent: &self.span, "receive", what).entered();
        let peer = self.peer.clone();
        let mut line = String::new();
        let read = self.reader.by_ref().take(LONGEST_LINE).read_line(&mut line);
        match read {
            Ok(0) => Err(ExchangeError::Closed { what, peer }),
            Ok(_) => {
                serde_json::from_str(&line).map_err(|source| ExchangeError::Unexpected { what, peer, source })
            }
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut) => {
                Err(ExchangeError::Silent { what, peer, patience })
            }
            Err(source) => Err(ExchangeError::Broken { what, peer, source }),
        }
    }

    /// Sends one value and receives one.
    ///
    /// # Errors
    ///
    /// As [`Self::send`] and [`Self::receive`].
    pub fn swap<T: Serialize, U: DeserializeOwned>(
        &mut self,
        what: &'static str,
        value: &T,
    ) -> Result<U, ExchangeError> {
        self.send(what, value)?;
        self.receive(what)
    }

    /// Waits until both sides have reached this point.
    ///
    /// # Errors
    ///
    /// As [`Self::swap`].
    pub fn barrier(&mut self) -> Result<(), ExchangeError> {
        self.swap::<_, u32>("a barrier", &0).map(|_| ())
    }

    /// Whether the other side has sent or closed something, without waiting. A server that spins for
    /// completions looks here from time to time.
    ///
    /// # Errors
    ///
    /// When the connection is broken.
    pub fn has_input(&mut self) -> Result<bool, ExchangeError> {
        if !self.reader.buffer().is_empty() {
            return Ok(true);
        }
        let has_input = self.reader.get_mut().has_input();
        has_input.map_err(|source| ExchangeError::Broken {
            what: "anything",
            peer: self.peer.clone(),
            source,
        })
    }
}
