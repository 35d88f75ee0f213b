//! The decisions about calls and completions.

use std::collections::BTreeMap;

use roce_transport::{Instant, WcStatus};

use super::errno::Errno;
use super::names::Verb;
use super::plan::{VerbsItem, VerbsPlan, WorkQueue};

/// The fault of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// The number of the call among those of its verb, from 1.
    pub call: u64,
    /// Nanoseconds that the call takes longer.
    pub delay_ns: u64,
    /// The error that the call reports without doing anything; `None` if it only takes longer.
    pub errno: Option<Errno>,
}

/// The fate of a completion that succeeded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CompletionFate {
    /// It has this status, and its queue pair goes to the error state.
    Fails {
        /// The number of the completion among those that its item counts, from 1.
        number: u64,
        /// The status, which is not a success.
        status: WcStatus,
    },
    /// It is flushed, because an earlier request of its queue failed.
    Flushed,
}

/// A queue pair that exists.
#[derive(Clone, Copy, Debug)]
struct QueuePair {
    /// Its order of creation, from 1.
    index: u32,
    /// Whether a request of its send queue, and one of its receive queue, failed since RESET.
    has_failed: [bool; 2],
}

/// Decides about the calls and completions of one process, one after the other.
///
/// ```
/// use roce_fault::verbs::{Verb, VerbsFaults};
/// use roce_transport::Instant;
///
/// let mut faults = VerbsFaults::new("ibv_reg_mr:2=ENOMEM".parse()?);
/// assert_eq!(faults.on_call(Verb::ibv_reg_mr, Instant::ZERO), None);
/// let fault = faults.on_call(Verb::ibv_reg_mr, Instant::ZERO).expect("the second call fails");
/// assert_eq!((fault.call, fault.errno.map(|errno| errno.get())), (2, Some(12)));
/// # Ok::<(), roce_fault::verbs::VerbsPlanError>(())
/// ```
#[derive(Debug)]
pub struct VerbsFaults {
    plan: VerbsPlan,
    /// Number of calls of each verb.
    calls: Vec<u64>,
    /// Number of completions that each item has counted.
    counted: Vec<u64>,
    /// The queue pairs, by the keys of the caller.
    queue_pairs: BTreeMap<u64, QueuePair>,
    created: u32,
}

impl VerbsFaults {
    /// Creates the state before the first call.
    #[must_use]
    pub fn new(plan: VerbsPlan) -> Self {
        let (calls, counted) = (vec![0; Verb::ALL.len()], vec![0; plan.items.len()]);
        Self { plan, calls, counted, queue_pairs: BTreeMap::new(), created: 0 }
    }

    /// Returns the plan.
    #[must_use]
    pub fn plan(&self) -> &VerbsPlan {
        &self.plan
    }

    /// Counts a call, and returns its fault. `now` is the time since the first verb of the process.
    pub fn on_call(&mut self, verb: Verb, now: Instant) -> Option<Fault> {
        let count = self.calls.get_mut(verb as usize)?;
        *count += 1;
        let mut fault = Fault { call: *count, delay_ns: 0, errno: None };
        for (index, item) in self.plan.items.iter().enumerate() {
            let VerbsItem::Call(item) = item else { continue };
            if item.verb == verb
                && item.window.contains(now)
                && item.which.includes(fault.call, self.plan.seed, index)
            {
                fault.delay_ns = fault.delay_ns.saturating_add(item.delay_ns);
                fault.errno = fault.errno.or(item.errno);
            }
        }
        (fault.delay_ns > 0 || fault.errno.is_some()).then_some(fault)
    }

    /// Adds a queue pair. `key` is a number that no other existing queue pair of the process has.
    pub fn created(&mut self, key: u64) {
        self.created = self.created.saturating_add(1);
        self.queue_pairs.insert(key, QueuePair { index: self.created, has_failed: [false; 2] });
    }

    /// Forgets the failures of a queue pair that went to RESET.
    pub fn reset(&mut self, key: u64) {
        if let Some(known) = self.queue_pairs.get_mut(&key) {
            known.has_failed = [false; 2];
        }
    }

    /// Removes a queue pair.
    pub fn destroyed(&mut self, key: u64) {
        self.queue_pairs.remove(&key);
    }

    /// Returns the key of the queue pair with this order of creation, if it exists.
    #[must_use]
    pub fn key_of(&self, index: u32) -> Option<u64> {
        self.queue_pairs.iter().find(|(_, known)| known.index == index).map(|(key, _)| *key)
    }

    /// Counts a completion that succeeded, and returns its fate if it is another one. Later completions of a
    /// queue with a failure are flushed and not counted.
    pub fn on_completion(&mut self, key: u64, queue: WorkQueue, now: Instant) -> Option<CompletionFate> {
        let known = self.queue_pairs.get_mut(&key)?;
        let has_failed = match queue {
            WorkQueue::Send => &mut known.has_failed[0],
            WorkQueue::Receive => &mut known.has_failed[1],
        };
        if *has_failed {
            return Some(CompletionFate::Flushed);
        }
        let mut fate = None;
        for (index, (item, counted)) in self.plan.items.iter().zip(&mut self.counted).enumerate() {
            let VerbsItem::Completion(item) = item else { continue };
            if item.queue.is_some_and(|wanted| wanted != queue) || item.qp.is_some_and(|qp| qp != known.index)
            {
                continue;
            }
            *counted += 1;
            if fate.is_none()
                && item.window.contains(now)
                && item.which.includes(*counted, self.plan.seed, index)
            {
                fate = Some(CompletionFate::Fails { number: *counted, status: item.status });
            }
        }
        *has_failed = fate.is_some();
        fate
    }
}
