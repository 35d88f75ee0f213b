//! Making the sockets of a group, [`CHUNK`] at a time, so that each gets its position.
//!
//! The kernel numbers the sockets of a group in the order in which they are bound. If a socket closes, the
//! last one gets its number. So the sockets of the first slots are bound before any other program can use the
//! port, and later ones only while no other sockets have it.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;
use std::{fs, io, thread};

use socket2::Socket;

use super::filter;
use super::protocol::CHUNK;
use crate::sockets::receive_nothing;

/// Makes and binds the sockets of the [`CHUNK`] slots from `before` on. All but slot 0's drop datagrams.
pub(super) fn make_sockets(
    local: SocketAddr,
    before: usize,
    make: &impl Fn(SocketAddr) -> io::Result<Socket>,
) -> io::Result<Vec<Socket>> {
    if before > 0 {
        expect(local, before)?;
    }
    let mut sockets = Vec::with_capacity(CHUNK);
    for place in before..before + CHUNK {
        let socket = make(local)?;
        socket.set_reuse_port(true)?;
        if place == 0 {
            // Before the socket is bound: from now on, no other socket can use the port.
            filter::steer(&socket, CHUNK)?;
        } else {
            receive_nothing(&socket)?;
        }
        socket.bind(&local.into())?;
        sockets.push(socket);
    }
    if before > 0 {
        expect(local, before + CHUNK)?;
        filter::steer(&sockets[0], before + CHUNK)?;
    }
    Ok(sockets)
}

/// Returns an error unless this machine has exactly `count` sockets with the address and port.
///
/// The kernel prints its table page by page and finds its place again by counting, so each socket that closes
/// in the meantime may hide another one. So the sockets in any of [`LOOKS`] tables in a row count. Sockets of
/// a killed process may close with a delay, so there are more attempts.
fn expect(local: SocketAddr, count: usize) -> io::Result<()> {
    let (mut most, mut tables) = (0, Vec::new());
    for _ in 0..MOST_LOOKS {
        tables.push(sockets_at(local)?);
        let found = tables.iter().rev().take(LOOKS).flatten().collect::<BTreeSet<_>>().len();
        most = most.max(found);
        if found == count && tables.len() >= LOOKS {
            return Ok(());
        }
        thread::sleep(BETWEEN_LOOKS);
    }
    Err(io::Error::other(format!(
        "{most} sockets use the port instead of {count}, so another program uses it too; end that program (`ss -lunp 'sport = \
         :{}'` shows it)",
        local.port()
    )))
}

/// Returns the inodes of the sockets that have this address and port.
fn sockets_at(local: SocketAddr) -> io::Result<BTreeSet<u64>> {
    let (family, address) = match local.ip() {
        IpAddr::V4(address) => ("udp", address.octets().to_vec()),
        IpAddr::V6(address) => ("udp6", address.octets().to_vec()),
    };
    // The kernel prints words in the processor's byte order.
    let words = address.as_chunks().0.iter().map(|word| format!("{:08X}", u32::from_ne_bytes(*word)));
    let name = format!("{}:{:04X}", words.collect::<String>(), local.port());
    let table = format!("/proc/thread-self/net/{family}");
    let text = fs::read_to_string(&table)
        .map_err(|error| io::Error::other(format!("{table} cannot be read: {error}; use another address")))?;
    let inode_of = |line: &str| {
        let mut fields = line.split_whitespace();
        let is_there = fields.nth(1) == Some(&name);
        fields.nth(7).filter(|_| is_there).and_then(|inode| inode.parse().ok())
    };
    Ok(text.lines().filter_map(inode_of).collect())
}

/// Number of tables that count together. While a program opened and closed 500 sockets at a time, 30 % of the
/// tables lacked some sockets of another one, and four tables in a row the same one.
const LOOKS: usize = 16;
/// Time between two tables.
const BETWEEN_LOOKS: Duration = Duration::from_millis(2);
/// Maximum number of tables. If another program has the port, a device is refused after 0.2 s or more.
const MOST_LOOKS: usize = 100;
