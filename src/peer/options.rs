//! How peers come about.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs, UdpSocket};

use roce_packet::mad::PortSpace;
use roce_transport::{Access, MAX_INLINE, QpCapabilities, QpType};

use super::calls::Peer;
use super::end::{Buffers, Parts};
use super::error::Error;
use super::offer::{MOST_BYTES, Offer};
use crate::verbs::{
    CmListener, ConnectRequest, Connection, ConnectionParameters, Context, PathMtu, QueuePairOptions,
};

/// Rights of a peer and of this end.
const ALL: Access = Access::LOCAL_WRITE.union(Access::REMOTE);

/// Returns two connected ends, for a first program or a test. They have the addresses 127.0.0.1 and 127.0.0.2
/// and exchange UDP packets that a capture of the loopback interface shows.
///
/// # Errors
///
/// Fails if a socket of RoCE v2 cannot be opened.
///
#[doc = concat!("```\n", include_str!("../../examples/hello.rs"), "```")]
pub fn loopback() -> Result<(Peer, Peer), Error> {
    PeerOptions::default().loopback()
}

/// Connects to a program that calls [`listen`], from the address of this machine that reaches it.
///
/// # Errors
///
/// Fails if the address cannot be reached, nobody listens there, or the other program refuses.
pub fn connect(to: impl ToSocketAddrs) -> Result<Peer, Error> {
    PeerOptions::default().connect(to)
}

/// Connects like [`connect`], for tasks. A host name in the address is resolved before the first suspension,
/// and blocks.
///
/// # Errors
///
/// Fails like [`connect`].
pub async fn connect_async(to: impl ToSocketAddrs) -> Result<Peer, Error> {
    PeerOptions::default().connect_async(to).await
}

/// Listens for peers at an address of this machine.
///
/// # Errors
///
/// Fails if this machine does not have the address, or if another program listens there.
pub fn listen(at: impl ToSocketAddrs) -> Result<Listener, Error> {
    PeerOptions::default().listen(at)
}

/// Where the packets of a peer leave.
#[derive(Clone, Debug)]
enum Place {
    /// From a `udp` device with the address that reaches the other end.
    Route,
    Device(String),
    Context(Context),
}

/// Options for the creation of a [`Peer`].
///
/// ```
/// let options = roce::PeerOptions::default().memory(1 << 20).message(64).buffers(256);
/// let (near, far) = options.loopback()?;
/// assert_eq!(near.remote().len, 1 << 20);
/// # let _ = far;
/// # Ok::<(), roce::Error>(())
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PeerOptions {
    place: Place,
    /// Size of [`Peer::memory`] in bytes, at least 1; 64 KiB by default.
    pub memory: usize,
    /// Length of the longest message that this end takes, in bytes; 4096 by default.
    pub message: usize,
    /// Number of messages that arrive before the program receives the first of them; 64 by default. While
    /// they wait, the other end sends no more.
    pub buffers: usize,
    /// Number of operations that may be under way at once; 128 by default.
    pub operations: usize,
    /// Largest payload of a packet; 1024 bytes by default. The connecting end chooses it, and the links of
    /// both ends must carry it.
    pub path_mtu: PathMtu,
}

impl Default for PeerOptions {
    fn default() -> Self {
        Self {
            place: Place::Route,
            memory: 1 << 16,
            message: 4096,
            buffers: 64,
            operations: 128,
            path_mtu: PathMtu::Mtu1024,
        }
    }
}

setters!(PeerOptions { memory: usize, message: usize, buffers: usize, operations: usize, path_mtu: PathMtu });

impl PeerOptions {
    /// Uses the device of this specification, such as `xdp:eth1`. By default, a `udp` device has the address
    /// of the listener, or the one that reaches it.
    #[must_use]
    pub fn device(mut self, spec: &str) -> Self {
        self.place = Place::Device(spec.to_owned());
        self
    }

    /// Uses an open context, which several peers may share.
    #[must_use]
    pub fn context(mut self, context: &Context) -> Self {
        self.place = Place::Context(context.clone());
        self
    }

    /// Returns two connected ends like [`loopback`](crate::loopback). They have two `udp` devices of their
    /// own.
    ///
    /// # Errors
    ///
    /// Fails like [`loopback`](crate::loopback), or if an option is out of range.
    pub fn loopback(&self) -> Result<(Peer, Peer), Error> {
        let near = self.prepare(&Context::open("udp:127.0.0.1")?)?;
        let far = self.prepare(&Context::open("udp:127.0.0.2")?)?;
        let listener = far.pd.context().listen(PortSpace::Tcp, 0)?;
        let to = (far.qp.endpoint()?.address, listener.port()).into();
        let mut connection = near.pd.context().start_connect(to, &near.qp, &self.parameters(&near))?;
        let far = accept(listener.accept(None)?, far, self)?;
        connection.established(None)?;
        Ok((finish(connection, near), far))
    }

    /// Connects like [`connect`](crate::connect).
    ///
    /// # Errors
    ///
    /// Fails like [`connect`](crate::connect), or if an option is out of range.
    pub fn connect(&self, to: impl ToSocketAddrs) -> Result<Peer, Error> {
        let to = resolve(to)?;
        let parts = self.prepare(&self.open_towards(to)?)?;
        let connection = parts.pd.context().connect(to, &parts.qp, &self.parameters(&parts))?;
        Ok(finish(connection, parts))
    }

    /// Connects like [`connect_async`](crate::connect_async).
    ///
    /// # Errors
    ///
    /// Fails like [`connect`](Self::connect).
    pub async fn connect_async(&self, to: impl ToSocketAddrs) -> Result<Peer, Error> {
        let to = resolve(to)?;
        let parts = self.prepare(&self.open_towards(to)?)?;
        let parameters = self.parameters(&parts);
        let connection = parts.pd.context().connect_async(to, &parts.qp, &parameters).await?;
        Ok(finish(connection, parts))
    }

    /// Listens like [`listen`](crate::listen).
    ///
    /// # Errors
    ///
    /// Fails like [`listen`](crate::listen).
    pub fn listen(&self, at: impl ToSocketAddrs) -> Result<Listener, Error> {
        let at = resolve(at)?;
        let context = self.open_at(at)?;
        let listener = context.listen(PortSpace::Tcp, at.port())?;
        Ok(Listener { context, listener, address: at, options: self.clone() })
    }

    /// Opens the context of a connecting end.
    fn open_towards(&self, to: SocketAddr) -> Result<Context, Error> {
        match &self.place {
            Place::Route => self.open_at(source_towards(to)?),
            Place::Device(_) | Place::Context(_) => self.open_at(to),
        }
    }

    /// Opens the context; the default device has this address.
    fn open_at(&self, address: SocketAddr) -> Result<Context, Error> {
        Ok(match (&self.place, address) {
            (Place::Context(context), _) => context.clone(),
            (Place::Device(spec), _) => Context::open(spec)?,
            (Place::Route, SocketAddr::V6(v6)) if v6.scope_id() != 0 => {
                Context::open(&format!("udp:[{}%{}]", v6.ip(), v6.scope_id()))?
            }
            (Place::Route, SocketAddr::V6(v6)) => Context::open(&format!("udp:[{}]", v6.ip()))?,
            (Place::Route, SocketAddr::V4(v4)) => Context::open(&format!("udp:{}", v4.ip()))?,
        })
    }

    /// Creates the objects of an end, and posts its receives.
    fn prepare(&self, context: &Context) -> Result<Parts, Error> {
        let (message, buffers) = (self.message.clamp(1, MOST_BYTES), self.buffers.max(1));
        let pd = context.alloc_pd()?;
        let cq = context.create_cq(self.operations.saturating_add(buffers), None)?;
        let capabilities = QpCapabilities {
            max_send_wr: self.operations,
            max_recv_wr: buffers,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline: MAX_INLINE,
        };
        let qp = pd.create_qp(&QueuePairOptions::new(QpType::Rc, &cq).capabilities(capabilities))?;
        let memory = pd.allocate(self.memory, ALL)?;
        let received = pd.allocate(message.saturating_mul(buffers), Access::LOCAL_WRITE)?;
        let buffers = Buffers { memory: received, count: buffers, len: message };
        let parts = Parts { pd, cq, qp, memory, buffers };
        parts.post_receives()?;
        Ok(parts)
    }

    fn parameters(&self, parts: &Parts) -> ConnectionParameters {
        let offer = parts.offer().to_bytes();
        ConnectionParameters::default().path_mtu(self.path_mtu).access(ALL).private_data(offer)
    }
}

/// Accepts peers at an address. Dropping it refuses those that were not accepted.
///
/// An error of [`accept`](Self::accept) concerns one peer; the listener can be used further.
#[derive(Debug)]
pub struct Listener {
    listener: CmListener,
    context: Context,
    address: SocketAddr,
    options: PeerOptions,
}

impl Listener {
    /// Returns the address that peers connect to. The port is the chosen one if port 0 was requested.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        SocketAddr::new(self.address.ip(), self.listener.port())
    }

    /// Waits for the next peer. Its operations leave once it has confirmed the connection.
    ///
    /// # Errors
    ///
    /// Fails if the peer has given up, asks for another transport than RC, or if its path MTU does not fit
    /// here.
    pub fn accept(&self) -> Result<Peer, Error> {
        accept(self.listener.accept(None)?, self.options.prepare(&self.context)?, &self.options)
    }

    /// Waits like [`accept`](Self::accept), for tasks.
    ///
    /// # Errors
    ///
    /// Fails like [`accept`](Self::accept).
    pub async fn accept_async(&self) -> Result<Peer, Error> {
        accept(self.listener.accept_async().await?, self.options.prepare(&self.context)?, &self.options)
    }
}

/// Accepts a connection request.
fn accept(request: ConnectRequest, parts: Parts, options: &PeerOptions) -> Result<Peer, Error> {
    let remote = Offer::from_bytes(request.private_data());
    let connection = request.accept(&parts.qp, &options.parameters(&parts))?;
    Ok(Peer::new(parts.connected(connection, remote)))
}

/// Returns the peer of an established connection.
fn finish(connection: Connection, parts: Parts) -> Peer {
    let remote = Offer::from_bytes(connection.private_data());
    Peer::new(parts.connected(connection, remote))
}

fn resolve(address: impl ToSocketAddrs) -> Result<SocketAddr, Error> {
    let failed = |problem, source| Error::Address { problem, source };
    let mut found =
        address.to_socket_addrs().map_err(|error| failed("cannot resolve the address", Some(error)))?;
    let found = found.next().ok_or_else(|| failed("the name has no address", None))?;
    if found.ip().is_unspecified() {
        return Err(failed("the unspecified address belongs to no device; name an address", None));
    }
    Ok(found)
}

/// Returns the address of this machine that reaches another one, with its zone.
fn source_towards(to: SocketAddr) -> Result<SocketAddr, Error> {
    let any: IpAddr = if to.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    let local = UdpSocket::bind((any, 0)).and_then(|socket| {
        // Sends nothing.
        socket.connect(to)?;
        socket.local_addr()
    });
    local.map_err(|source| Error::Address { problem: "no route to the peer", source: Some(source) })
}
