//! The plan of faults of verbs as data.

use roce_transport::{Instant, WcStatus};

use super::errno::Errno;
use super::names::Verb;
use crate::plan::Chance;
use crate::random::SplitMix64;

/// A plan of faults of verbs, read from text such as
/// `ibv_reg_mr:3=ENOMEM; completion:send:5=IBV_WC_RETRY_EXC_ERR; port:down@2s..5s; seed=7`.
///
/// ```text
/// plan       = "none" | item *( ( ";" | newline ) item )       a "#" begins a comment
/// item       = "seed=" number | call | completion | port | device | qp | link
///
/// call       = verb *( ":" which | ":delay=" time ) [ "@" window ] [ "=" errno ]
/// completion = "completion" *( ":" which | ":send" | ":recv" | ":qp=" number ) [ "@" window ] "=" status
/// port       = "port" [ ":" device ] ":down@" window           IBV_EVENT_PORT_ERR, then
/// IBV_EVENT_PORT_ACTIVE device     = "device" [ ":" device ] ":fatal@" time          IBV_EVENT_DEVICE_FATAL
/// qp         = "qp:" number ":error@" time                     IBV_EVENT_QP_FATAL link       = "link" [ ":"
/// device ] ":flap@" size " for " time
///
/// which      = number | number ".." [ number ] | "every=" number | "p=" chance
/// verb       = the name of a function of libibverbs or librdmacm, such as ibv_reg_mr
/// errno      = a name such as ENOMEM, or a number from 1 to 4095
/// status     = a name such as IBV_WC_RETRY_EXC_ERR
/// device     = a name such as roce0; without one, the item applies to every device
/// window     = time [ ".." [ time ] ]                          without a second time, it does not end
/// time       = decimal ( "ns" | "us" | "ms" | "s" )            since the first verb of the process
/// size       = decimal ( "KiB" | "MiB" | "GiB" )               bytes that the device has sent
/// ```
///
/// Calls of a verb and completions are counted from 1, in one process. Queue pairs are counted from 1 in the
/// order of their creation. Only completions that succeeded count, after the conditions `send`, `recv` and
/// `qp`. If several items apply to a call, their delays add up, and the first error number counts.
///
/// ```
/// use roce_fault::verbs::VerbsPlan;
///
/// let plan: VerbsPlan = "ibv_reg_mr:3=ENOMEM;ibv_post_send:p=1%:delay=2ms".parse()?;
/// assert_eq!(plan.items.len(), 2);
///
/// let error = "ibv_regmr:3=ENOMEM".parse::<VerbsPlan>().unwrap_err();
/// assert!(error.to_string().contains("did you mean `ibv_reg_mr`?"));
/// # Ok::<(), roce_fault::verbs::VerbsPlanError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct VerbsPlan {
    /// The seed of `p=`; 0 if the text has none.
    pub seed: u64,
    /// The faults, in the order of the text.
    pub items: Vec<VerbsItem>,
}

/// One item of a [`VerbsPlan`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum VerbsItem {
    /// Calls fail, or take longer.
    Call(CallFault),
    /// Work requests complete with an error.
    Completion(CompletionFault),
    /// Something fails at a point in time.
    Outage(Outage),
    /// The link goes down after a number of bytes.
    Flap(LinkFlap),
}

/// Calls of a verb that fail or take longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallFault {
    /// The function.
    pub verb: Verb,
    /// The selected calls.
    pub which: Which,
    /// The time in which calls are selected.
    pub window: Window,
    /// Nanoseconds that the call takes longer.
    pub delay_ns: u64,
    /// The error that the call reports without doing anything.
    pub errno: Option<Errno>,
}

/// Work requests that complete with an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompletionFault {
    /// The kind of requests, or both if `None`.
    pub queue: Option<WorkQueue>,
    /// The queue pair by its order of creation from 1, or all of them if `None`.
    pub qp: Option<u32>,
    /// The selected completions among those of this kind and queue pair.
    pub which: Which,
    /// The time in which completions are selected.
    pub window: Window,
    /// The status of the completion.
    pub status: WcStatus,
}

/// The queue of a work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WorkQueue {
    /// The send queue.
    Send,
    /// The receive queue, or a shared receive queue.
    Receive,
}

/// A failure at a point in time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outage {
    /// The port is down during a window.
    Port {
        /// The name of the device, or all devices if `None`.
        device: Option<String>,
        /// The time during which the port is down.
        window: Window,
    },
    /// The device fails, forever.
    Device {
        /// The name of the device, or all devices if `None`.
        device: Option<String>,
        /// The time of the failure.
        at_ns: u64,
    },
    /// A queue pair goes to the error state.
    QueuePair {
        /// The queue pair by its order of creation from 1.
        qp: u32,
        /// The time of the failure.
        at_ns: u64,
    },
}

/// A link that goes down after a number of sent bytes, and comes back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkFlap {
    /// The name of the device, or all devices if `None`.
    pub device: Option<String>,
    /// The number of bytes after which the link goes down.
    pub after_bytes: u64,
    /// Nanoseconds for which it stays down.
    pub for_ns: u64,
}

/// A selection among numbered calls or completions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// All of them.
    All,
    /// Those from the first to the last number, or to the end if the last one is `None`.
    Numbers(u64, Option<u64>),
    /// Each one whose number is a multiple of this.
    Every(u64),
    /// Each one with this chance.
    Chance(Chance),
}

impl Which {
    /// Returns whether the selection contains a number. `seed` and `item` decide about those with a chance:
    /// the result does not depend on any other call.
    pub(super) fn includes(self, number: u64, seed: u64, item: usize) -> bool {
        match self {
            Self::All => true,
            Self::Numbers(first, last) => first <= number && last.is_none_or(|last| number <= last),
            Self::Every(step) => number.is_multiple_of(step),
            Self::Chance(chance) => {
                let of_item = SplitMix64::new(seed.wrapping_add(item as u64)).draw();
                let draw = SplitMix64::new(of_item.wrapping_add(number)).draw();
                chance.hits((draw >> 32) as u32)
            }
        }
    }
}

/// A time from the first verb of the process on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Window {
    /// The begin in nanoseconds.
    pub from_ns: u64,
    /// The end in nanoseconds, which does not belong to the window; `None` if it does not end.
    pub until_ns: Option<u64>,
}

impl Window {
    /// Returns whether the window contains a point in time.
    #[must_use]
    pub fn contains(self, now: Instant) -> bool {
        self.from_ns <= now.as_nanos() && self.until_ns.is_none_or(|until| now.as_nanos() < until)
    }
}

/// A change at a point in time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timed {
    /// Time since the first verb of the process.
    pub at: Instant,
    /// The change.
    pub what: Occurrence,
}

/// A change of a port, device or queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Occurrence {
    /// The state of a port changes; [`LinkFaults`](super::LinkFaults) knows it.
    Port,
    /// A device fails; [`LinkFaults`](super::LinkFaults) knows it.
    Device,
    /// A queue pair, by its order of creation from 1, goes to the error state.
    QueuePair(u32),
}

impl VerbsPlan {
    /// Returns whether the plan has no faults.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Returns all changes at points in time, earliest first.
    #[must_use]
    pub fn timeline(&self) -> Vec<Timed> {
        let mut changes = Vec::new();
        let mut add = |at_ns, what| changes.push(Timed { at: Instant::from_nanos(at_ns), what });
        for item in &self.items {
            let VerbsItem::Outage(outage) = item else { continue };
            match outage {
                Outage::Port { window, .. } => {
                    add(window.from_ns, Occurrence::Port);
                    if let Some(until_ns) = window.until_ns {
                        add(until_ns, Occurrence::Port);
                    }
                }
                Outage::Device { at_ns, .. } => add(*at_ns, Occurrence::Device),
                Outage::QueuePair { qp, at_ns } => add(*at_ns, Occurrence::QueuePair(*qp)),
            }
        }
        changes.sort_by_key(|change| change.at);
        changes
    }
}
