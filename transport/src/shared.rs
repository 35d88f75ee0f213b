//! State that all queue pairs of an engine share.

use roce_packet::{Qpn, Telemetry};
use slab::Slab;

use crate::Instant;
use crate::completion::{CompletionQueue, Wc};
use crate::config::EngineConfig;
use crate::congestion::ReadPace;
use crate::counters::Counters;
use crate::event::{AsyncEvent, Event, EventQueue};
use crate::ids::CqId;
use crate::memory::KeyTable;
use crate::number_map::NumberMap;
use crate::rq::SharedReceiveQueue;
use crate::xrc::XrcDomain;

/// Tables and queues outside the queue pairs, so that one queue pair can be borrowed together with them.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) now: Instant,
    /// Total nanoseconds during which this process did not run and retransmission timers stood still.
    pub(crate) paused: u64,
    pub(crate) config: EngineConfig,
    pub(crate) keys: KeyTable,
    pub(crate) cqs: Slab<CompletionQueue>,
    pub(crate) srqs: Slab<SharedReceiveQueue>,
    /// Index into `srqs` by the number that peers use.
    pub(crate) srq_numbers: NumberMap,
    pub(crate) xrcds: Slab<XrcDomain>,
    pub(crate) events: EventQueue,
    pub(crate) counters: Counters,
    /// In-band telemetry of the datagram that is handled (`in`) or written (`out`). Empty between calls.
    pub(crate) telemetry_in: Option<Telemetry>,
    pub(crate) telemetry_out: Option<Telemetry>,
    /// Path information of the answer that is being handled, until the answer is proven to be from the peer.
    pub(crate) answer: Option<AnswerOverPath>,
    /// The limit of READ responses, if the settings have one.
    pub(crate) reads: Option<ReadPace>,
}

/// Information about the path on which an answer arrived.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AnswerOverPath {
    /// Hop limit on arrival, or 0 if the device does not report it.
    pub(crate) hop_limit: u8,
    /// Whether the answer echoes a congestion mark.
    pub(crate) marked: bool,
}

/// A lost completion: its queue was full.
pub(crate) struct Overflow;

impl Shared {
    /// Returns the clock of retransmission timers, which excludes the time while this process did not run.
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
