//! The out-of-band exchange of our own tools: one JSON value a line over TCP.
//!
//! A client may call any address of the server; [`Listening`] takes all of them. [`ClientQueue`] lets clients wait for
//! their turn and tells them so. The first line of each side is a greeting, so two different tools notice it at once.
//! A side that fails says why on its last line, and the other side reports it, whatever it waits for.
//!
//! Connections are not trusted: every line has a limit of length and of time, the set-up as a whole has a limit of time,
//! and packets go only where [`PeerAddresses`] allows.

mod connect;
mod error;
mod lines;
mod listening;
mod peers;
mod queue;

use std::fmt;
use std::io::{self, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, ToSocketAddrs};
use std::time::{Duration, Instant};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use roce::tcp::{Tcp, TcpListening};
use roce::verbs::Context;

use lines::{Lines, Notice};
use roce::observe::Text;

pub use connect::{connect_tcp, until_listening};
pub use error::ExchangeError;
pub use listening::{Listening, own_addresses};
pub use peers::PeerAddresses;
pub use queue::{ClientQueue, MOST_WAITING};

/// Changes with the meaning of the lines.
const PROTOCOL: u32 = 2;
/// The time limit for one line.
const PATIENCE: Duration = Duration::from_secs(60);
/// The same for the first line of a client: one that is slow with it is probably another program, and other clients wait.
const FIRST_LINE_PATIENCE: Duration = Duration::from_secs(3);
/// How long a client waits for the first line of a server, or for the next line that says that the server is busy.
const TURN_PATIENCE: Duration = Duration::from_secs(15);
/// The time limit of a server for everything before the first message.
const SETUP_PATIENCE: Duration = Duration::from_secs(30);
/// How long a side that has failed waits for the other side to read why.
const FAREWELL: Duration = Duration::from_millis(300);

/// The first line of each side.
#[derive(Debug, Serialize, Deserialize)]
struct Greeting {
    roce: String,
    protocol: u32,
    version: String,
}

/// The place of a client in the queue of a busy server.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Busy {
    /// 1 is the next.
    pub position: usize,
    /// The client that is served.
    pub serving: String,
}

impl fmt::Display for Busy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the server is busy with {}; position {} in its queue",
            Text::new(&self.serving),
            self.position
        )
    }
}

/// A connection to the other side.
pub struct Exchange {
    lines: Lines,
    peer: String,
    peers: PeerAddresses,
    /// The address that the client called.
    called: Option<SocketAddr>,
    is_client: bool,
    /// When all lines must have come, and how long that was at first.
    limited_until: Option<(Instant, Duration)>,
    /// The place in the queue of which the user was told last.
    told: Option<Busy>,
    /// As long as the connection.
    span: tracing::Span,
}

impl fmt::Debug for Exchange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Exchange")
            .field("peer", &self.peer)
            .field("called", &self.called)
            .finish_non_exhaustive()
    }
}

impl Exchange {
    /// Connects to a listening side.
    ///
    /// # Errors
    ///
    /// When no server listens there.
    pub fn connect(address: impl ToSocketAddrs + fmt::Debug) -> Result<Self, ExchangeError> {
        let peer = format!("{address:?}");
        let _connect = tracing::debug_span!("connect", peer).entered();
        let stream = std::net::TcpStream::connect(address).and_then(Tcp::try_from);
        Self::client(stream.map_err(|source| ExchangeError::Connect { peer, source })?)
    }

    /// Connects to a listening side from the address of a device that its packets to the peer leave from, which is the only
    /// address that the server sends packets to.
    ///
    /// # Errors
    ///
    /// When no server listens there.
    pub fn connect_from(context: &Context, peer: SocketAddr) -> Result<Self, ExchangeError> {
        Self::connect_at(context, None, peer, None)
    }

    /// The same with the GID that packets leave from, and a time limit.
    ///
    /// # Errors
    ///
    /// When no server listens there, or it does not answer in time; the error says which.
    pub fn connect_at(
        context: &Context,
        gid_index: Option<usize>,
        peer: SocketAddr,
        patience: Option<Duration>,
    ) -> Result<Self, ExchangeError> {
        let _connect = tracing::debug_span!("connect", %peer).entered();
        let connected = connect_tcp(context, gid_index, peer, patience);
        Self::client(connected.map_err(|source| ExchangeError::Connect { peer: peer.to_string(), source })?)
    }

    /// Connects with the TCP of the kernel from an address, if the kernel has it.
    ///
    /// # Errors
    ///
    /// When no server listens there.
    pub fn connect_as(own: IpAddr, peer: SocketAddr) -> Result<Self, ExchangeError> {
        let _connect = tracing::debug_span!("connect", %peer).entered();
        let connected = connect::of_kernel(own, peer, None).unwrap_or_else(|| {
            // The address of a host of the device's own.
            std::net::TcpStream::connect(peer).and_then(Tcp::try_from)
        });
        Self::client(connected.map_err(|source| ExchangeError::Connect { peer: peer.to_string(), source })?)
    }

    /// Waits for one connection on a listener.
    ///
    /// # Errors
    ///
    /// When the listener breaks.
    pub fn accept_from(listener: &TcpListener) -> Result<Self, ExchangeError> {
        let address =
            listener.local_addr().map_or_else(|_| "the listener".into(), |address| address.to_string());
        let accepted = listener.accept().and_then(|(stream, _)| {
            let called = stream.local_addr().ok();
            Ok((Tcp::try_from(stream)?, called))
        });
        let (stream, called) = accepted.map_err(|source| ExchangeError::Listen { address, source })?;
        Self::server(stream, called)
    }

    /// Waits for one connection to a device.
    ///
    /// # Errors
    ///
    /// When the device fails.
    pub fn accept_on(listening: &TcpListening) -> Result<Self, ExchangeError> {
        let address = listening.local_addr().to_string();
        let accepted = listening.accept();
        Self::server(accepted.map_err(|source| ExchangeError::Listen { address, source })?, None)
    }

    fn client(stream: Tcp) -> Result<Self, ExchangeError> {
        Self::over(stream, None, true)
    }

    pub(crate) fn server(stream: Tcp, called: Option<SocketAddr>) -> Result<Self, ExchangeError> {
        Self::over(stream, called, false)
    }

    fn over(mut stream: Tcp, called: Option<SocketAddr>, is_client: bool) -> Result<Self, ExchangeError> {
        let address = canonical(stream.peer_addr());
        let peer = address.to_string();
        let set = stream.set_write_timeout(Some(PATIENCE));
        set.map_err(|source| ExchangeError::Broken { what: "anything", peer: peer.clone(), source })?;
        // Not within the span of connecting, which ends here.
        let span = tracing::debug_span!(parent: None, "exchange", peer);
        Ok(Self {
            lines: Lines::new(stream),
            peer,
            peers: PeerAddresses::of_caller(address.ip()),
            called: called.map(canonical),
            is_client,
            limited_until: None,
            told: None,
            span,
        })
    }

    /// Has a server also send packets to these addresses of the client.
    #[must_use]
    pub fn allow_peers(mut self, others: &[IpAddr]) -> Self {
        self.peers = self.peers.and(others);
        self
    }

    /// Has a server send packets to any address that the client names: for two processes of one program.
    #[must_use]
    pub fn allow_any_peer(mut self) -> Self {
        self.peers = self.peers.or_any();
        self
    }

    /// The name of the other side.
    #[must_use]
    pub fn peer(&self) -> &str {
        &self.peer
    }

    /// The address of the other side.
    #[must_use]
    pub fn peer_address(&self) -> IpAddr {
        canonical(self.lines.stream().peer_addr()).ip()
    }

    /// Where packets for the other side may go.
    #[must_use]
    pub fn peers(&self) -> &PeerAddresses {
        &self.peers
    }

    /// The address of this side that the client called, with its zone; `None` for a TCP of the device itself.
    #[must_use]
    pub fn called(&self) -> Option<SocketAddr> {
        self.called
    }

    /// Exchanges greetings: both sides must run the same tool in the same version. A client waits here for its turn. For a
    /// server, the time for the set-up begins.
    ///
    /// # Errors
    ///
    /// The other side runs something else, or does not greet in time.
    pub fn greet(&mut self, tool: &'static str) -> Result<(), ExchangeError> {
        let what = "the greeting of roce";
        let version = env!("CARGO_PKG_VERSION");
        self.send(what, &Greeting { roce: tool.into(), protocol: PROTOCOL, version: version.into() })?;
        if !self.is_client {
            self.limit(Some(SETUP_PATIENCE));
        }
        let patience = if self.is_client { TURN_PATIENCE } else { FIRST_LINE_PATIENCE };
        self.lines.expect_object();
        let theirs: Greeting = self.receive_within(what, patience)?;
        if theirs.protocol != PROTOCOL {
            return Err(ExchangeError::OtherVersion {
                peer: self.peer.clone(),
                own: version,
                own_protocol: PROTOCOL,
                theirs: Text::new(&theirs.version).to_string(),
                protocol: theirs.protocol,
            });
        }
        if theirs.roce != tool {
            let theirs = Text::new(&theirs.roce).to_string();
            return Err(ExchangeError::OtherTool { peer: self.peer.clone(), own: tool, theirs });
        }
        Ok(())
    }

    /// Replaces the time limit of the set-up by one for all further lines together; `None`: from now on both sides measure,
    /// and each line has a limit of its own.
    pub fn limit(&mut self, limit: Option<Duration>) {
        self.limited_until = limit.map(|limit| (Instant::now() + limit, limit));
    }

    #[cfg(test)]
    pub(crate) fn is_limited(&self) -> bool {
        self.limited_until.is_some()
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
        match self.lines.stream_mut().write_all(&line) {
            Ok(()) => Ok(()),
            // The other side may have said why it closed the connection.
            Err(source) => Err(self.watch().err().unwrap_or(ExchangeError::Broken {
                what,
                peer: self.peer.clone(),
                source,
            })),
        }
    }

    /// Receives one value.
    ///
    /// # Errors
    ///
    /// When the connection is broken or closed, the other side failed, or the line holds something else.
    pub fn receive<T: DeserializeOwned>(&mut self, what: &'static str) -> Result<T, ExchangeError> {
        self.receive_within(what, PATIENCE)
    }

    fn receive_within<T: DeserializeOwned>(
        &mut self,
        what: &'static str,
        patience: Duration,
    ) -> Result<T, ExchangeError> {
        let _receive = tracing::trace_span!(parent: &self.span, "receive", what).entered();
        loop {
            let of_line = (Instant::now() + patience, patience);
            let (deadline, patience) = self.limited_until.map_or(of_line, |limit| limit.min(of_line));
            let line = self.lines.next(deadline).map_err(|error| self.line_error(error, what, patience))?;
            match Notice::parse(&line) {
                Some(Notice::Failed(reason)) => return Err(self.failed(&reason)),
                Some(Notice::Busy(busy)) if self.is_client => {
                    if self.told.as_ref() != Some(&busy) {
                        tracing::warn!("{busy}");
                        self.told = Some(busy);
                    }
                }
                _ => {
                    return serde_json::from_slice(&line)
                        .map_err(|error| self.unexpected(what, &error.to_string()));
                }
            }
        }
    }

    fn failed(&self, reason: &str) -> ExchangeError {
        ExchangeError::Failed { peer: self.peer.clone(), reason: Text::new(reason).to_string() }
    }

    fn unexpected(&self, what: &'static str, reason: &str) -> ExchangeError {
        let reason = Text::new(reason).to_string();
        ExchangeError::Unexpected { what, peer: self.peer.clone(), reason }
    }

    fn line_error(&self, error: lines::LineError, what: &'static str, patience: Duration) -> ExchangeError {
        let peer = self.peer.clone();
        match error {
            lines::LineError::Ended => ExchangeError::Closed { what, peer },
            lines::LineError::Late => ExchangeError::Silent { what, peer, patience },
            lines::LineError::NotALine(reason) => self.unexpected(what, reason),
            lines::LineError::Io(source) => ExchangeError::Broken { what, peer, source },
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
        match self.lines.has_input() {
            Ok(has_input) => Ok(has_input),
            // The other side has left; the next look says so.
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => Ok(true),
            Err(source) => Err(ExchangeError::Broken { what: "anything", peer: self.peer.clone(), source }),
        }
    }

    /// Looks, without waiting, whether the other side is still there. Who waits for packets looks here from time to time.
    ///
    /// # Errors
    ///
    /// The other side has closed the connection, or failed; the error has its reason.
    pub fn watch(&mut self) -> Result<(), ExchangeError> {
        let has_ended = self.lines.take_in().is_err() || self.lines.has_ended();
        match self.lines.peek() {
            Some(line) => match Notice::parse(line) {
                Some(Notice::Failed(reason)) => Err(self.failed(&reason)),
                // An answer that is taken in its turn.
                _ => Ok(()),
            },
            None if has_ended => Err(ExchangeError::Left { peer: self.peer.clone() }),
            None => Ok(()),
        }
    }

    /// Tells the other side why this side ends. It cannot fail: the other side may be gone.
    pub fn fail(&mut self, reason: &str) {
        if self.send("why it failed", &Notice::Failed(reason.to_owned())).is_err() {
            return;
        }
        // A connection that is closed with unread bytes is reset, and then the line could be lost. The other side closes
        // the connection when it has read the line.
        let end = Instant::now() + FAREWELL;
        self.lines.discard_until(end);
    }

    /// Tells a waiting client its place in the queue, without waiting.
    pub(crate) fn tell_busy(&mut self, busy: &Busy) -> Result<(), ExchangeError> {
        let patience = self.lines.stream_mut().set_write_timeout(Some(Duration::from_millis(20)));
        let broken = |source| ExchangeError::Broken { what: "the queue", peer: self.peer.clone(), source };
        patience.map_err(broken)?;
        let sent = self.send("its place in the queue", &Notice::Busy(busy.clone()));
        self.lines
            .stream_mut()
            .set_write_timeout(Some(PATIENCE))
            .map_err(|source| ExchangeError::Broken { what: "the queue", peer: self.peer.clone(), source })?;
        sent
    }

    /// Whether the other side has closed the connection.
    pub(crate) fn has_left(&mut self) -> bool {
        self.lines.take_in().is_err() || self.lines.has_ended()
    }
}

/// An IPv4-mapped address as IPv4.
pub(crate) fn canonical(address: SocketAddr) -> SocketAddr {
    match address.ip().to_canonical() {
        IpAddr::V4(ip) => SocketAddr::new(ip.into(), address.port()),
        IpAddr::V6(_) => address,
    }
}

/// An error of an operation that a listener of the kernel does not support.
fn unsupported(text: &str) -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, text.to_owned())
}
