//! TCP from the address of a device. If the kernel has that address, the kernel's TCP is used. A TAP device,
//! whose address the kernel does not have, contains its own TCP ([`HostTcp`]).

use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, SocketAddrV6, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::time::Duration;

use roce_transport::Instant;

use crate::device::{HostTcp, TcpId};
use crate::driver::wake::wait_readable;
use crate::verbs::{Context, GidEntry};

/// Maximum duration of connecting with the device's own TCP.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(30);
/// Interval at which a thread with a timeout checks for a connection.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Maximum time that dropping a connection waits until the peer has acknowledged all data.
const LINGER: Duration = Duration::from_secs(1);

/// A TCP connection. Dropping it sends all written data and closes it.
#[derive(Debug)]
pub struct Tcp {
    transport: Transport,
    peer: SocketAddr,
}

#[derive(Debug)]
enum Transport {
    Kernel(TcpStream),
    Own(Connection),
}

/// A connection through the device.
#[derive(Debug)]
struct Connection {
    context: Context,
    id: TcpId,
    read_timeout: Option<Duration>,
    write_timeout: Option<Duration>,
}

impl Tcp {
    /// Connects to `peer`. If the device has its own TCP, the connection comes from the address of the
    /// device.
    ///
    /// # Errors
    ///
    /// Fails if the peer does not answer or does not listen there, or the device has no address of that
    /// family.
    pub fn connect(context: &Context, peer: SocketAddr) -> io::Result<Self> {
        if !has_own_tcp(context) {
            return Self::try_from(TcpStream::connect(peer)?);
        }
        Self::connect_own(context, peer, CONNECT_TIMEOUT)
    }

    /// Connects like [`connect`](Self::connect), with a timeout.
    ///
    /// # Errors
    ///
    /// Fails like [`connect`](Self::connect), with `TimedOut` if the timeout passes, or if the timeout is
    /// zero.
    pub fn connect_within(context: &Context, peer: SocketAddr, timeout: Duration) -> io::Result<Self> {
        if !has_own_tcp(context) {
            return Self::try_from(TcpStream::connect_timeout(&peer, timeout)?);
        }
        Self::connect_own(context, peer, timeout)
    }

    fn connect_own(context: &Context, peer: SocketAddr, timeout: Duration) -> io::Result<Self> {
        let id = until(context, None, |tcp, now| tcp.connect(now, peer))?;
        let connection = Connection::new(context, id);
        until(context, Some(timeout), |tcp, now| tcp.check_connected(now, id))?;
        Ok(Self { transport: Transport::Own(connection), peer })
    }

    /// Returns the address and port of the peer.
    #[must_use]
    pub fn peer_addr(&self) -> SocketAddr {
        self.peer
    }

    /// Sets how long [`Read::read`] waits before it fails with `WouldBlock` or `TimedOut`; `None` waits
    /// forever.
    ///
    /// # Errors
    ///
    /// Fails if the timeout is zero.
    pub fn set_read_timeout(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        match &mut self.transport {
            Transport::Kernel(stream) => stream.set_read_timeout(timeout),
            Transport::Own(connection) => {
                connection.read_timeout = not_zero(timeout)?;
                Ok(())
            }
        }
    }

    /// Sets how long [`Write::write`] waits before it fails with `WouldBlock` or `TimedOut`; `None` waits
    /// forever.
    ///
    /// # Errors
    ///
    /// Fails if the timeout is zero.
    pub fn set_write_timeout(&mut self, timeout: Option<Duration>) -> io::Result<()> {
        match &mut self.transport {
            Transport::Kernel(stream) => stream.set_write_timeout(timeout),
            Transport::Own(connection) => {
                connection.write_timeout = not_zero(timeout)?;
                Ok(())
            }
        }
    }

    /// Returns whether [`Read::read`] would return at once, with bytes or because the connection has ended.
    ///
    /// # Errors
    ///
    /// Fails if the connection broke.
    pub fn has_input(&mut self) -> io::Result<bool> {
        match &mut self.transport {
            Transport::Kernel(stream) => {
                stream.set_nonblocking(true)?;
                let peeked = stream.peek(&mut [0]);
                stream.set_nonblocking(false)?;
                match peeked {
                    Ok(_) => Ok(true),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
                    Err(error) => Err(error),
                }
            }
            Transport::Own(Connection { context, id, .. }) => {
                context.progress();
                attempt(context, |tcp, _| Ok(tcp.is_readable(*id)))
            }
        }
    }
}

impl TryFrom<TcpStream> for Tcp {
    type Error = io::Error;

    /// Wraps a connection of the kernel.
    fn try_from(stream: TcpStream) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        let peer = stream.peer_addr()?;
        Ok(Self { transport: Transport::Kernel(stream), peer })
    }
}

impl Read for Tcp {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            // The kernel would wait for data.
            return Ok(0);
        }
        match &mut self.transport {
            Transport::Kernel(stream) => stream.read(buffer),
            Transport::Own(Connection { context, id, read_timeout, .. }) => {
                until(context, *read_timeout, |tcp, _| tcp.read(*id, buffer))
            }
        }
    }
}

impl Write for Tcp {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.is_empty() {
            return Ok(0);
        }
        match &mut self.transport {
            Transport::Kernel(stream) => stream.write(bytes),
            Transport::Own(Connection { context, id, write_timeout, .. }) => {
                until(context, *write_timeout, |tcp, _| tcp.write(*id, bytes))
            }
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Connection {
    fn new(context: &Context, id: TcpId) -> Self {
        Self { context: context.clone(), id, read_timeout: None, write_timeout: None }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let Self { context, id, .. } = self;
        if !std::thread::panicking() {
            // The process may end together with the device, and then nothing is retransmitted. A peer that
            // does not acknowledge the data in time does not receive them.
            let _ = until(context, Some(LINGER), |tcp, _| match tcp.unacknowledged(*id) {
                0 => Ok(()),
                _ => Err(io::ErrorKind::WouldBlock.into()),
            });
        }
        // Fails only on a device without its own TCP, but this device has one.
        let _ = attempt(context, |tcp, _| {
            tcp.close(*id);
            Ok(())
        });
    }
}

/// A listener for TCP connections on the address of a device.
#[derive(Debug)]
pub struct TcpListening {
    listeners: Listening,
    address: SocketAddr,
}

#[derive(Debug)]
enum Listening {
    /// One non-blocking listener for each address.
    Kernel(Vec<TcpListener>),
    Own {
        context: Context,
        id: TcpId,
    },
}

/// Returns the other addresses of a device, each once.
fn others(context: &Context, first: IpAddr) -> Vec<IpAddr> {
    let mut addresses = Vec::new();
    for address in context.gid_table().iter().map(GidEntry::address) {
        if address != first && !addresses.contains(&address) {
            addresses.push(address);
        }
    }
    addresses
}

/// Returns the socket address for the kernel. A link-local address needs its interface.
fn with_scope(context: &Context, address: IpAddr, port: u16) -> SocketAddr {
    let scope_id = context.runtime().lock().nic.device().scope_id();
    match (address, scope_id) {
        (IpAddr::V6(address), Some(scope_id)) if address.is_unicast_link_local() => {
            SocketAddrV6::new(address, port, 0, scope_id).into()
        }
        _ => SocketAddr::new(address, port),
    }
}

impl TcpListening {
    /// Listens on `port` of all addresses of a device, or on a free port if `port` is 0.
    ///
    /// # Errors
    ///
    /// Fails if the port is taken, or the device has no address.
    pub fn bind(context: &Context, port: u16) -> io::Result<Self> {
        let address = context.address().ok_or(io::ErrorKind::AddrNotAvailable)?;
        Self::bind_all(context, address, port, &others(context, address))
    }

    /// Listens on one address of the device alone. The device's own TCP always listens on all of them.
    ///
    /// # Errors
    ///
    /// Fails if the port is taken, or the device does not have the address.
    pub fn bind_at(context: &Context, address: IpAddr, port: u16) -> io::Result<Self> {
        Self::bind_all(context, address, port, &[])
    }

    fn bind_all(context: &Context, address: IpAddr, port: u16, others: &[IpAddr]) -> io::Result<Self> {
        if !has_own_tcp(context) {
            let first = TcpListener::bind(with_scope(context, address, port))?;
            let address = first.local_addr()?;
            let mut listeners = vec![first];
            for other in others {
                // Some addresses in the GID table do not support listening, for example one that only RoCE v1
                // uses.
                listeners.extend(TcpListener::bind(with_scope(context, *other, address.port())));
            }
            listeners.iter().try_for_each(|listener| listener.set_nonblocking(true))?;
            return Ok(Self { listeners: Listening::Kernel(listeners), address });
        }
        let (id, port) = until(context, None, |tcp, _| tcp.listen(port))?;
        let listeners = Listening::Own { context: context.clone(), id };
        Ok(Self { listeners, address: SocketAddr::new(address, port) })
    }

    /// Returns the local address.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Waits for a connection.
    ///
    /// # Errors
    ///
    /// Fails if the device failed, or too many sockets are open.
    pub fn accept(&self) -> io::Result<Tcp> {
        match &self.listeners {
            Listening::Kernel(_) => loop {
                // Rechecks periodically, because one wait covers only the first addresses.
                if let Some(accepted) = self.accept_within(Duration::from_millis(100))? {
                    return Ok(accepted);
                }
            },
            Listening::Own { context, id } => {
                let (id, peer) = until(context, None, |tcp, _| tcp.accept(*id))?;
                Ok(Tcp { transport: Transport::Own(Connection::new(context, id)), peer })
            }
        }
    }

    /// Waits for a connection, at most for `timeout`. With the device's own TCP, this thread checks only
    /// periodically and leaves the device to other threads, which may be measuring on it.
    ///
    /// # Errors
    ///
    /// Fails like [`accept`](Self::accept).
    pub fn accept_within(&self, timeout: Duration) -> io::Result<Option<Tcp>> {
        match &self.listeners {
            Listening::Kernel(listeners) => {
                let accepted = accept_one(listeners)?;
                if accepted.is_some() {
                    return Ok(accepted);
                }
                wait_readable(listeners.iter().map(AsFd::as_fd), Some(timeout))?;
                accept_one(listeners)
            }
            Listening::Own { context, id } => {
                let end = std::time::Instant::now() + timeout;
                loop {
                    match attempt(context, |tcp, _| tcp.accept(*id)) {
                        Ok((id, peer)) => {
                            let transport = Transport::Own(Connection::new(context, id));
                            return Ok(Some(Tcp { transport, peer }));
                        }
                        Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                        Err(error) => return Err(error),
                    }
                    let left = end.saturating_duration_since(std::time::Instant::now());
                    if left.is_zero() {
                        return Ok(None);
                    }
                    std::thread::sleep(left.min(LOOK_EVERY));
                }
            }
        }
    }
}

fn accept_one(listeners: &[TcpListener]) -> io::Result<Option<Tcp>> {
    for listener in listeners {
        match listener.accept() {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            other => return Tcp::try_from(other?.0).map(Some),
        }
    }
    Ok(None)
}

impl Drop for TcpListening {
    fn drop(&mut self) {
        if let Listening::Own { context, id } = &self.listeners {
            // Fails only on a device without its own TCP.
            let _ = attempt(context, |tcp, _| {
                tcp.close(*id);
                Ok(())
            });
        }
    }
}

fn not_zero(timeout: Option<Duration>) -> io::Result<Option<Duration>> {
    if timeout == Some(Duration::ZERO) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "a timeout of zero"));
    }
    Ok(timeout)
}

fn has_own_tcp(context: &Context) -> bool {
    context.runtime().lock().nic.device_mut().host_tcp().is_some()
}

/// Calls the TCP of the device, and sends the resulting packets.
fn attempt<T>(
    context: &Context,
    call: impl FnOnce(&mut dyn HostTcp, Instant) -> io::Result<T>,
) -> io::Result<T> {
    let mut state = context.runtime().lock();
    let now = state.nic.now();
    let result = match state.nic.device_mut().host_tcp() {
        Some(tcp) => call(tcp, now),
        None => Err(io::Error::new(io::ErrorKind::Unsupported, "this device does not support TCP")),
    };
    state.transmit();
    result
}

/// Calls the TCP of the device until the call does not fail with `WouldBlock`, or the timeout passes.
fn until<T>(
    context: &Context,
    timeout: Option<Duration>,
    mut call: impl FnMut(&mut dyn HostTcp, Instant) -> io::Result<T>,
) -> io::Result<T> {
    context.runtime().wait(timeout, None, || match attempt(context, &mut call) {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
        result => result.map(Some),
    })
}
