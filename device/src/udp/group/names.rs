//! The names by which the processes of an address find each other: abstract UNIX sockets, which the kernel removes with
//! their process. They belong to a network namespace, as addresses do.

use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind as bind_to, connect as connect_to, listen,
    socket_with, sockopt,
};

use crate::descriptors::aside;
use crate::sockets::numbers_of;
use crate::users;
use roce_packet::ROCE_UDP_PORT;
use roce_transport::ProcessSlot;

/// The names of one address.
#[derive(Clone, Debug)]
pub(super) struct Names {
    pub(super) prefix: String,
}

impl Names {
    pub(super) fn new(local: SocketAddr) -> Self {
        let scope = match local {
            SocketAddr::V6(local) if local.scope_id() != 0 => format!("%{}", local.scope_id()),
            SocketAddr::V6(_) | SocketAddr::V4(_) => String::new(),
        };
        let address = match (local.ip(), local.port()) {
            (address, ROCE_UDP_PORT) => format!("{address}{scope}"),
            (IpAddr::V4(address), port) => format!("{address}:{port}"),
            (IpAddr::V6(address), port) => format!("[{address}{scope}]:{port}"),
        };
        Self { prefix: format!("roce/{address}") }
    }

    /// Held by the process that joins or makes the group just now.
    pub(super) fn lock(&self) -> String {
        format!("{}/lock", self.prefix)
    }

    /// Held by the process that has this slot.
    pub(super) fn slot(&self, slot: ProcessSlot) -> String {
        format!("{}/{slot}", self.prefix)
    }

    /// Held by the process that takes connection requests for this service.
    pub(super) fn service(&self, service_id: u64) -> String {
        format!("{}/service/{service_id:016x}", self.prefix)
    }
}

/// Takes a name and listens there, with room for this many connections that are not accepted yet; `AddrInUse` if another socket has it.
pub(super) fn bind(name: &str, backlog: i32) -> io::Result<OwnedFd> {
    let socket = new_socket()?;
    bind_to(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes())?)?;
    listen(&socket, backlog)?;
    Ok(socket)
}

/// Connects to the process that holds a name, without waiting; `ConnectionRefused` if none does, and `WouldBlock` if its queue
/// of connections is full.
pub(super) fn connect(name: &str) -> io::Result<OwnedFd> {
    let socket = new_socket()?;
    connect_to(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes())?)?;
    Ok(socket)
}

/// Connects as [`connect`] does, but waits this long for room in the queue. The kernel wakes the waiting threads in turn, so this
/// succeeds even if other processes fill the queue again at once.
pub(super) fn connect_within(name: &str, patience: Duration) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Send, Some(patience))?;
    connect_to(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes())?)?;
    rustix::io::ioctl_fionbio(&socket, true)?;
    Ok(socket)
}

/// Messages keep their limits, and a sender finds the queue full after bytes: the 10 messages that datagram sockets have
/// room for are not enough.
fn new_socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(aside(socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?))
}

/// The process at the other end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Peer {
    /// 0 if it is in another PID namespace.
    pub(super) pid: u32,
    pub(super) uid: u32,
}

impl Peer {
    pub(super) fn of(socket: impl AsFd) -> io::Result<Self> {
        let [pid, uid, _gid] = numbers_of(socket, libc::SOL_SOCKET, libc::SO_PEERCRED)?;
        Ok(Self { pid, uid })
    }

    /// Whether this process shares an address with that one: a process that has the sockets of an address gets what arrives there.
    pub(super) fn is_trusted(self) -> bool {
        let everybody = std::env::var_os("ROCE_SHARE").is_some_and(|wish| wish == "all");
        everybody || users::is_own_or_root(self.uid)
    }

    /// Why a process that is not trusted is not, as a clause that ends with the next step.
    pub(super) fn refusal(self) -> String {
        if users::identifies(self.uid) {
            format!(
                "{self} has it, and processes of different users share an address only if each of them has ROCE_SHARE=all \
                 in its environment; or use another address"
            )
        } else {
            format!(
                "{self} has it, and user {} stands for every user that this user namespace does not map; run as a mapped \
                 user, use another address, or set ROCE_SHARE=all for each process",
                self.uid
            )
        }
    }
}

impl std::fmt::Display for Peer {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.pid {
            0 => write!(formatter, "a process in another PID namespace (user {})", self.uid),
            pid => write!(formatter, "process {pid} (user {})", self.uid),
        }
    }
}

/// Connections to a member that are not accepted yet.
pub(super) const BACKLOG: i32 = 128;
