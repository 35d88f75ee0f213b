//! rsockets: byte streams over reliable connections, and datagrams, with the socket calls and the protocol of
//! librdmacm.
//!
//! A stream has a ring of bytes at each end, which the peer writes with RDMA WRITE. Immediate data describe
//! the written bytes. The descriptor of an rsocket is an epoll descriptor, which is readable if the
//! connection may have an event or a completion.

mod calls;
mod connection;
mod datagram;
mod descriptors;
mod endpoint;
mod flow;
mod mapped;
mod mapping;
mod messages;
mod options;
mod poll;
mod select;
mod service;
mod settings;
mod stream;
mod wire;

use std::collections::HashMap;
use std::ffi::c_int;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::{Arc, Condvar, MutexGuard, PoisonError};

use roce::device::fork::{Mutex, StaticMutex};
use rustix::event::epoll;

use super::identifiers::destroy;
use super::queue_pairs::rdma_destroy_qp;
use crate::abi::rdma_cm_id;
use crate::answer::Errno;
use crate::context::Pointer;

use datagram::DatagramSocket;
use descriptors::{set_nonblocking, wait_readable, watch_descriptor};
use mapped::Mappings;
use settings::Options;
use stream::Stream;

pub(super) use calls::{
    raccept, rbind, rclose, rconnect, rgetpeername, rgetsockname, rlisten, rread, rrecv, rsend, rshutdown,
    rsocket, rwrite,
};
pub(super) use mapping::{riomap, riounmap, riowrite};
pub(super) use messages::{rreadv, rrecvfrom, rrecvmsg, rsendmsg, rsendto, rwritev};
pub(super) use options::{rfcntl, rgetsockopt, rsetsockopt};
pub(super) use poll::rpoll;
pub(super) use select::rselect;

/// The phase of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    New,
    Listening,
    Connecting,
    Accepting,
    Connected,
    Disconnected,
    Failed,
}

/// An rsocket.
struct Socket {
    watch: OwnedFd,
    state: Mutex<State>,
    /// Signals that the thread which waits on the descriptor has made progress.
    changed: Condvar,
}

/// The state that the lock of an rsocket protects.
struct State {
    id: Pointer<rdma_cm_id>,
    phase: Phase,
    /// Whether the peer may still send, and whether this end may.
    is_readable: bool,
    is_writable: bool,
    is_nonblocking: bool,
    /// Whether a thread waits on the descriptor, for all threads that wait in calls.
    is_watched: bool,
    /// Error number of a failure, until `SO_ERROR` is read.
    error: c_int,
    options: Options,
    stream: Option<Stream>,
    mappings: Mappings,
}

/// An rsocket of either kind.
#[derive(Clone)]
enum Any {
    Stream(Arc<Socket>),
    Datagram(Arc<DatagramSocket>),
}

impl Any {
    fn watch(&self) -> &OwnedFd {
        match self {
            Self::Stream(socket) => &socket.watch,
            Self::Datagram(socket) => &socket.watch,
        }
    }
}

/// The rsockets by their descriptors.
static SOCKETS: StaticMutex<Option<HashMap<c_int, Any>>> = StaticMutex::new(None);

/// Returns the rsocket of a descriptor.
fn find(number: c_int) -> Option<Any> {
    let sockets = SOCKETS.lock();
    sockets.as_ref()?.get(&number).cloned()
}

/// Returns the datagram rsocket of a descriptor, if it is one.
fn datagram_of(number: c_int) -> Option<Arc<DatagramSocket>> {
    match find(number) {
        Some(Any::Datagram(socket)) => Some(socket),
        _ => None,
    }
}

/// Returns the stream of a descriptor.
fn socket_of(number: c_int) -> Result<Arc<Socket>, Errno> {
    match find(number) {
        Some(Any::Stream(socket)) => Ok(socket),
        Some(Any::Datagram(_)) => Err(Errno::UNSUPPORTED),
        None => Err(Errno(libc::EBADF)),
    }
}

/// Gives an rsocket to the application.
fn publish(socket: Any) -> c_int {
    let number = socket.watch().as_raw_fd();
    let mut sockets = SOCKETS.lock();
    sockets.get_or_insert_default().insert(number, socket);
    number
}

/// Takes an rsocket back from the application.
fn withdraw(number: c_int) -> Result<Any, Errno> {
    let mut sockets = SOCKETS.lock();
    sockets.as_mut().and_then(|sockets| sockets.remove(&number)).ok_or(Errno(libc::EBADF))
}

impl Socket {
    /// Takes ownership of the identifier, which is destroyed with the rsocket.
    fn new(id: *mut rdma_cm_id, phase: Phase, options: Options) -> Result<Self, Errno> {
        let state = State {
            id: Pointer(id),
            phase,
            is_readable: true,
            is_writable: true,
            is_nonblocking: false,
            is_watched: false,
            error: 0,
            options,
            stream: None,
            mappings: Mappings::default(),
        };
        let watch = epoll::create(epoll::CreateFlags::CLOEXEC).map_err(std::io::Error::from)?;
        let socket = Self { watch, state: Mutex::new(state), changed: Condvar::new() };
        // SAFETY: the identifier is alive and has its own channel.
        let channel = unsafe { (*(*id).channel).fd };
        set_nonblocking(channel)?;
        socket.watch(channel)?;
        Ok(socket)
    }

    /// Makes the descriptor of the rsocket readable whenever this one is.
    fn watch(&self, descriptor: RawFd) -> Result<(), Errno> {
        watch_descriptor(&self.watch, descriptor)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Makes progress until `test` holds. One thread waits on the descriptor for all. It checks again
    /// periodically, because another thread may have taken the connection event that would wake it.
    fn wait<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        is_nonblocking: bool,
        test: impl Fn(&State) -> bool,
    ) -> Result<MutexGuard<'a, State>, Errno> {
        loop {
            state.progress()?;
            if test(&state) {
                self.changed.notify_all();
                return Ok(state);
            }
            if is_nonblocking {
                return Err(Errno::AGAIN);
            }
            if state.is_watched {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            // This check finds completions from before the request for an event.
            state.arm()?;
            state.progress()?;
            if test(&state) {
                continue;
            }
            state.is_watched = true;
            drop(state);
            let waited = wait_readable(&self.watch);
            state = self.state();
            state.is_watched = false;
            self.changed.notify_all();
            waited?;
        }
    }
}

impl Drop for State {
    fn drop(&mut self) {
        // SAFETY: the identifier belongs to this rsocket, and nothing uses it any more.
        unsafe {
            rdma_destroy_qp(self.id.0);
            self.stream = None;
            self.mappings = Mappings::default();
            // It is an identifier, so this does not fail.
            let _ = destroy(self.id.0);
        }
    }
}
