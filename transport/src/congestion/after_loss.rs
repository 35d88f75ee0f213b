//! The rate of a queue pair without congestion control, from a loss until it is as fast as before.
//!
//! Losses are the only sign of a queue that overflows, and packets that are retransmitted at once find the
//! queue still full. The law compares two times: how long packets left without a loss, and how long the
//! report of the loss then took. If the report took longer, packets left faster than they were delivered, and
//! the rate is reduced to the rate of delivery over both times. A reduction therefore never costs more time
//! than the losses themselves, even if losses are random. Without further losses the rate grows, slowly at
//! first, until it limits nothing any more. If losses continue, the limit is lifted occasionally, and stays
//! lifted for a while if more packets are then delivered.

use core::time::Duration;

use roce_packet::Psn;

use super::{CongestionControl, Rate};
use crate::Instant;

/// Interval of increases. The rate grows by one part of the top, then by two, and so on: to the top in 1 s.
const STEP_NANOS: u64 = 8_000_000;
const PARTS: u64 = 8_192;
/// A loss after fewer packets says little about the rate of delivery.
const FEW: u32 = 32;
/// Minimum part of the rate after a reduction if the rate of delivery is unknown.
const LEAST_PART: f64 = 0.5;
/// Factor of the recorded rate of delivery at each reduction.
const FADING: f64 = 7.0 / 8.0;
/// Maximum number of losses of one kind that offset losses of the other kind.
const MOST_VOTES: i32 = 4;
/// Losses with more packets between them are rare. Their delay must be less than this part of that time.
const RARE: u32 = 768;
const RARE_PART: u32 = 8;
/// Number of losses with the limit before a trial without it. If the trial does not deliver more packets, the
/// number doubles for the next trial, up to the maximum.
const BETWEEN_TRIALS: u32 = 16;
const MOST_BETWEEN_TRIALS: u32 = BETWEEN_TRIALS << 8;
/// Number of losses in a trial.
const TRIAL: u32 = 16;
/// Losses after which a trial may end early, if `CLEAR` times as much was delivered with the limit.
const CLEAR_AFTER: u32 = 3;
const CLEAR: f64 = 4.0;
/// Number of losses for which the limit stays lifted if a trial delivers more. It doubles the next time.
const LIFTED: u32 = 4 * TRIAL;
const MOST_LIFTED: u32 = LIFTED << 8;
/// Number of steps without a loss after which a lifted limit is removed.
const QUIET_STEPS: u64 = 125;
/// Minimum rate in packets per second.
const LEAST_PACKETS: u64 = 1_000;

/// The evidence of a loss.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LostAfter {
    /// Packets that left before the lost one without a loss, and the time that they took.
    pub(crate) packets: u32,
    pub(crate) time: Duration,
    /// Time from then until the report of the loss.
    pub(crate) delay: Duration,
    /// Whether the report waited for a timer, so that the delay says little about the queue.
    pub(crate) by_timeout: bool,
    /// The lost packet: those before it were delivered.
    pub(crate) psn: Psn,
}

/// The law of one queue pair.
#[derive(Debug)]
pub(crate) struct AfterLoss {
    rate: Rate,
    /// The rate from which on there is no limit.
    top: Rate,
    floor: Rate,
    mtu: u32,
    /// Highest recent rate of delivery in bits per second. The queue cannot have been faster.
    delivered: f64,
    /// Number of losses that support a reduction minus those that do not.
    votes: i32,
    /// Time of the last loss, and bytes sent since then.
    event: Instant,
    sent: u64,
    trial: Trial,
    /// Number of steps since the last reduction, and the time of the next step.
    steps: u64,
    next_step: Instant,
}

impl AfterLoss {
    /// Creates the law after a first loss, or returns `None` if the loss does not justify a limit. `mtu` and
    /// `line_rate` are those of the queue pair.
    pub(crate) fn begin(now: Instant, loss: &LostAfter, mtu: u32, line_rate: Rate) -> Option<Self> {
        let top = match rate_of(loss.packets, mtu, loss.time) {
            rate if loss.packets >= FEW && rate.is_finite() => line_rate.min(Rate::from_float(rate)),
            _ => line_rate,
        };
        let floor = Rate::bits_per_second(u64::from(mtu) * 8 * LEAST_PACKETS);
        let mut law = Self {
            rate: top,
            top,
            floor,
            mtu,
            delivered: 0.0,
            votes: 0,
            event: now,
            sent: 0,
            trial: Trial::new(now, loss.psn),
            steps: 0,
            next_step: now.plus_nanos(STEP_NANOS),
        };
        law.reduce(now, loss).then_some(law)
    }

    /// Handles a loss. Returns whether it reduced the rate.
    pub(crate) fn lost(&mut self, now: Instant, loss: &LostAfter) -> bool {
        // Packets that left after the previous loss and before this one.
        let whole = now.since(self.event);
        let time = whole.saturating_sub(loss.delay);
        let packets = self.sent / u64::from(self.mtu.max(1));
        let share = if whole.is_zero() { 0.0 } else { time.as_secs_f64() / whole.as_secs_f64() };
        let since = LostAfter { packets: (packets as f64 * share) as u32, time, ..*loss };
        (self.event, self.sent) = (now, 0);
        let longer = if since.time > loss.time { &since } else { loss };
        self.note_delivery(loss);
        let was_lifted = self.trial.is_lifted();
        self.trial.lost(now, loss.psn, self.rate < self.top);
        if was_lifted || self.trial.is_lifted() {
            (self.steps, self.next_step) = (0, now.plus_nanos(STEP_NANOS));
            return false;
        }
        self.reduce(now, longer)
    }

    /// Tells whether there is no limit any more, and no further loss is expected.
    pub(crate) fn is_over(&self) -> bool {
        if self.trial.is_lifted() { self.steps >= QUIET_STEPS } else { self.rate >= self.top }
    }

    fn note_delivery(&mut self, loss: &LostAfter) {
        if loss.packets >= FEW {
            let rate = rate_of(loss.packets, self.mtu, loss.time + loss.delay);
            self.delivered = self.delivered.max(rate);
        }
    }

    /// Reduces the rate if the losses justify it. Returns whether they do.
    fn reduce(&mut self, now: Instant, loss: &LostAfter) -> bool {
        self.note_delivery(loss);
        let bearable = if loss.packets < RARE { loss.time } else { loss.time / RARE_PART };
        let vote = if loss.delay > bearable { 1 } else { -1 };
        self.votes = (self.votes + vote).clamp(-MOST_VOTES, MOST_VOTES);
        if self.votes <= 0 {
            return false;
        }
        let rate = self.rate.get() as f64;
        let unknown = self.delivered == 0.0 || loss.by_timeout;
        let target = if unknown { self.delivered.max(rate * LEAST_PART) } else { self.delivered };
        self.delivered *= FADING;
        (self.steps, self.next_step) = (0, now.plus_nanos(STEP_NANOS));
        self.rate = Rate::from_float(target.min(rate * FADING)).max(self.floor.min(self.top));
        true
    }

    /// Doubles the rate because the peer is impatient: it repeats requests for packets that have not left.
    pub(crate) fn too_slow(&mut self) {
        self.rate = Rate::bits_per_second(self.rate.get().saturating_mul(2));
    }
}

impl CongestionControl for AfterLoss {
    fn on_send(&mut self, now: Instant, bytes: u32) {
        self.sent += u64::from(bytes);
        if now >= self.next_step {
            self.steps += 1;
            self.next_step = now.plus_nanos(STEP_NANOS);
            if self.trial.is_lifted() {
                return;
            }
            // The step is equal for all queue pairs of a device, so slow queue pairs approach fast ones.
            let more = (self.top.get() / PARTS).saturating_mul(self.steps);
            self.rate = Rate::bits_per_second(self.rate.get().saturating_add(more));
        }
    }

    fn rate(&self) -> Rate {
        if self.rate < self.top && !self.trial.is_lifted() { self.rate } else { Rate::UNLIMITED }
    }
}

/// Tests whether the limit is useful: it is lifted occasionally, and the rates of delivery are compared.
#[derive(Debug)]
struct Trial {
    phase: Phase,
    /// Number of losses left in the phase.
    left: u32,
    began: Instant,
    /// The newest lost packet, and the number of packets delivered since the phase began.
    last: Psn,
    passed: u64,
    /// Packets per second delivered with the limit.
    limited: f64,
    between: u32,
    lifted: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Limited,
    /// The limit is lifted to measure the rate of delivery.
    Tried,
    /// The limit stays lifted because more was delivered without it.
    Lifted,
}

impl Trial {
    fn new(now: Instant, psn: Psn) -> Self {
        Self {
            phase: Phase::Limited,
            left: BETWEEN_TRIALS,
            began: now,
            last: psn,
            passed: 0,
            limited: 0.0,
            between: BETWEEN_TRIALS,
            lifted: LIFTED,
        }
    }

    const fn is_lifted(&self) -> bool {
        !matches!(self.phase, Phase::Limited)
    }

    /// Handles the loss of `psn`. `is_limited` tells whether the rate was reduced and is below the top.
    fn lost(&mut self, now: Instant, psn: Psn, is_limited: bool) {
        // An older packet was retransmitted and lost again.
        if self.last.before(psn) {
            self.passed += u64::from(self.last.distance_to(psn));
            self.last = psn;
        }
        self.left = self.left.saturating_sub(1);
        let time = now.since(self.began).as_secs_f64();
        let rate = self.passed as f64 / time;
        match self.phase {
            Phase::Limited if self.left == 0 && is_limited => {
                self.limited = rate;
                self.begin(Phase::Tried, TRIAL, now);
            }
            Phase::Tried if self.left == 0 && rate > self.limited => {
                self.begin(Phase::Lifted, self.lifted, now);
                self.lifted = (2 * self.lifted).min(MOST_LIFTED);
                self.between = BETWEEN_TRIALS;
            }
            Phase::Tried
                if self.left == 0 || TRIAL - self.left >= CLEAR_AFTER && rate * CLEAR < self.limited =>
            {
                self.between = (2 * self.between).min(MOST_BETWEEN_TRIALS);
                self.lifted = LIFTED;
                self.begin(Phase::Limited, self.between, now);
            }
            Phase::Lifted if self.left == 0 => self.begin(Phase::Limited, BETWEEN_TRIALS, now),
            Phase::Limited | Phase::Tried | Phase::Lifted => {}
        }
    }

    fn begin(&mut self, phase: Phase, losses: u32, now: Instant) {
        (self.phase, self.left, self.began, self.passed) = (phase, losses, now, 0);
    }
}

/// Returns the bits per second of `packets` in a time, or infinity if the time is zero.
fn rate_of(packets: u32, mtu: u32, time: Duration) -> f64 {
    f64::from(packets) * f64::from(mtu) * 8.0 / time.as_secs_f64()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MTU: u32 = 1_000;
    const LINE: Rate = Rate::megabits_per_second(100_000);

    fn loss(packets: u32, time_us: u64, delay_us: u64) -> LostAfter {
        let (time, delay) = (Duration::from_micros(time_us), Duration::from_micros(delay_us));
        LostAfter { packets, time, delay, by_timeout: false, psn: Psn::new(0) }
    }

    fn at(micros: u64) -> Instant {
        Instant::from_nanos(micros * 1_000)
    }

    fn begin(packets: u32, time_us: u64, delay_us: u64) -> Option<AfterLoss> {
        AfterLoss::begin(at(time_us + delay_us), &loss(packets, time_us, delay_us), MTU, LINE)
    }

    #[test]
    fn a_queue_that_overflowed_sets_the_rate_of_delivery() {
        // 1,000 packets in 0.4 ms, delivered 19.6 ms later: 50 packets a millisecond.
        let law = begin(1_000, 400, 19_600).unwrap();
        assert_eq!(law.rate(), Rate::megabits_per_second(400));
    }

    #[test]
    fn a_loss_that_is_reported_soon_limits_nothing() {
        assert!(begin(100, 100, 50).is_none());
    }

    /// A reduction never makes the time between two losses longer than the delay of a report. Random losses
    /// therefore cost at most about twice the time that they cost without the law.
    #[test]
    fn random_loss_does_not_collapse() {
        let delay = 50;
        let mut law = begin(40, 20, delay).unwrap();
        let mut now = at(1_000);
        for round in 0..200_u64 {
            let packets = [20, 300, 100, 5, 150][(round % 5) as usize];
            let time = Duration::from_secs_f64(f64::from(packets * MTU * 8) / law.rate.get() as f64);
            for _ in 0..packets {
                law.on_send(now, MTU);
            }
            now = now.plus_nanos((time + Duration::from_micros(delay)).as_nanos() as u64);
            let delay = Duration::from_micros(delay);
            law.lost(now, &LostAfter { packets, time, delay, by_timeout: false, psn: Psn::new(0) });
        }
        // 100 packets in 200 us, four times the delay.
        assert!(law.rate >= Rate::megabits_per_second(4_000), "{}", law.rate);
    }

    #[test]
    fn the_rate_never_falls_below_the_floor_and_comes_back() {
        let mut law = begin(1, 0, 67_000).unwrap();
        for round in 2..200 {
            law.lost(at(67_000 * round), &loss(0, 0, 67_000));
        }
        assert_eq!(law.rate(), Rate::megabits_per_second(8));
        let mut millis = 0;
        while !law.rate().is_unlimited() {
            millis += 1;
            law.on_send(at(20_000_000 + millis * 1_000), MTU);
        }
        assert!((900..1_200).contains(&millis), "{millis}");
    }

    #[test]
    fn a_timer_says_nothing_about_the_rate_of_delivery() {
        let mut law = begin(1_000, 400, 19_600).unwrap();
        let timeout = LostAfter { by_timeout: true, ..loss(1_000, 20_000, 67_000) };
        law.lost(at(200_000), &timeout);
        // 1,000 packets in 87 ms would be 92 Mb/s.
        assert!(law.rate() >= Rate::megabits_per_second(200), "{}", law.rate());
    }

    #[test]
    fn a_peer_that_waits_for_what_has_not_left_speeds_it_up() {
        let mut law = begin(1_000, 400, 19_600).unwrap();
        law.too_slow();
        assert_eq!(law.rate(), Rate::megabits_per_second(800));
    }

    fn lose(law: &mut AfterLoss, count: u32, packets: u32, micros: &mut u64, each_us: u64, psn: &mut u32) {
        for _ in 0..count {
            (*micros, *psn) = (*micros + each_us, *psn + packets);
            law.lost(at(*micros), &LostAfter { psn: Psn::new(*psn), ..loss(packets, 10, 500) });
        }
    }

    /// The limit is lifted for a trial, and stays lifted only while more packets are delivered.
    #[test]
    fn a_limit_that_lets_less_through_is_lifted() {
        for (without_us, is_lifted) in [(400, true), (900, false)] {
            let mut law = begin(100, 10, 500).unwrap();
            let (mut micros, mut psn) = (1_000, 100);
            lose(&mut law, BETWEEN_TRIALS, 100, &mut micros, 600, &mut psn);
            assert!(law.rate().is_unlimited(), "a trial");
            lose(&mut law, TRIAL, 100, &mut micros, without_us, &mut psn);
            assert_eq!(law.rate().is_unlimited(), is_lifted, "{without_us} us");
            assert!(!law.is_over(), "losses go on");
        }
    }

    #[test]
    fn a_trial_in_which_hardly_anything_gets_through_ends_early() {
        let mut law = begin(100, 10, 500).unwrap();
        let (mut micros, mut psn) = (1_000, 100);
        lose(&mut law, BETWEEN_TRIALS, 100, &mut micros, 600, &mut psn);
        lose(&mut law, CLEAR_AFTER, 100, &mut micros, 67_000, &mut psn);
        assert!(!law.rate().is_unlimited());
        lose(&mut law, 2 * BETWEEN_TRIALS - 1, 100, &mut micros, 600, &mut psn);
        assert!(!law.rate().is_unlimited(), "the next trial comes later");
        lose(&mut law, 1, 100, &mut micros, 600, &mut psn);
        assert!(law.rate().is_unlimited());
    }
}
