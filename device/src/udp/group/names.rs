//! The names by which the processes of an address find each other: abstract UNIX sockets, which the kernel
//! removes with their process. Like addresses, they belong to a network namespace.

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

    /// Returns the name that a process holds while it joins or creates the group.
    pub(super) fn lock(&self) -> String {
        format!("{}/lock", self.prefix)
    }

    /// Returns the name that the process with this slot holds.
    pub(super) fn slot(&self, slot: ProcessSlot) -> String {
        format!("{}/{slot}", self.prefix)
    }

    /// Returns the name that the process which accepts connection requests for this service holds.
    pub(super) fn service(&self, service_id: u64) -> String {
        format!("{}/service/{service_id:016x}", self.prefix)
    }
}

/// Takes a name and listens there with this backlog; `AddrInUse` if another socket has the name.
pub(super) fn bind(name: &str, backlog: i32) -> io::Result<OwnedFd> {
    let socket = new_socket()?;
    bind_to(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes())?)?;
    listen(&socket, backlog)?;
    Ok(socket)
}

/// Connects to the holder of a name without waiting; `ConnectionRefused` if there is no holder, and
/// `WouldBlock` if its queue of connections is full.
pub(super) fn connect(name: &str) -> io::Result<OwnedFd> {
    let socket = new_socket()?;
    connect_to(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes())?)?;
    Ok(socket)
}

/// Connects like [`connect`], but waits this long for room in the queue. The kernel wakes waiting threads in
/// turn, so this succeeds even if other processes refill the queue at once.
pub(super) fn connect_within(name: &str, patience: Duration) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC;
    let socket = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Send, Some(patience))?;
    connect_to(&socket, &SocketAddrUnix::new_abstract_name(name.as_bytes())?)?;
    rustix::io::ioctl_fionbio(&socket, true)?;
    Ok(socket)
}

/// Opens a socket that preserves message boundaries and limits its queue in bytes. Datagram sockets have room
/// for only 10 messages, which is not enough.
fn new_socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(aside(socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?))
}

/// The process at the other end of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Peer {
    /// 0 if the process is in another PID namespace.
    pub(super) pid: u32,
    pub(super) uid: u32,
}

impl Peer {
    pub(super) fn of(socket: impl AsFd) -> io::Result<Self> {
        let [pid, uid, _gid] = numbers_of(socket, libc::SOL_SOCKET, libc::SO_PEERCRED)?;
        Ok(Self { pid, uid })
    }

    /// Returns whether this process shares an address with the peer, which then can receive its datagrams.
    pub(super) fn is_trusted(self) -> bool {
        let everybody = std::env::var_os("ROCE_SHARE").is_some_and(|wish| wish == "all");
        everybody || users::is_own_or_root(self.uid)
    }

    /// Returns why a process is not trusted, as a clause that ends with the next step.
    pub(super) fn refusal(self) -> String {
        if users::identifies(self.uid) {
            format!(
                "{self} uses it, and processes of different users share an address only if each of them has ROCE_SHARE=all in \
                 its environment; set it for each process, or use another address"
            )
        } else {
            format!(
                "{self} uses it, and user {} stands for every user that this user namespace does not map; run as a mapped \
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

/// Maximum number of connections to a member that are not accepted yet.
pub(super) const BACKLOG: i32 = 128;
