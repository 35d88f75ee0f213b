//! One end of a connection, which a peer and its operations share.

use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use roce_transport::{RecvWr, SendOp, SendWr, Wc};

use super::error::Error;
use super::offer::Offer;
use super::requests::{Awaited, Outcome, Requests};
use crate::device::fork::Mutex;
use crate::verbs::{
    CompletionQueue, Connection, Context, MemoryRegion, ProtectionDomain, QueuePair, RemoteMemory,
};

/// Completions that are taken from the queue at once.
const BATCH: usize = 16;

/// The messages that an end has room for.
#[derive(Debug)]
pub(super) struct Buffers {
    pub(super) memory: MemoryRegion,
    pub(super) count: usize,
    /// Length of a buffer in bytes.
    pub(super) len: usize,
}

/// See the [module](self).
#[derive(Debug)]
pub(super) struct End {
    /// Dropped first, so that the connection ends before its objects.
    _connection: Connection,
    pub(super) qp: QueuePair,
    cq: CompletionQueue,
    pub(super) pd: ProtectionDomain,
    pub(super) memory: MemoryRegion,
    pub(super) buffers: Buffers,
    pub(super) remote: Offer,
    requests: Mutex<Requests>,
}

/// What an operation has returned.
#[derive(Debug)]
pub(super) enum Done {
    /// The memory of a send request, if it has any.
    Memory(Option<MemoryRegion>),
    Message(Vec<u8>),
}

impl Done {
    /// Returns the bytes that were received or read.
    pub(super) fn into_bytes(self) -> Vec<u8> {
        match self {
            Self::Memory(memory) => memory.map(|region| region.memory().to_vec()).unwrap_or_default(),
            Self::Message(bytes) => bytes,
        }
    }
}

/// What exists before the connection.
#[derive(Debug)]
pub(super) struct Parts {
    pub(super) pd: ProtectionDomain,
    pub(super) cq: CompletionQueue,
    pub(super) qp: QueuePair,
    pub(super) memory: MemoryRegion,
    pub(super) buffers: Buffers,
}

impl Parts {
    /// Posts a receive for each buffer, so that a message can arrive as soon as the connection exists.
    pub(super) fn post_receives(&self) -> Result<(), Error> {
        self.qp.initialize()?;
        (0..self.buffers.count as u64).try_for_each(|buffer| self.buffers.post(&self.qp, buffer))
    }

    pub(super) fn offer(&self) -> Offer {
        let memory = &self.memory;
        let memory =
            RemoteMemory { addr: memory.addr(), len: memory.len() as u64, rkey: memory.rkey().into() };
        Offer { memory, message: self.buffers.len }
    }

    /// Adds the connection.
    pub(super) fn connected(self, connection: Connection, remote: Offer) -> Arc<End> {
        let Self { pd, cq, qp, memory, buffers } = self;
        let requests = Mutex::default();
        Arc::new(End { _connection: connection, qp, cq, pd, memory, buffers, remote, requests })
    }
}

impl Buffers {
    /// Posts the receive of a buffer.
    fn post(&self, qp: &QueuePair, buffer: u64) -> Result<(), Error> {
        let start = buffer as usize * self.len;
        let element = self.memory.element(start..start + self.len);
        Ok(qp.post_recv(&RecvWr { wr_id: buffer, elements: &[element] })?)
    }
}

impl End {
    fn context(&self) -> &Context {
        self.pd.context()
    }

    /// Posts a request whose bytes the engine copies. Returns its identifier.
    pub(super) fn post_inline(&self, op: SendOp, bytes: &[u8]) -> Result<u64, Error> {
        self.post(None, |id| SendWr::inline(id, op, bytes))
    }

    /// Posts a request with all bytes of this memory, if it has any. Returns its identifier.
    pub(super) fn post_memory(&self, op: SendOp, memory: Option<MemoryRegion>) -> Result<u64, Error> {
        let element = memory.as_ref().map(|memory| memory.element(0..memory.len()));
        self.post(memory, |id| SendWr::new(id, op, element.as_slice()))
    }

    fn post<'a>(
        &self,
        memory: Option<MemoryRegion>,
        request: impl FnOnce(u64) -> SendWr<'a>,
    ) -> Result<u64, Error> {
        // Added first, because another thread may see the completion before the call returns.
        let id = self.requests.lock().add(memory);
        let posted = self.qp.post_send(&request(id));
        if posted.is_err() {
            let removed = self.requests.lock().remove(id);
            removed.finish();
        }
        posted?;
        Ok(id)
    }

    /// Moves the completions of the queue to [`Requests`]. `poll` takes some of them from the queue.
    ///
    /// If another thread does the same, that thread looks once more instead.
    fn drain(&self, poll: impl Fn(&mut [Wc]) -> Result<usize, Error>) -> Result<(), Error> {
        if !self.requests.lock().begin_draining() {
            return Ok(());
        }
        let mut done = [Wc::default(); BATCH];
        loop {
            let count = match poll(&mut done) {
                Ok(count) => count,
                Err(error) => {
                    self.requests.lock().stop_draining();
                    return Err(error);
                }
            };
            // Computed before the lock is taken, because the context has a lock of its own.
            let errors: Vec<_> =
                done[..count].iter().filter_map(|wc| self.context().result(wc).err()).collect();
            let error = |wc: &Wc| errors.iter().find(|error| error.wc == *wc).copied();
            let (aside, is_over) = {
                let mut requests = self.requests.lock();
                (requests.completed(&done[..count], error), requests.end_draining(count == 0))
            };
            aside.finish();
            if is_over {
                return Ok(());
            }
        }
    }

    /// Waits until an outcome is there, as [`CompletionQueue::wait`] does.
    pub(super) fn wait(&self, awaited: Awaited, timeout: Option<Duration>) -> Result<Done, Error> {
        let outcome = self.cq.wait_until(timeout, || {
            self.drain(|out| Ok(self.cq.take(out)?))?;
            Ok::<_, Error>(self.requests.lock().take(awaited))
        })?;
        self.finish(outcome)
    }

    /// Returns an outcome if it is there. Makes progress otherwise.
    pub(super) fn poll(&self, awaited: Awaited) -> Result<Option<Done>, Error> {
        let here = self.requests.lock().take(awaited);
        let outcome = match here {
            Some(outcome) => Some(outcome),
            None => {
                self.drain(|out| Ok(self.cq.poll(out)?))?;
                self.requests.lock().take(awaited)
            }
        };
        outcome.map(|outcome| self.finish(outcome)).transpose()
    }

    /// Wakes a task once an outcome may be there. The caller polls again afterwards, and calls
    /// [`forget_task`](Self::forget_task) with the result when it stops waiting.
    pub(super) fn wake_at(&self, awaited: Awaited, waker: &Waker) -> Result<u64, Error> {
        // Cloned before the lock is taken, because `clone` runs foreign code.
        let own = waker.clone();
        let aside = self.requests.lock().wake_at(awaited, own);
        aside.finish();
        // Another task takes the completion, or this one.
        self.cq.wake_at_event(waker.clone()).map_err(Error::from)
    }

    pub(super) fn forget_task(&self, task: u64) {
        self.cq.forget_task(task);
    }

    /// Records that nobody waits for an outcome any more.
    pub(super) fn forget(&self, awaited: Awaited) {
        let aside = self.requests.lock().forget(awaited);
        aside.finish();
    }

    /// Returns the result of an outcome, and posts the receive of a message again.
    fn finish(&self, outcome: Outcome) -> Result<Done, Error> {
        match outcome {
            Outcome::Sent { wc, memory } => {
                self.context().result(&wc)?;
                Ok(Done::Memory(memory))
            }
            Outcome::Received(message) => {
                let mut bytes = vec![0; message.len];
                self.buffers.memory.read(message.buffer as usize * self.buffers.len, &mut bytes)?;
                // Fails if the connection has ended since. The next call reports that.
                let _ = self.buffers.post(&self.qp, message.buffer);
                Ok(Done::Message(bytes))
            }
            Outcome::Ended(source) => Err(Error::Disconnected { source }),
        }
    }
}
