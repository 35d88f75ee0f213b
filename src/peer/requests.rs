//! The requests of one end that are outstanding or whose outcome nobody has fetched.

use std::collections::{HashMap, VecDeque};
use std::task::Waker;

use roce_transport::{Wc, WcStatus, WorkError};

use crate::driver::wake::{drop_each, wake_each};
use crate::verbs::MemoryRegion;

/// The first identifier of a send request. A receive has the number of its buffer, which is smaller.
const FIRST_SEND: u64 = 1 << 32;

/// What an operation waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Awaited {
    /// The send request with this identifier.
    Send(u64),
    /// The next message.
    Message,
}

/// A message in one of the buffers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Message {
    /// Number of the buffer.
    pub(super) buffer: u64,
    /// Length in bytes.
    pub(super) len: usize,
}

/// What an operation waited for.
#[derive(Debug)]
pub(super) enum Outcome {
    /// The completion of a send request, and the memory that it used.
    Sent {
        wc: Wc,
        memory: Option<MemoryRegion>,
    },
    Received(Message),
    /// There are no more messages, and this request was the first that failed.
    Ended(Option<WorkError>),
}

/// A posted send request.
#[derive(Debug, Default)]
struct Send {
    /// The memory that the request reads or writes, and that must exist until it completes.
    memory: Option<MemoryRegion>,
    wc: Option<Wc>,
    waker: Option<Waker>,
    /// Whether nobody waits for it any more.
    is_forgotten: bool,
}

/// Objects whose end runs foreign code or takes other locks. They are used or dropped once the lock of
/// [`Requests`] is released.
#[derive(Debug, Default)]
pub(super) struct Aside {
    /// Tasks to wake.
    woken: Vec<Waker>,
    /// Tasks that do not wait any more.
    dropped: Vec<Waker>,
    memory: Vec<MemoryRegion>,
}

/// See the [module](self). All completions of the end arrive in [`completed`](Self::completed).
#[derive(Debug, Default)]
pub(super) struct Requests {
    sends: HashMap<u64, Send>,
    number_of_sends: u64,
    messages: VecDeque<Message>,
    /// Tasks that wait for messages.
    receivers: Vec<Waker>,
    is_ended: bool,
    first_error: Option<WorkError>,
    /// Whether a thread takes completions from the queue.
    is_draining: bool,
    /// Whether another thread wanted to do so in the meantime.
    again: bool,
}

impl Requests {
    /// Adds a send request before it is posted. Returns its identifier.
    pub(super) fn add(&mut self, memory: Option<MemoryRegion>) -> u64 {
        let id = FIRST_SEND + self.number_of_sends;
        self.number_of_sends += 1;
        self.sends.insert(id, Send { memory, ..Send::default() });
        id
    }

    /// Removes a send request that could not be posted.
    pub(super) fn remove(&mut self, id: u64) -> Aside {
        let mut aside = Aside::default();
        aside.keep(self.sends.remove(&id));
        aside
    }

    /// Returns whether this thread must take completions from the queue. Otherwise another thread does, and
    /// looks once more.
    pub(super) fn begin_draining(&mut self) -> bool {
        self.again = self.is_draining;
        !std::mem::replace(&mut self.is_draining, true)
    }

    /// Ends what [`begin_draining`](Self::begin_draining) began, unless the queue must be looked at again.
    /// Returns whether it ended.
    pub(super) fn end_draining(&mut self, was_empty: bool) -> bool {
        let is_over = was_empty && !std::mem::take(&mut self.again);
        self.is_draining = !is_over;
        is_over
    }

    /// Ends draining after an error of the queue.
    pub(super) fn stop_draining(&mut self) {
        self.is_draining = false;
    }

    /// Records completions in the order of the queue. `error` is the error of a completion.
    pub(super) fn completed(&mut self, done: &[Wc], error: impl Fn(&Wc) -> Option<WorkError>) -> Aside {
        let mut aside = Aside::default();
        for wc in done {
            // What a failure has flushed is not the failure.
            if wc.status != WcStatus::WrFlushError && self.first_error.is_none() {
                self.first_error = error(wc);
            }
            if wc.wr_id < FIRST_SEND {
                match wc.status {
                    WcStatus::Success => {
                        self.messages.push_back(Message { buffer: wc.wr_id, len: wc.byte_len as usize });
                    }
                    _ => self.is_ended = true,
                }
                aside.woken.append(&mut self.receivers);
            } else if self.sends.get(&wc.wr_id).is_some_and(|send| send.is_forgotten) {
                aside.keep(self.sends.remove(&wc.wr_id));
            } else if let Some(send) = self.sends.get_mut(&wc.wr_id) {
                send.wc = Some(*wc);
                aside.woken.extend(send.waker.take());
            }
        }
        aside
    }

    /// Takes an outcome if it is there.
    pub(super) fn take(&mut self, awaited: Awaited) -> Option<Outcome> {
        match awaited {
            Awaited::Send(id) => {
                let wc = self.sends.get(&id)?.wc?;
                let memory = self.sends.remove(&id).and_then(|send| send.memory);
                Some(Outcome::Sent { wc, memory })
            }
            Awaited::Message => match self.messages.pop_front() {
                Some(message) => Some(Outcome::Received(message)),
                None => self.is_ended.then_some(Outcome::Ended(self.first_error)),
            },
        }
    }

    /// Wakes this task once the outcome may be there.
    pub(super) fn wake_at(&mut self, awaited: Awaited, waker: Waker) -> Aside {
        let mut aside = Aside::default();
        match awaited {
            Awaited::Send(id) => {
                let send = self.sends.get_mut(&id);
                aside.dropped.extend(send.and_then(|send| send.waker.replace(waker)));
            }
            // A task that has dropped an operation may wait with another one.
            Awaited::Message if self.receivers.iter().any(|known| known.will_wake(&waker)) => {
                aside.dropped.push(waker);
            }
            Awaited::Message => self.receivers.push(waker),
        }
        aside
    }

    /// Records that nobody waits for this outcome. The memory of a posted request stays until it completes.
    pub(super) fn forget(&mut self, awaited: Awaited) -> Aside {
        let mut aside = Aside::default();
        let Awaited::Send(id) = awaited else { return aside };
        match self.sends.get_mut(&id) {
            Some(send) if send.wc.is_none() => {
                send.is_forgotten = true;
                aside.dropped.extend(send.waker.take());
            }
            _ => aside.keep(self.sends.remove(&id)),
        }
        aside
    }
}

impl Aside {
    fn keep(&mut self, send: Option<Send>) {
        let Some(send) = send else { return };
        self.memory.extend(send.memory);
        self.dropped.extend(send.waker);
    }

    /// Wakes the tasks and drops the rest.
    pub(super) fn finish(self) {
        wake_each(self.woken);
        drop_each(self.dropped);
    }
}
