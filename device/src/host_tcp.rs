//! TCP of a host that is not the kernel.

use std::io;
use std::net::SocketAddr;

use roce_transport::Instant;

/// A connection or a listener of a [`HostTcp`]. Numbers are not used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TcpId(pub(crate) u64);

/// TCP over a device that is a host of its own, such as a TAP, whose address the kernel does not know. Nothing
/// here blocks: what cannot be done yet fails with `WouldBlock` and may succeed after the device has received and
/// flushed. `now` is the driver's time, as in every call of a device.
///
/// Programs use `roce::Tcp`, which waits, and works on every device.
pub trait HostTcp {
    /// Listens on `port` of every address of the host; with 0, on one that is free. Returns the port as well.
    ///
    /// # Errors
    ///
    /// `AddrInUse` when the port has a listener, `QuotaExceeded` when there are too many sockets.
    fn listen(&mut self, port: u16) -> io::Result<(TcpId, u16)>;

    /// The next connection to a listener, and the address of its peer.
    ///
    /// # Errors
    ///
    /// `WouldBlock` when no connection waits; `NotConnected` when the listener is closed.
    fn accept(&mut self, listener: TcpId) -> io::Result<(TcpId, SocketAddr)>;

    /// Starts to connect; [`check_connected`](Self::check_connected) tells its state.
    ///
    /// # Errors
    ///
    /// `AddrNotAvailable` without an address of that family, `QuotaExceeded` when there are too many sockets.
    fn connect(&mut self, now: Instant, peer: SocketAddr) -> io::Result<TcpId>;

    /// Whether a connection is there.
    ///
    /// # Errors
    ///
    /// `WouldBlock` when it is not yet, `ConnectionRefused`, `HostUnreachable`, `TimedOut`.
    fn check_connected(&mut self, now: Instant, connection: TcpId) -> io::Result<()>;

    /// Takes bytes that have arrived; 0 after the last.
    ///
    /// # Errors
    ///
    /// `WouldBlock` when there are none, `ConnectionReset` when the connection broke.
    fn read(&mut self, connection: TcpId, buffer: &mut [u8]) -> io::Result<usize>;

    /// Whether [`read`](Self::read) would do anything but fail with `WouldBlock`.
    fn is_readable(&self, connection: TcpId) -> bool;

    /// Takes bytes to be sent, as many as there is room for.
    ///
    /// # Errors
    ///
    /// `WouldBlock` when there is no room, `BrokenPipe` when the connection broke or was closed.
    fn write(&mut self, connection: TcpId, bytes: &[u8]) -> io::Result<usize>;

    /// Bytes that were written and that the peer has not acknowledged; 0 for a connection that broke.
    fn unacknowledged(&self, connection: TcpId) -> usize;

    /// Closes a connection, after what was written has been sent, or a listener. The number means nothing any
    /// more.
    fn close(&mut self, id: TcpId);
}
