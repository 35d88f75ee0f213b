//! The TCP sockets of the host.

use std::io;
use std::net::SocketAddr;

use roce_transport::Instant;
use smoltcp::iface::{SocketHandle, SocketSet};
use smoltcp::socket::tcp::{Socket, SocketBuffer, State};
use smoltcp::time::Duration as StackDuration;

use crate::TcpId;

/// Bytes of each of the two queues of a socket.
const BUFFER: usize = 64 << 10;
/// Connections of one listener that are being established or wait to be accepted.
pub(super) const BACKLOG: usize = 8;
/// Maximum number of sockets of a host, including those that are closing.
const MOST_SOCKETS: usize = 256;
/// Maximum silence of a peer, and interval of keep-alives to a silent peer.
pub(super) const SILENCE: StackDuration = StackDuration::from_secs(30);
pub(super) const KEEP_ALIVE: StackDuration = StackDuration::from_secs(10);
/// Limits for connections that are not accepted: half-open connections free their backlog slot sooner.
pub(super) const HALF_OPEN_SILENCE: StackDuration = StackDuration::from_secs(5);
pub(super) const HALF_OPEN_KEEP_ALIVE: StackDuration = StackDuration::from_secs(2);
/// The first ephemeral port (RFC 6335 section 6).
const FIRST_EPHEMERAL: u16 = 49_152;

/// All sockets of a host.
pub(super) struct Sockets {
    pub(super) set: SocketSet<'static>,
    pub(super) listeners: Vec<Listener>,
    pub(super) connections: Vec<Connection>,
    /// Closed by their owner, but with bytes still to be acknowledged.
    pub(super) closing: Vec<SocketHandle>,
    pub(super) next_id: u64,
    pub(super) next_port: u16,
}

pub(super) struct Listener {
    pub(super) id: TcpId,
    pub(super) port: u16,
    pub(super) backlog: Vec<SocketHandle>,
}

#[derive(Clone, Copy)]
pub(super) struct Connection {
    pub(super) id: TcpId,
    pub(super) handle: SocketHandle,
    pub(super) peer: SocketAddr,
    /// When the connection was started.
    pub(super) since: Instant,
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

    pub(super) fn make_id(&mut self) -> TcpId {
        let id = TcpId(self.next_id);
        self.next_id += 1;
        id
    }

    /// Creates a socket, if necessary by removing one that is closing.
    pub(super) fn make_socket(&mut self) -> io::Result<SocketHandle> {
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

    pub(super) fn is_port_used(&self, port: u16) -> bool {
        self.listeners.iter().any(|listener| listener.port == port)
            || self.set.iter().any(|(_, socket)| {
                let smoltcp::socket::Socket::Tcp(socket) = socket else { return false };
                socket.local_endpoint().is_some_and(|local| local.port == port)
            })
    }

    pub(super) fn free_port(&mut self) -> io::Result<u16> {
        for _ in 0..=u16::MAX - FIRST_EPHEMERAL {
            let port = self.next_port;
            self.next_port = FIRST_EPHEMERAL | port.wrapping_add(1);
            if !self.is_port_used(port) {
                return Ok(port);
            }
        }
        Err(io::Error::new(io::ErrorKind::AddrInUse, "every TCP port is in use"))
    }

    pub(super) fn connection(&self, id: TcpId) -> io::Result<Connection> {
        let found = self.connections.iter().find(|connection| connection.id == id);
        found.copied().ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    pub(super) fn socket(&self, id: TcpId) -> Option<&Socket<'static>> {
        Some(self.set.get(self.connection(id).ok()?.handle))
    }

    pub(super) fn socket_mut(&mut self, id: TcpId) -> io::Result<&mut Socket<'static>> {
        let handle = self.connection(id)?.handle;
        Ok(self.set.get_mut(handle))
    }
}

pub(super) fn set_patience(socket: &mut Socket<'static>, silence: StackDuration, keep_alive: StackDuration) {
    socket.set_timeout(Some(silence));
    socket.set_keep_alive(Some(keep_alive));
}
