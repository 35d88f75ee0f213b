//! TCP of a host other than the kernel.

use std::io;
use std::net::SocketAddr;

use roce_transport::Instant;

/// A connection or a listener of a [`HostTcp`]. Numbers are never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct TcpId(pub(crate) u64);

/// TCP over a device that is a host of its own, such as a TAP, whose address the kernel does not have. No
/// call blocks: an operation that is not possible yet fails with `WouldBlock` and may succeed after the
/// device has received and flushed. `now` is the driver's time, as in every call of a device.
///
/// Programs use `roce::Tcp`, which waits and works on every device.
pub trait HostTcp {
    /// Listens on `port` of every address of the host, or on a free port if it is 0. Also returns the port.
    ///
    /// # Errors
    ///
    /// `AddrInUse` if the port has a listener, `QuotaExceeded` if there are too many sockets.
    fn listen(&mut self, port: u16) -> io::Result<(TcpId, u16)>;

    /// Accepts the next connection to a listener and returns it with the address of its peer.
    ///
    /// # Errors
    ///
    /// `WouldBlock` if no connection is pending; `NotConnected` if the listener is closed.
    fn accept(&mut self, listener: TcpId) -> io::Result<(TcpId, SocketAddr)>;

    /// Starts to connect; [`check_connected`](Self::check_connected) returns the state.
    ///
    /// # Errors
    ///
    /// `AddrNotAvailable` without an address of that family, `QuotaExceeded` if there are too many sockets.
    fn connect(&mut self, now: Instant, peer: SocketAddr) -> io::Result<TcpId>;

    /// Checks whether a connection is established.
    ///
    /// # Errors
    ///
    /// `WouldBlock` while it is being established, `ConnectionRefused`, `HostUnreachable`, `TimedOut`.
    fn check_connected(&mut self, now: Instant, connection: TcpId) -> io::Result<()>;

    /// Reads bytes that have arrived; returns 0 at the end of the stream.
    ///
    /// # Errors
    ///
    /// `WouldBlock` if no bytes are available, `ConnectionReset` if the connection broke.
    fn read(&mut self, connection: TcpId, buffer: &mut [u8]) -> io::Result<usize>;

    /// Returns whether [`read`](Self::read) would return anything other than `WouldBlock`.
    fn is_readable(&self, connection: TcpId) -> bool;

    /// Queues as many bytes for sending as there is room for, and returns their number.
    ///
    /// # Errors
    ///
    /// `WouldBlock` if there is no room, `BrokenPipe` if the connection broke or was closed.
    fn write(&mut self, connection: TcpId, bytes: &[u8]) -> io::Result<usize>;

    /// Returns the number of written bytes that the peer has not acknowledged; 0 for a broken connection.
    fn unacknowledged(&self, connection: TcpId) -> usize;

    /// Closes a listener, or a connection after its written bytes have been sent. The number becomes invalid.
    fn close(&mut self, id: TcpId);
}
