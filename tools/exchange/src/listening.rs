//! The sockets that servers listen on.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6, TcpListener};
use std::time::Duration;

use roce::tcp::{Tcp, TcpListening};
use roce::verbs::{Context, GidEntry};
use roce_device::{LocalAddress, local_addresses};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::connect::{canonical, is_of_kernel};
use crate::error::ExchangeError;

/// A TCP port on some or all addresses of this machine.
#[derive(Debug)]
pub struct Listening {
    sockets: Sockets,
    port: u16,
}

#[derive(Debug)]
enum Sockets {
    /// Listeners of the kernel; none of them blocks.
    Kernel(Vec<TcpListener>),
    /// A listener of the device's own host.
    Device(TcpListening),
}

impl Listening {
    /// Listens on every IPv4 and IPv6 address of this machine. Port 0 selects a free port.
    ///
    /// # Errors
    ///
    /// The port is taken.
    pub fn everywhere(port: u16) -> Result<Self, ExchangeError> {
        let failed = |source| ExchangeError::Listen { address: format!("TCP port {port}"), source };
        let (v6, v4) = ((Ipv6Addr::UNSPECIFIED, port), (Ipv4Addr::UNSPECIFIED, port));
        let listeners = match TcpListener::bind(v6) {
            Ok(listener) => {
                // This listener takes IPv4 as well, unless net.ipv6.bindv6only is set.
                let port = listener.local_addr().map_err(failed)?.port();
                let v4 = TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).ok();
                std::iter::once(listener).chain(v4).collect()
            }
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => return Err(failed(error)),
            // The machine does not support IPv6.
            Err(_) => vec![TcpListener::bind(v4).map_err(failed)?],
        };
        Self::of_kernel(listeners).map_err(failed)
    }

    /// Listens on the addresses of a device. If all of them have one IP version, it also listens on the
    /// addresses of the other version at the same interface: a client may run the exchange over IPv4 for
    /// packets over IPv6.
    ///
    /// # Errors
    ///
    /// The port is taken, or the device has no address.
    pub fn of_device(context: &Context, port: u16) -> Result<Self, ExchangeError> {
        let addresses: Vec<IpAddr> = context.gid_table().iter().map(GidEntry::address).collect();
        let first = context.address().or_else(|| addresses.first().copied());
        let failed = |source| ExchangeError::Listen {
            address: first
                .map_or_else(|| "the device".into(), |first| SocketAddr::new(first, port).to_string()),
            source,
        };
        let Some(first) = first else { return Err(failed(unsupported("the device has no address"))) };
        if is_of_kernel(first) {
            return Self::bind_all(first, &addresses, port).map_err(failed);
        }
        let listening = TcpListening::bind(context, port).map_err(failed)?;
        let port = listening.local_addr().port();
        Ok(Self { sockets: Sockets::Device(listening), port })
    }

    /// Listens on one address of the kernel, and on the other addresses of a device where possible.
    ///
    /// # Errors
    ///
    /// The port is taken, or the address is not the kernel's.
    pub fn at(first: IpAddr, others: &[IpAddr], port: u16) -> Result<Self, ExchangeError> {
        let failed =
            |source| ExchangeError::Listen { address: SocketAddr::new(first, port).to_string(), source };
        Self::bind_all(first, others, port).map_err(failed)
    }

    fn bind_all(first: IpAddr, others: &[IpAddr], port: u16) -> io::Result<Self> {
        let local = local_addresses().unwrap_or_default();
        let interface = local.iter().find(|local| local.address == first).map(|local| local.index);
        let with_zone = |address: IpAddr, port: u16| match address {
            IpAddr::V6(v6) if v6.is_unicast_link_local() => {
                SocketAddrV6::new(v6, port, 0, interface.unwrap_or(0)).into()
            }
            address => SocketAddr::new(address, port),
        };
        let listener = TcpListener::bind(with_zone(first, port))?;
        let port = listener.local_addr()?.port();
        let mut addresses = vec![first];
        addresses.extend(others.iter().filter(|other| **other != first));
        for is_ipv4 in [true, false] {
            if addresses.iter().all(|address| address.is_ipv4() != is_ipv4) {
                let of_interface = local.iter().filter(|local| Some(local.index) == interface);
                addresses
                    .extend(of_interface.map(|local| local.address).filter(|it| it.is_ipv4() == is_ipv4));
            }
        }
        // Not every address of a GID table can be listened on. Another server may use an address that the
        // device does not have.
        let others = addresses.into_iter().skip(1);
        let others = others.filter_map(|other| TcpListener::bind(with_zone(other, port)).ok());
        Self::of_kernel(std::iter::once(listener).chain(others).collect())
    }

    fn of_kernel(listeners: Vec<TcpListener>) -> io::Result<Self> {
        listeners.iter().try_for_each(|listener| listener.set_nonblocking(true))?;
        let first = listeners.first().map(TcpListener::local_addr);
        let port = first.transpose()?.map_or(0, |address| address.port());
        Ok(Self { sockets: Sockets::Kernel(listeners), port })
    }

    /// Returns the port.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Waits up to `timeout` for a connection; also returns the address that the client called.
    ///
    /// # Errors
    ///
    /// The device failed, or there are too many sockets.
    pub fn accept_within(&self, timeout: Duration) -> io::Result<Option<(Tcp, Option<SocketAddr>)>> {
        match &self.sockets {
            Sockets::Kernel(listeners) => {
                if let Some(accepted) = accept_one(listeners)? {
                    return Ok(Some(accepted));
                }
                let mut polled: Vec<PollFd<'_>> =
                    listeners.iter().map(|listener| PollFd::new(listener, PollFlags::IN)).collect();
                match poll(&mut polled, Timespec::try_from(timeout).ok().as_ref()) {
                    Ok(_) | Err(rustix::io::Errno::INTR) => accept_one(listeners),
                    Err(error) => Err(error.into()),
                }
            }
            Sockets::Device(listening) => Ok(listening.accept_within(timeout)?.map(|tcp| (tcp, None))),
        }
    }

    /// Waits for a connection; also returns the address that the client called.
    ///
    /// # Errors
    ///
    /// The errors of [`accept_within`](Self::accept_within).
    pub fn accept(&self) -> io::Result<(Tcp, Option<SocketAddr>)> {
        loop {
            if let Some(accepted) = self.accept_within(Duration::from_secs(60))? {
                return Ok(accepted);
            }
        }
    }
}

fn accept_one(listeners: &[TcpListener]) -> io::Result<Option<(Tcp, Option<SocketAddr>)>> {
    for listener in listeners {
        match listener.accept() {
            Ok((stream, _)) => {
                stream.set_nonblocking(false)?;
                let called = stream.local_addr().ok().map(canonical);
                // A client that has left already is not an error of the listener.
                if let Ok(tcp) = Tcp::try_from(stream) {
                    return Ok(Some((tcp, called)));
                }
            }
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock | io::ErrorKind::ConnectionAborted | io::ErrorKind::Interrupted => {
                }
                _ => return Err(error),
            },
        }
    }
    Ok(None)
}

/// Returns the addresses of this machine that clients may call. Addresses that other machines reach come
/// first. Link-local addresses come last, because the client must add a zone to each.
#[must_use]
pub fn own_addresses() -> Vec<LocalAddress> {
    let mut addresses = local_addresses().unwrap_or_default();
    let is_link_local = |address: IpAddr| match address {
        IpAddr::V4(address) => address.is_link_local(),
        IpAddr::V6(address) => address.is_unicast_link_local(),
    };
    addresses.sort_by_key(|local| (local.is_loopback, is_link_local(local.address), local.address.is_ipv6()));
    addresses
}

/// Returns the error of an operation that a listener of the kernel does not support.
fn unsupported(text: &str) -> io::Error {
    io::Error::new(io::ErrorKind::Unsupported, text.to_owned())
}
