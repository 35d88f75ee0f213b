//! The calls for TCP sockets of the host.

use std::io;
use std::net::{IpAddr, SocketAddr};

use roce_transport::Instant;
use smoltcp::socket::tcp::{RecvError, Socket, State};
use smoltcp::wire::IpEndpoint;

use super::OwnHost;
use super::neighbours::Neighbours;
use super::routes::Route;
use super::sockets::{
    BACKLOG, Connection, HALF_OPEN_KEEP_ALIVE, HALF_OPEN_SILENCE, KEEP_ALIVE, Listener, SILENCE, set_patience,
};
use super::stack::to_stack;
use crate::framed::Unreachable;
use crate::{HostTcp, TcpId};

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
