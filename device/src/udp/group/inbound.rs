//! Requests from other processes of the address: for the sockets, or to deliver a datagram.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::os::fd::OwnedFd;

use roce_transport::Received;
use rustix::net::{RecvFlags, SendFlags, SocketFlags, accept_with, recv, send};

use super::escrow::Escrow;
use super::links;
use super::names::{self, BACKLOG, Names, Peer};
use super::protocol::{JOIN, REFUSED, watch};

/// The names that this process holds, and the connections to these names.
pub(super) struct Inbound {
    names: Names,
    /// Listeners by token: one for the slot's name and one for each service.
    listeners: BTreeMap<u64, OwnedFd>,
    /// Tokens of the services, by service ID.
    services: BTreeMap<u64, u64>,
    connections: BTreeMap<u64, Connection>,
    /// The token of the next listener or connection.
    next: u64,
    buffer: Vec<u8>,
}

/// A connection from a trusted process.
struct Connection {
    socket: OwnedFd,
    /// The token of the listener that accepted it.
    listener: u64,
}

/// Refuses an untrusted process. Its connection is not kept, so a user who makes many of them cannot displace
/// those of trusted processes.
fn refuse(socket: &OwnedFd) {
    // Read its request first: closing a connection with unread bytes makes the other side lose the answer.
    let _ = recv(socket, &mut [0_u8; 1], RecvFlags::DONTWAIT);
    let _ = send(socket, &[REFUSED], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
}

impl Inbound {
    pub(super) fn new(names: Names, listener: OwnedFd) -> Self {
        Self {
            names,
            listeners: BTreeMap::from([(LISTENER, listener)]),
            services: BTreeMap::new(),
            connections: BTreeMap::new(),
            next: LISTENER + 1,
            buffer: vec![0; 1 << 16],
        }
    }

    /// Returns whether connection requests for this service belong to this process.
    pub(super) fn has(&self, service_id: u64) -> bool {
        self.services.contains_key(&service_id)
    }

    pub(super) fn claim(&mut self, service_id: u64, rare: &OwnedFd) -> io::Result<()> {
        let listener = names::bind(&self.names.service(service_id), BACKLOG)?;
        watch(rare, &listener, self.next)?;
        self.listeners.insert(self.next, listener);
        self.services.insert(service_id, self.next);
        self.next += 1;
        Ok(())
    }

    pub(super) fn release(&mut self, service_id: u64) {
        if let Some(token) = self.services.remove(&service_id) {
            self.listeners.remove(&token);
            // Senders notice the closed connection and treat the service as released.
            self.connections.retain(|_, connection| connection.listener != token);
        }
    }

    /// Serves the listener or connection with this token and returns the number of datagrams received.
    pub(super) fn serve(
        &mut self,
        token: u64,
        rare: &OwnedFd,
        escrow: &Escrow,
        address: IpAddr,
        sink: &mut dyn FnMut(&Received<'_>),
    ) -> usize {
        if let Some(listener) = self.listeners.get(&token) {
            let mut accepted = Vec::new();
            for _ in 0..MOST_ACCEPTED {
                // The other side retries a connection that could not be accepted.
                let Ok(socket) = accept_with(listener, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC) else {
                    break;
                };
                if Peer::of(&socket).is_ok_and(Peer::is_trusted) {
                    accepted.push(socket);
                } else {
                    refuse(&socket);
                }
            }
            for socket in accepted {
                self.welcome(socket, token, rare);
            }
            return 0;
        }
        let Some(Connection { socket, .. }) = self.connections.get(&token) else { return 0 };
        let mut count = 0;
        for _ in 0..MOST_MESSAGES {
            let is_over = match recv(socket, &mut self.buffer[..], RecvFlags::DONTWAIT) {
                Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => return count,
                Ok((0, _)) | Err(_) => true,
                Ok(_) if self.buffer[0] == JOIN => {
                    if let Err(error) = escrow.pass_to(socket) {
                        tracing::warn!(%error, "a process that wants to share the address gets no sockets");
                    }
                    true
                }
                Ok((len, _)) => match self.buffer.get(..len).and_then(|it| links::read(it, address)) {
                    Some(received) => {
                        sink(&received);
                        count += 1;
                        false
                    }
                    None => true,
                },
            };
            if is_over {
                // Closing the connection stops watching it.
                self.connections.remove(&token);
                break;
            }
        }
        count
    }

    fn welcome(&mut self, socket: OwnedFd, listener: u64, rare: &OwnedFd) {
        if self.connections.len() >= MOST_CONNECTIONS {
            self.connections.pop_first();
        }
        if watch(rare, &socket, self.next).is_ok() {
            self.connections.insert(self.next, Connection { socket, listener });
            self.next += 1;
        }
    }
}

/// The token of the listener at the slot's name.
pub(super) const LISTENER: u64 = 0;
/// Each connection is a descriptor. Beyond this number, the oldest is closed, and its process reconnects.
const MOST_CONNECTIONS: usize = 160;
/// Maximum connections accepted per call: about 50 µs, at most every 100 µs, so a flood of connections leaves
/// the device half of its time.
const MOST_ACCEPTED: usize = 16;
/// Maximum messages read from one connection per call, so that others get their turn.
const MOST_MESSAGES: usize = 64;
