//! The calls of a peer.

use std::fmt;
use std::sync::Arc;

use roce_transport::{Access, MAX_INLINE, OutOfBounds, RKey, SendOp};

use super::end::{Done, End};
use super::error::Error;
use super::offer::MOST_BYTES;
use super::operation::Operation;
use super::requests::Awaited;
use crate::verbs::{MemoryRegion, ProtectionDomain, QueuePair, RemoteMemory, SharedMemory};

/// Bytes of an integer for atomics.
const INTEGER: usize = 8;

/// Returns the place of an integer.
fn integer(at: RemoteMemory) -> Result<(u64, RKey), OutOfBounds> {
    if at.len < INTEGER as u64 {
        return Err(OutOfBounds);
    }
    Ok((at.addr, RKey(at.rkey)))
}

/// Returns the integer that an atomic has read.
fn to_integer(done: Done) -> u64 {
    done.into_bytes().first_chunk().map_or(0, |bytes| u64::from_ne_bytes(*bytes))
}

/// One end of a connection over RC: a protection domain, a completion queue, a queue pair and memory. Clones
/// are handles to the same end. The connection ends when the last handle and the last [`Operation`] are
/// dropped.
///
/// Both ends can send messages, and read and write the memory that the other end offers: see
/// [`remote`](Self::remote). The bytes of a call are copied, so the caller may change them at once. All
/// calls can be made by several threads and tasks.
///
/// [`loopback`](crate::loopback) returns two ends in this process; [`connect`](crate::connect) and
/// [`listen`](crate::listen) connect two processes or machines:
///
/// ```
/// let listener = roce::listen("127.0.0.1:0")?;
/// let address = listener.address();
/// let server = std::thread::spawn(move || -> Result<Vec<u8>, roce::Error> {
///     let peer = listener.accept()?;
///     peer.send(b"welcome")?.wait()?;
///     peer.receive().wait()
/// });
///
/// // Usually in another process.
/// let peer = roce::connect(address)?;
/// assert_eq!(peer.receive().wait()?, b"welcome");
/// peer.send(b"goodbye")?.wait()?;
/// assert_eq!(server.join().expect("no panic")?, b"goodbye");
/// # Ok::<(), roce::Error>(())
/// ```
#[derive(Clone)]
pub struct Peer(Arc<End>);

impl fmt::Debug for Peer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Peer").field("qp", &self.0.qp).finish_non_exhaustive()
    }
}

impl Peer {
    pub(super) fn new(end: Arc<End>) -> Self {
        Self(end)
    }

    /// Sends a message to the next [`receive`](Self::receive) of the other end. While all buffers of that end
    /// are full, the message waits: see [`PeerOptions::buffers`](field@super::PeerOptions::buffers).
    ///
    /// # Errors
    ///
    /// Fails with [`Error::TooLong`] if the other end takes no message of this length, and with
    /// [`PostError::QueueFull`](crate::verbs::PostError) if too many operations are under way.
    pub fn send(&self, message: &[u8]) -> Result<Operation, Error> {
        let (len, limit) = (message.len(), self.0.remote.message);
        if len > limit {
            return Err(Error::TooLong { len, limit });
        }
        self.post_bytes(SendOp::Send, message)
    }

    /// Returns the next message that the other end has sent, once it has arrived. Each message goes to one
    /// operation.
    pub fn receive(&self) -> Operation<Vec<u8>> {
        Operation::new(&self.0, Awaited::Message, Done::into_bytes)
    }

    /// Writes bytes to memory of the other end, which is not involved.
    ///
    /// # Errors
    ///
    /// Fails with [`Error::OutOfBounds`] if there are more bytes than the memory has.
    pub fn write(&self, to: RemoteMemory, bytes: &[u8]) -> Result<Operation, Error> {
        if bytes.len() as u64 > to.len {
            return Err(OutOfBounds.into());
        }
        self.post_bytes(to.write(), bytes)
    }

    /// Reads all bytes of this memory of the other end, which is not involved.
    ///
    /// # Errors
    ///
    /// Fails with [`Error::TooLong`] if the memory is longer than a message of the specification, 2 GiB.
    pub fn read(&self, from: RemoteMemory) -> Result<Operation<Vec<u8>>, Error> {
        let len = usize::try_from(from.len).unwrap_or(usize::MAX);
        if len > MOST_BYTES {
            return Err(Error::TooLong { len, limit: MOST_BYTES });
        }
        self.post_read(from.read(), len, Done::into_bytes)
    }

    /// Adds to the first 8 bytes of this memory, an integer in the byte order of the other end. The operation
    /// returns the value before. The address must be a multiple of 8.
    ///
    /// # Errors
    ///
    /// Fails with [`Error::OutOfBounds`] if the memory has fewer than 8 bytes.
    pub fn fetch_add(&self, at: RemoteMemory, add: u64) -> Result<Operation<u64>, Error> {
        let (remote_addr, rkey) = integer(at)?;
        self.post_read(SendOp::FetchAdd { remote_addr, rkey, add }, INTEGER, to_integer)
    }

    /// Replaces the integer in the first 8 bytes of this memory with `swap` if it is equal to `compare`. The
    /// operation returns the value before. The address must be a multiple of 8.
    ///
    /// # Errors
    ///
    /// Fails with [`Error::OutOfBounds`] if the memory has fewer than 8 bytes.
    pub fn compare_swap(&self, at: RemoteMemory, compare: u64, swap: u64) -> Result<Operation<u64>, Error> {
        let (remote_addr, rkey) = integer(at)?;
        self.post_read(SendOp::CompareSwap { remote_addr, rkey, compare, swap }, INTEGER, to_integer)
    }

    /// Returns the memory of this end, which the other end may read and write at any time.
    #[must_use]
    pub fn memory(&self) -> &MemoryRegion {
        &self.0.memory
    }

    /// Returns the memory of the other end: what [`memory`](Self::memory) returns there. It has no bytes if
    /// the other end is not a `Peer`.
    #[must_use]
    pub fn remote(&self) -> RemoteMemory {
        self.0.remote.memory
    }

    /// Offers a copy of these bytes to the other end, which may read and write them until the region is
    /// dropped. A message can tell it where they are: [`MemoryRegion::remote`].
    ///
    /// # Errors
    ///
    /// Fails if there are no bytes, or if all keys are in use.
    pub fn offer(&self, bytes: &[u8]) -> Result<MemoryRegion, Error> {
        Ok(self
            .0
            .pd
            .register(Arc::new(SharedMemory::from_bytes(bytes)), Access::LOCAL_WRITE | Access::REMOTE)?)
    }

    /// Returns the protection domain, for memory and windows with rights of your own.
    #[must_use]
    pub fn pd(&self) -> &ProtectionDomain {
        &self.0.pd
    }

    /// Returns the queue pair, for its counters and state. Work requests that are posted to it directly do
    /// not complete here: use [`verbs`](crate::verbs) instead of a peer.
    #[must_use]
    pub fn qp(&self) -> &QueuePair {
        &self.0.qp
    }

    fn request<T>(&self, id: u64, result: fn(Done) -> T) -> Operation<T> {
        Operation::new(&self.0, Awaited::Send(id), result)
    }

    /// Posts an operation that sends these bytes.
    fn post_bytes(&self, op: SendOp, bytes: &[u8]) -> Result<Operation, Error> {
        let id = if bytes.len() <= MAX_INLINE {
            self.0.post_inline(op, bytes)
        } else {
            let memory = Arc::new(SharedMemory::from_bytes(bytes));
            self.0.post_memory(op, Some(self.0.pd.register(memory, Access::empty())?))
        };
        Ok(self.request(id?, |_| ()))
    }

    /// Posts an operation that returns `len` bytes.
    fn post_read<T>(&self, op: SendOp, len: usize, result: fn(Done) -> T) -> Result<Operation<T>, Error> {
        let memory = match len {
            0 => None,
            len => Some(self.0.pd.allocate(len, Access::LOCAL_WRITE)?),
        };
        Ok(self.request(self.0.post_memory(op, memory)?, result))
    }
}
