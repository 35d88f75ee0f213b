//! A connection between two of our own tools, and what they say on it.

use std::fmt;
use std::io::{self, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, ToSocketAddrs};
use std::time::{Duration, Instant};

use roce::observe::Text;
use roce::tcp::{Tcp, TcpListening};
use roce::verbs::Context;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::connect::{self, canonical, connect_tcp};
use crate::error::ExchangeError;
use crate::lines::{Busy, LineError, Lines, Notice};
use crate::listening::Listening;
use crate::peers::PeerAddresses;

/// Version of the exchange; it changes with the meaning of the lines.
const PROTOCOL: u32 = 2;
/// Time limit for one line.
const PATIENCE: Duration = Duration::from_secs(60);
/// Time limit for the first line of a client. A slow client is probably another program, and other clients
/// wait.
const FIRST_LINE_PATIENCE: Duration = Duration::from_secs(3);
/// Time limit of a client for the first line of a server, and for each later line that says that the server
/// is busy.
const TURN_PATIENCE: Duration = Duration::from_secs(15);
/// Time limit of a server for everything before the first message.
const SETUP_PATIENCE: Duration = Duration::from_secs(30);
/// Time that a failed side waits for the other side to read the reason.
const FAREWELL: Duration = Duration::from_millis(300);

/// The first line of each side.
#[derive(Debug, Serialize, Deserialize)]
struct Greeting {
    roce: String,
    protocol: u32,
    version: String,
}

/// A connection to the other side.
pub struct Exchange {
    lines: Lines,
    peer: String,
    peers: PeerAddresses,
    /// The address that the client called.
    called: Option<SocketAddr>,
    is_client: bool,
    /// The deadline for all lines together, and the original time limit.
    limited_until: Option<(Instant, Duration)>,
    /// The place in the queue that was last reported to the user.
    told: Option<Busy>,
    /// A span that lives as long as the connection.
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
    /// No server listens there.
    pub fn connect(address: impl ToSocketAddrs + fmt::Debug) -> Result<Self, ExchangeError> {
        let peer = format!("{address:?}");
        let _connect = tracing::debug_span!("connect", peer).entered();
        let stream = std::net::TcpStream::connect(address).and_then(Tcp::try_from);
        Self::client(stream.map_err(|source| ExchangeError::Connect { peer, source })?)
    }

    /// Connects to a listening side from the source address of the device's packets to `peer`. The server
    /// sends packets only to that address.
    ///
    /// # Errors
    ///
    /// No server listens there.
    pub fn connect_from(context: &Context, peer: SocketAddr) -> Result<Self, ExchangeError> {
        Self::connect_at(context, None, peer, None)
    }

    /// Connects to a listening side from the address of `gid_index`, with an optional time limit.
    ///
    /// # Errors
    ///
    /// No server listens there, or it does not answer in time; the error says which.
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

    /// Connects with the kernel's TCP, from the address `own` if the kernel has it.
    ///
    /// # Errors
    ///
    /// No server listens there.
    pub fn connect_as(own: IpAddr, peer: SocketAddr) -> Result<Self, ExchangeError> {
        let _connect = tracing::debug_span!("connect", %peer).entered();
        let connected = connect::of_kernel(own, peer, None).unwrap_or_else(|| {
            // `own` is the address of the device's own host.
            std::net::TcpStream::connect(peer).and_then(Tcp::try_from)
        });
        Self::client(connected.map_err(|source| ExchangeError::Connect { peer: peer.to_string(), source })?)
    }

    /// Waits for one connection on a listener.
    ///
    /// # Errors
    ///
    /// The listener breaks.
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
    /// The device fails.
    pub fn accept_on(listening: &TcpListening) -> Result<Self, ExchangeError> {
        let address = listening.local_addr().to_string();
        let accepted = listening.accept();
        Self::server(accepted.map_err(|source| ExchangeError::Listen { address, source })?, None)
    }

    /// Waits up to `timeout` for a connection on the sockets of a server. Returns `None` if no client has
    /// called, or if it has left already.
    ///
    /// # Errors
    ///
    /// The device failed, or there are too many sockets.
    pub fn accept_within(listening: &Listening, timeout: Duration) -> Result<Option<Self>, ExchangeError> {
        let failed =
            |source| ExchangeError::Listen { address: format!("TCP port {}", listening.port()), source };
        let accepted = listening.accept_within(timeout).map_err(failed)?;
        Ok(accepted.and_then(|(stream, called)| Self::server(stream, called).ok()))
    }

    fn client(stream: Tcp) -> Result<Self, ExchangeError> {
        Self::over(stream, None, true)
    }

    fn server(stream: Tcp, called: Option<SocketAddr>) -> Result<Self, ExchangeError> {
        Self::over(stream, called, false)
    }

    fn over(mut stream: Tcp, called: Option<SocketAddr>, is_client: bool) -> Result<Self, ExchangeError> {
        let address = canonical(stream.peer_addr());
        let peer = address.to_string();
        let set = stream.set_write_timeout(Some(PATIENCE));
        set.map_err(|source| ExchangeError::Broken { what: "anything", peer: peer.clone(), source })?;
        // The new span must not belong to the span of connecting, which ends here.
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

    /// Lets a server send packets to these addresses of the client, too.
    #[must_use]
    pub fn allow_peers(mut self, others: &[IpAddr]) -> Self {
        self.peers = self.peers.and(others);
        self
    }

    /// Lets a server send packets to any address that the client names. Only for two processes of one
    /// program.
    #[must_use]
    pub fn allow_any_peer(mut self) -> Self {
        self.peers = self.peers.or_any();
        self
    }

    /// Returns the name of the other side.
    #[must_use]
    pub fn peer(&self) -> &str {
        &self.peer
    }

    /// Returns the address of the other side.
    #[must_use]
    pub fn peer_address(&self) -> IpAddr {
        canonical(self.lines.stream().peer_addr()).ip()
    }

    /// Returns the addresses that packets for the other side may go to.
    #[must_use]
    pub fn peers(&self) -> &PeerAddresses {
        &self.peers
    }

    /// Returns the address of this side that the client called, with its zone. Returns `None` for a TCP of
    /// the device itself.
    #[must_use]
    pub fn called(&self) -> Option<SocketAddr> {
        self.called
    }

    /// Exchanges greetings. Both sides must run the same tool in the same version. A client waits here for
    /// its turn. For a server, the time limit of the set-up begins.
    ///
    /// # Errors
    ///
    /// The other side runs something else, or does not send its greeting in time.
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

    /// Replaces the time limit of the set-up by one limit for all further lines together. With `None`, the
    /// measurement begins, and each line has its own limit.
    pub fn limit(&mut self, limit: Option<Duration>) {
        self.limited_until = limit.map(|limit| (Instant::now() + limit, limit));
    }

    /// Returns whether all further lines together have one time limit, as during the set-up.
    #[must_use]
    pub const fn is_limited(&self) -> bool {
        self.limited_until.is_some()
    }

    /// Sends one value.
    ///
    /// # Errors
    ///
    /// The connection is broken.
    pub fn send<T: Serialize>(&mut self, what: &'static str, value: &T) -> Result<(), ExchangeError> {
        let _send = tracing::trace_span!(parent: &self.span, "send", what).entered();
        let broken = |source| ExchangeError::Broken { what, peer: self.peer.clone(), source };
        let mut line = serde_json::to_vec(value).map_err(|error| broken(error.into()))?;
        line.push(b'\n');
        match self.lines.stream_mut().write_all(&line) {
            Ok(()) => Ok(()),
            // The other side may have sent the reason before it closed the connection.
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
    /// The connection is broken or closed, the other side failed, or the line contains something else.
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

    fn line_error(&self, error: LineError, what: &'static str, patience: Duration) -> ExchangeError {
        let peer = self.peer.clone();
        match error {
            LineError::Ended => ExchangeError::Closed { what, peer },
            LineError::Late => ExchangeError::Silent { what, peer, patience },
            LineError::NotALine(reason) => self.unexpected(what, reason),
            LineError::Io(source) => ExchangeError::Broken { what, peer, source },
        }
    }

    /// Sends one value and receives one.
    ///
    /// # Errors
    ///
    /// The errors of [`Self::send`] and [`Self::receive`].
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
    /// The errors of [`Self::swap`].
    pub fn barrier(&mut self) -> Result<(), ExchangeError> {
        self.swap::<_, u32>("a barrier", &0).map(|_| ())
    }

    /// Returns, without waiting, whether the other side has sent something or closed the connection. A server
    /// that spins for completions calls it regularly.
    ///
    /// # Errors
    ///
    /// The connection is broken.
    pub fn has_input(&mut self) -> Result<bool, ExchangeError> {
        match self.lines.has_input() {
            Ok(has_input) => Ok(has_input),
            // The other side has left; the next read reports it.
            Err(error) if error.kind() == io::ErrorKind::ConnectionReset => Ok(true),
            Err(source) => Err(ExchangeError::Broken { what: "anything", peer: self.peer.clone(), source }),
        }
    }

    /// Checks, without waiting, that the other side is still there. A side that waits for packets calls it
    /// regularly.
    ///
    /// # Errors
    ///
    /// The other side has closed the connection, or failed; the error contains its reason.
    pub fn watch(&mut self) -> Result<(), ExchangeError> {
        let has_ended = self.lines.take_in().is_err() || self.lines.has_ended();
        match self.lines.peek() {
            Some(line) => match Notice::parse(line) {
                Some(Notice::Failed(reason)) => Err(self.failed(&reason)),
                // The line is an answer, which is taken in its turn.
                _ => Ok(()),
            },
            None if has_ended => Err(ExchangeError::Left { peer: self.peer.clone() }),
            None => Ok(()),
        }
    }

    /// Sends the other side the reason why this side ends. Errors are ignored, because the other side may be
    /// gone.
    pub fn fail(&mut self, reason: &str) {
        if self.send("the reason of the failure", &Notice::Failed(reason.to_owned())).is_err() {
            return;
        }
        // Closing a connection with unread bytes resets it, and the reset could discard the line. The other
        // side closes the connection after it has read the line.
        let end = Instant::now() + FAREWELL;
        self.lines.discard_until(end);
    }

    /// Tells a waiting client its place in the queue, without waiting.
    pub(crate) fn tell_busy(&mut self, busy: &Busy) -> Result<(), ExchangeError> {
        let patience = self.lines.stream_mut().set_write_timeout(Some(Duration::from_millis(20)));
        let broken = |source| ExchangeError::Broken { what: "the queue", peer: self.peer.clone(), source };
        patience.map_err(broken)?;
        let sent = self.send("the position in the queue", &Notice::Busy(busy.clone()));
        self.lines
            .stream_mut()
            .set_write_timeout(Some(PATIENCE))
            .map_err(|source| ExchangeError::Broken { what: "the queue", peer: self.peer.clone(), source })?;
        sent
    }

    /// Returns whether the other side has closed the connection.
    pub(crate) fn has_left(&mut self) -> bool {
        self.lines.take_in().is_err() || self.lines.has_ended()
    }
}
