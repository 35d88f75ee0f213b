//! Time: expired deadlines, and pauses during which retransmission timers stand still.

use core::time::Duration;

use super::Engine;
use super::qp::Halves;
use crate::Instant;
use crate::congestion::LineLimit;
use crate::timer::Timer;

/// A pause at least this long is certainly not a deliberate sleep: callers wake at least twice in this time.
const CERTAIN_PAUSE: Duration = Duration::from_secs(1);

impl Engine {
    /// Handles all expired deadlines. An early call has no effect.
    ///
    /// `pause` is zero, except when the device was not polled for that time before `now`, for example because
    /// this process was stopped or not scheduled. Retransmission timers stand still during the pause: a peer
    /// has its full time to answer while this side is able to receive the answer. A call with a pause handles
    /// no deadline, because the answers of the peer may have arrived in the meantime. Make it before the
    /// received datagrams are handled, and a call without a pause after all of them.
    ///
    /// A pause shorter than one second counts for at most 7/8 of the time since the last call without a
    /// pause. A caller that polls rarely and reports each interval as a pause therefore still detects the
    /// loss of a peer, after eight times the usual time.
    #[inline]
    pub fn handle_timeout(&mut self, now: Instant, pause: Duration) {
        self.set_now(now);
        if pause > Duration::ZERO {
            return self.stand_still(pause);
        }
        self.looked = self.shared.now;
        if self.timers.next().is_some_and(|deadline| deadline <= self.shared.now) {
            self.handle_expired();
        }
    }

    /// Makes the retransmission timers stand still for a pause that has just ended.
    #[cold]
    fn stand_still(&mut self, pause: Duration) {
        let since = self.shared.now.since(self.looked);
        let most = if pause < CERTAIN_PAUSE { since - since / 8 } else { since };
        let pause = pause.min(most).as_nanos() as u64;
        if pause > 0 {
            self.shared.paused = self.shared.paused.saturating_add(pause);
            self.shared.counters.timer_pauses += 1;
        }
    }

    fn handle_expired(&mut self) {
        let (now, watched) = (self.shared.now, self.shared.watched());
        while let Some(index) = self.timers.pop_due(now) {
            let Some(qp) = self.qps.get_mut(index) else { continue };
            // Rescheduling the queue pair in `settle` is sufficient.
            qp.core.deadlines.take_due(Timer::Pace, now);
            qp.core.deadlines.take_due(Timer::Turn, now);
            if let Halves::Rc(requester, _) = &mut qp.halves {
                if qp.core.deadlines.take_due(Timer::Rnr, now) {
                    requester.on_rnr_timer();
                }
                if qp.core.deadlines.take_due(Timer::Retry, watched) {
                    requester.on_retry_timer(&mut qp.core, &mut self.shared);
                }
                if qp.core.deadlines.take_due(Timer::Probe, watched) {
                    requester.on_probe_timer(&mut qp.core, &mut self.shared);
                }
                if qp.core.deadlines.take_due(Timer::Late, watched) {
                    requester.on_late_timer(&mut qp.core, &mut self.shared);
                }
            }
            self.settle(index);
        }
    }

    /// Returns the time at which [`handle_timeout`](Self::handle_timeout) is to be called next. This time may
    /// be earlier than the next actual event.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        // An overdue notification waits for the device or the link; its own time no longer matters.
        let notification = self.notifier.next().filter(|at| *at > self.shared.now);
        let waits = !self.ready.is_empty() || self.notifier.next().is_some();
        let link = self.line_limit.as_ref().filter(|_| waits).and_then(LineLimit::free_at);
        // Compare numbers: an optimized comparison of `Option`s reads the value of a `None` (memcheck).
        let nanos = |time: Option<Instant>| time.map_or(u64::MAX, Instant::as_nanos);
        let earliest = nanos(self.timers.next()).min(nanos(notification)).min(nanos(link));
        (earliest != u64::MAX).then(|| Instant::from_nanos(earliest))
    }
}
