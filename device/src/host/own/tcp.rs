//! TCP sockets of the host.

use std::io;
use std::net::{IpAddr, SocketAddr};

use roce_transport::Instant;
use smoltcp::iface::{SocketHandle, SocketSet};
use smoltcp::socket::tcp::{RecvError, Socket, SocketBuffer, State};
use smoltcp::time::Duration as StackDuration;
use smoltcp::wire::IpEndpoint;

use super::OwnHost;
use super::neighbours::Neighbours;
use super::routes::Route;
use super::stack::to_stack;
use crate::framed::Unreachable;
use crate::{HostTcp, TcpId};

/// Bytes of each of the two queues of a socket.
const BUFFER: usize = 64 << 10;
/// Connections of one listener that are being established or wait to be accepted.
const BACKLOG: usize = 8;
/// Maximum number of sockets of a host, including those that are closing.
const MOST_SOCKETS: usize = 256;
/// Maximum silence of a peer, and interval of keep-alives to a silent peer.
const SILENCE: StackDuration = StackDuration::from_secs(30);
const KEEP_ALIVE: StackDuration = StackDuration::from_secs(10);
/// Limits for connections that are not accepted: half-open connections free their backlog slot sooner.
const HALF_OPEN_SILENCE: StackDuration = StackDuration::from_secs(5);
const HALF_OPEN_KEEP_ALIVE: StackDuration = StackDuration::from_secs(2);
/// The first ephemeral port (RFC 6335 section 6).
const FIRST_EPHEMERAL: u16 = 49_152;

/// All sockets of a host.
pub(super) struct Sockets {
    pub(super) set: SocketSet<'static>,
    listeners: Vec<Listener>,
    connections: Vec<Connection>,
    /// Closed by their owner, but with bytes still to be acknowledged.
    closing: Vec<SocketHandle>,
    next_id: u64,
    next_port: u16,
}

struct Listener {
    id: TcpId,
    port: u16,
    backlog: Vec<SocketHandle>,
}

#[derive(Clone, Copy)]
struct Connection {
    id: TcpId,
    handle: SocketHandle,
    peer: SocketAddr,
    /// When the connection was started.
    since: Instant,
}

impl Sockets {
    pub(super) fn new(set: SocketSet<'static>, seed: u64) -> Self {
        let next_port = FIRST_EPHEMERAL | (seed >> 32) as u16;
        Self {
            set,
            listeners: Vec::new(),
            connections: Vec::new(),
            closing: Vec::new(),
            next_id: 1,
            next_port,
        }
    }

    /// Makes sockets whose connection failed listen again.
    pub(super) fn listen_again(&mut self) {
        for listener in &self.listeners {
            for handle in &listener.backlog {
                let socket = self.set.get_mut::<Socket<'_>>(*handle);
                if !socket.is_open() {
                    // Only an open socket or port 0 would be refused.
                    let _ = socket.listen(listener.port);
                }
            }
        }
    }

    /// Removes fully closed sockets.
    pub(super) fn remove_closed(&mut self) {
        let set = &mut self.set;
        self.closing.retain(|handle| {
            let state = set.get_mut::<Socket<'_>>(*handle).state();
            let is_over = matches!(state, State::Closed | State::TimeWait);
            if is_over {
                set.remove(*handle);
            }
            !is_over
        });
    }

    fn make_id(&mut self) -> TcpId {
        let id = TcpId(self.next_id);
        self.next_id += 1;
        id
    }

    /// Creates a socket, if necessary by removing one that is closing.
    fn make_socket(&mut self) -> io::Result<SocketHandle> {
        let backlogs: usize = self.listeners.iter().map(|listener| listener.backlog.len()).sum();
        if backlogs + self.connections.len() + self.closing.len() >= MOST_SOCKETS {
            if self.closing.is_empty() {
                let text = format!("this host has {MOST_SOCKETS} TCP sockets already");
                return Err(io::Error::new(io::ErrorKind::QuotaExceeded, text));
            }
            self.set.remove(self.closing.remove(0));
        }
        let buffer = || SocketBuffer::new(vec![0; BUFFER]);
        let mut socket = Socket::new(buffer(), buffer());
        socket.set_nagle_enabled(false);
        socket.set_ack_delay(None);
        set_patience(&mut socket, SILENCE, KEEP_ALIVE);
        Ok(self.set.add(socket))
    }

    fn is_port_used(&self, port: u16) -> bool {
        self.listeners.iter().any(|listener| listener.port == port)
            || self.set.iter().any(|(_, socket)| {
                let smoltcp::socket::Socket::Tcp(socket) = socket else { return false };
                socket.local_endpoint().is_some_and(|local| local.port == port)
            })
    }

    fn free_port(&mut self) -> io::Result<u16> {
        for _ in 0..=u16::MAX - FIRST_EPHEMERAL {
            let port = self.next_port;
            self.next_port = FIRST_EPHEMERAL | port.wrapping_add(1);
            if !self.is_port_used(port) {
                return Ok(port);
            }
        }
        Err(io::Error::new(io::ErrorKind::AddrInUse, "every TCP port is in use"))
    }

    fn connection(&self, id: TcpId) -> io::Result<Connection> {
        let found = self.connections.iter().find(|connection| connection.id == id);
        found.copied().ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    fn socket(&self, id: TcpId) -> Option<&Socket<'static>> {
        Some(self.set.get(self.connection(id).ok()?.handle))
    }

    fn socket_mut(&mut self, id: TcpId) -> io::Result<&mut Socket<'static>> {
        let handle = self.connection(id)?.handle;
        Ok(self.set.get_mut(handle))
    }
}

fn set_patience(socket: &mut Socket<'static>, silence: StackDuration, keep_alive: StackDuration) {
    socket.set_timeout(Some(silence));
    socket.set_keep_alive(Some(keep_alive));
}

impl HostTcp for OwnHost {
    fn listen(&mut self, port: u16) -> io::Result<(TcpId, u16)> {
        let sockets = &mut self.stack.sockets;
        let port = if port == 0 { sockets.free_port()? } else { port };
        if sockets.listeners.iter().any(|listener| listener.port == port) {
            return Err(io::ErrorKind::AddrInUse.into());
        }
        let mut backlog = Vec::new();
        for _ in 0..BACKLOG {
            match sockets.make_socket() {
                Ok(handle) => {
                    set_patience(sockets.set.get_mut(handle), HALF_OPEN_SILENCE, HALF_OPEN_KEEP_ALIVE);
                    backlog.push(handle);
                }
                Err(error) => {
                    for handle in backlog {
                        sockets.set.remove(handle);
                    }
                    return Err(error);
                }
            }
        }
        let id = sockets.make_id();
        sockets.listeners.push(Listener { id, port, backlog });
        sockets.listen_again();
        Ok((id, port))
    }

    fn accept(&mut self, listener: TcpId) -> io::Result<(TcpId, SocketAddr)> {
        let sockets = &mut self.stack.sockets;
        let Some(place) = sockets.listeners.iter().position(|known| known.id == listener) else {
            return Err(io::ErrorKind::NotConnected.into());
        };
        let set = &sockets.set;
        let ready = sockets.listeners[place].backlog.iter().enumerate().find_map(|(index, handle)| {
            let socket = set.get::<Socket<'_>>(*handle);
            let is_there = matches!(socket.state(), State::Established | State::CloseWait);
            socket.remote_endpoint().filter(|_| is_there).map(|peer| (index, *handle, peer))
        });
        let Some((index, handle, peer)) = ready else { return Err(io::ErrorKind::WouldBlock.into()) };
        // The replacement goes to the end, so connections are accepted in order of arrival.
        let fresh = sockets.make_socket()?;
        set_patience(sockets.set.get_mut(fresh), HALF_OPEN_SILENCE, HALF_OPEN_KEEP_ALIVE);
        set_patience(sockets.set.get_mut(handle), SILENCE, KEEP_ALIVE);
        let backlog = &mut sockets.listeners[place].backlog;
        backlog.remove(index);
        backlog.push(fresh);
        let id = sockets.make_id();
        let peer = SocketAddr::from((IpAddr::from(peer.addr), peer.port));
        sockets.connections.push(Connection { id, handle, peer, since: Instant::ZERO });
        sockets.listen_again();
        Ok((id, peer))
    }

    fn connect(&mut self, now: Instant, peer: SocketAddr) -> io::Result<TcpId> {
        if let Route::None = self.routes.next_hop(peer.ip()) {
            let text = Unreachable::NoRoute.to_string();
            return Err(io::Error::new(io::ErrorKind::NetworkUnreachable, text));
        }
        let source = self.source_for(peer.ip()).ok_or_else(|| {
            let family = if peer.is_ipv4() { "IPv4" } else { "IPv6" };
            let text = format!("this host has no {family} address");
            io::Error::new(io::ErrorKind::AddrNotAvailable, text)
        })?;
        let sockets = &mut self.stack.sockets;
        let port = sockets.free_port()?;
        let handle = sockets.make_socket()?;
        let (local, remote) =
            (IpEndpoint::new(source.into(), port), IpEndpoint::new(peer.ip().into(), peer.port()));
        let socket = sockets.set.get_mut::<Socket<'_>>(handle);
        if let Err(error) = socket.connect(self.stack.interface.context(), remote, local) {
            sockets.set.remove(handle);
            return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{peer}: {error}")));
        }
        let id = sockets.make_id();
        sockets.connections.push(Connection { id, handle, peer, since: now });
        // The application requested this peer, unlike peers to which the stack only answers.
        let _ = self.look_up(now, peer.ip(), Neighbours::resolve);
        // The stack's clock may not have advanced for a long time.
        self.stack.interface.poll_maintenance(to_stack(now));
        self.stack.touch();
        Ok(id)
    }

    fn check_connected(&mut self, now: Instant, connection: TcpId) -> io::Result<()> {
        let Connection { handle, peer, since, .. } = self.stack.sockets.connection(connection)?;
        match self.stack.sockets.set.get::<Socket<'_>>(handle).state() {
            State::SynSent | State::SynReceived => match self.routes.next_hop(peer.ip()) {
                Route::Through(next_hop) if self.neighbours.has_failed(next_hop) => {
                    let text = Unreachable::NoAnswer { next_hop }.to_string();
                    Err(io::Error::new(io::ErrorKind::HostUnreachable, text))
                }
                _ => Err(io::ErrorKind::WouldBlock.into()),
            },
            State::Closed if now.since(since) < SILENCE.into() => {
                Err(io::ErrorKind::ConnectionRefused.into())
            }
            State::Closed => Err(io::ErrorKind::TimedOut.into()),
            _ => Ok(()),
        }
    }

    fn read(&mut self, connection: TcpId, buffer: &mut [u8]) -> io::Result<usize> {
        let socket = self.stack.sockets.socket_mut(connection)?;
        match socket.recv_slice(buffer) {
            Ok(0) if !buffer.is_empty() => Err(io::ErrorKind::WouldBlock.into()),
            Ok(len) => {
                // The window has opened.
                self.stack.touch();
                Ok(len)
            }
            Err(RecvError::Finished) => Ok(0),
            Err(RecvError::InvalidState) => Err(io::ErrorKind::ConnectionReset.into()),
        }
    }

    fn is_readable(&self, connection: TcpId) -> bool {
        self.stack.sockets.socket(connection).is_none_or(|socket| socket.can_recv() || !socket.may_recv())
    }

    fn write(&mut self, connection: TcpId, bytes: &[u8]) -> io::Result<usize> {
        let socket = self.stack.sockets.socket_mut(connection)?;
        match socket.send_slice(bytes) {
            Ok(0) if !bytes.is_empty() => Err(io::ErrorKind::WouldBlock.into()),
            Ok(len) => {
                self.stack.touch();
                Ok(len)
            }
            Err(_) => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }

    fn unacknowledged(&self, connection: TcpId) -> usize {
        let socket = self.stack.sockets.socket(connection);
        socket.filter(|socket| socket.is_active()).map_or(0, Socket::send_queue)
    }

    fn close(&mut self, id: TcpId) {
        let sockets = &mut self.stack.sockets;
        if let Ok(Connection { handle, .. }) = sockets.connection(id) {
            sockets.connections.retain(|connection| connection.id != id);
            sockets.set.get_mut::<Socket<'_>>(handle).close();
            sockets.closing.push(handle);
        }
        if let Some(place) = sockets.listeners.iter().position(|listener| listener.id == id) {
            for handle in sockets.listeners.remove(place).backlog {
                // A connected peer that was not accepted gets a reset.
                sockets.set.get_mut::<Socket<'_>>(handle).abort();
                sockets.closing.push(handle);
            }
        }
        self.stack.touch();
    }
}
