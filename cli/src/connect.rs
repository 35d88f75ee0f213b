//! The address of a server, and the connection to it.

use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::time::Duration;

use anyhow::{Context as _, bail};

use roce::tcp::Tcp;
use roce::verbs::Context;
use roce_exchange::{connect_tcp, until_listening};

/// The port of the TCP exchange through which our own tools set up connections.
pub(super) const EXCHANGE_PORT: u16 = 18_520;
/// Time that a client waits for a server that was started at the same time.
pub(super) const LISTENING: Duration = Duration::from_secs(5);

/// Resolves a server given by the user: a name, or an address with or without a port.
pub(super) fn resolve(server: &str, port: u16) -> anyhow::Result<SocketAddr> {
    if let Ok(address) = server.parse::<IpAddr>() {
        return Ok(SocketAddr::new(address, port));
    }
    if let Ok(address) = server.parse::<SocketAddr>() {
        return Ok(address);
    }
    let found = (server, port).to_socket_addrs().with_context(|| format!("cannot resolve {server}"))?;
    let found: Vec<SocketAddr> = found.collect();
    // Client and server on one machine need two addresses, and IPv6 has only one loopback address.
    let loopback = found.iter().find(|address| address.is_ipv4() && address.ip().is_loopback());
    match loopback.or_else(|| found.first()) {
        Some(address) => Ok(*address),
        None => bail!("{server} has no address"),
    }
}

/// Repeats a connection attempt until the server listens, for [`LISTENING`] at most.
pub(super) fn connect_when_listening<T, E>(
    is_refused: impl Fn(&E) -> bool,
    connect: impl FnMut() -> Result<T, E>,
) -> Result<T, E> {
    until_listening(LISTENING, is_refused, connect)
}

/// Connects to the TCP exchange of a server from the address of later packets. Retries until the server
/// listens.
pub(super) fn connect_exchange(
    context: &Context,
    gid_index: Option<usize>,
    server: SocketAddr,
) -> io::Result<Tcp> {
    connect_when_listening(
        |error: &io::Error| error.kind() == io::ErrorKind::ConnectionRefused,
        || connect_tcp(context, gid_index, server, None),
    )
}
