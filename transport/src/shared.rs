//! What all queue pairs of an engine share.

use roce_packet::{Qpn, Telemetry};
use slab::Slab;

use crate::completion::{CompletionQueue, Wc};
use crate::config::EngineConfig;
use crate::counters::Counters;
use crate::event::{AsyncEvent, Event, EventQueue};
use crate::ids::CqId;
use crate::memory::KeyTable;
use crate::number_map::NumberMap;
use crate::rq::SharedReceiveQueue;
use crate::time::Instant;
use crate::xrc::XrcDomain;

/// Tables and queues beside the queue pairs themselves, so that one queue pair can be borrowed
/// together with all of this.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) now: Instant,
    /// Nanoseconds during which this process did not run: timers of retransmission stood still.
    pub(crate) paused: u64,
    pub(crate) config: EngineConfig,
    pub(crate) keys: KeyTable,
    pub(crate) cqs: Slab<CompletionQueue>,
    pub(crate) srqs: Slab<SharedReceiveQueue>,
    /// The place in `srqs` of those that peers name.
    pub(crate) srq_numbers: NumberMap,
    pub(crate) xrcds: Slab<XrcDomain>,
    pub(crate) events: EventQueue,
    pub(crate) counters: Counters,
    /// The in-band telemetry of the datagram that is being handled, and of the one that was written last.
    pub(crate) telemetry_in: Option<Telemetry>,
    pub(crate) telemetry_out: Option<Telemetry>,
    /// What the answer that is being handled says about its path, until it is known to come from the peer.
    pub(crate) answer: Option<AnswerOverPath>,
}

/// What an answer says about the path that it came on.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AnswerOverPath {
    /// Its hop limit on arrival, 0 if the device does not report it.
    pub(crate) hop_limit: u8,
    /// It echoes a congestion mark.
    pub(crate) marked: bool,
}

/// A completion was lost because its queue was full.
pub(crate) struct Overflow;

impl Shared {
    /// The time by which retransmissions are timed: without what passed while this process did not run.
    #[inline]
    pub(crate) fn watched(&self) -> Instant {
        Instant::from_nanos(self.now.as_nanos().saturating_sub(self.paused))
    }

    #[inline]
    pub(crate) fn push_wc(
        &mut self,
        cq: CqId,
        solicited: bool,
        make: impl FnOnce() -> Wc,
    ) -> Result<(), Overflow> {
        let Some(queue) = self.cqs.get_mut(cq.index()) else { return Err(Overflow) };
        let pushed = queue.push(solicited, make);
        if pushed.notify {
            self.events.push(Event::Completion(cq));
        }
        if pushed.overflowed {
            tracing::warn!(cq = cq.index(), "completion queue overflow");
            self.events.push_async(AsyncEvent::CqError(cq));
        }
        if pushed.is_lost { Err(Overflow) } else { Ok(()) }
    }

    pub(crate) fn discard_completions(&mut self, cq: CqId, qpn: Qpn) {
        if let Some(queue) = self.cqs.get_mut(cq.index()) {
            queue.discard(qpn);
        }
    }
}
