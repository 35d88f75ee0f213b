//! NSCC of the Ultra Ethernet specification 1.0: a window from marks, the delay of queues, and trimmed
//! packets.
//!
//! The constants are those of the specification's reference simulator, uet-htsim.

use core::time::Duration;

use crate::Instant;
use crate::math::power;
use crate::parameters::ParameterRange::Number;
use crate::parameters::{Parameters as _, parameters};
use crate::{Ack, CongestionControl, Loss, Observation, Start, Trim};

parameters! {
    /// The parameters of [`Nscc`].
    pub struct NsccParameters {
        /// Round trip through empty queues, the longest in the network.
        base_rtt: u32 = 12_000, Number(100, 100_000_000), "ns", "";
        /// Delay of queues at which the window neither grows nor shrinks; 0 for three quarters of `base_rtt`.
        target_delay: u32 = 0, Number(0, 100_000_000), "ns", "";
        /// Initial and maximum window, in relation to that of the line for `base_rtt`.
        max_window: u32 = 150, Number(1, 10_000), "%", "";
        /// Power of 2 that divides the maximum window: less than that in a round trip replaces it.
        quick_gate: u32 = 3, Number(0, 32), "", "";
        /// Whether a window is replaced by what arrived in a round trip.
        quick_adapt: bool = true, Number(0, 1), "", "";
    }
}

/// Network whose gains need no scaling: its rate in bits per second, and its round trip in nanoseconds.
const REFERENCE: (f64, f64) = (100e9, 12_000.0);
/// Growth in packets for each window that is acknowledged without a mark: with an empty queue, and above the
/// target.
const PROPORTIONAL: f64 = 4.0;
const FAIR: f64 = 5.0;
/// Growth in packets with each adjustment, at most once per round trip.
const STEADY: f64 = 0.15;
/// Growth for each acknowledged byte while the queue has been empty for a whole window.
const FAST: f64 = 0.25;
/// Delay below which a queue counts as empty, in nanoseconds.
const EMPTY: f64 = 1_000.0;
/// Weight of the excess over the target in a cut, and the least share that a cut leaves.
const GAMMA: f64 = 0.8;
const LEAST_SHARE: f64 = 0.5;
/// Weight of a new delay in the average.
const DELAY_WEIGHT: f64 = 0.0125;
/// Increases take effect once this number of packets is acknowledged, and at least once per round trip.
const PACKETS_PER_ADJUSTMENT: f64 = 8.0;
/// The window is replaced without a loss if the delay exceeds the target by this factor.
const QUICK_DELAY: f64 = 4.0;

/// The window of one queue pair.
///
/// The mark and the delay of an acknowledgement decide together. Without a mark the window grows: in
/// proportion to how far the delay is below the target, or fairly among flows above it. With a mark it keeps
/// its size below the target, because another path would help more, and shrinks above it, once per round trip
/// and in proportion to the average excess. Each trimmed packet takes its size from the window. If little
/// arrives in a round trip and packets were trimmed, the window becomes what arrived.
///
/// Needs echoed marks ([`Congestion::echo`](crate::Congestion::echo)). Notifications are ignored.
#[derive(Clone, Debug)]
pub struct Nscc {
    parameters: NsccParameters,
    mtu: f64,
    /// Bytes per nanosecond.
    line: f64,
    /// Shortest round trip so far, at most the configured one; in nanoseconds, like every delay here.
    least_rtt: f64,
    target: f64,
    /// The network of the queue pair in relation to [`REFERENCE`]: bytes on the way, and delay of queues.
    size: f64,
    delay_ratio: f64,
    /// Window in bytes, and its maximum.
    window: f64,
    most: f64,
    average_delay: f64,
    /// Sum of the increases since the last adjustment, in bytes times the window, and the bytes acknowledged
    /// since then.
    increase: f64,
    acknowledged: f64,
    adjusted: Instant,
    /// Bytes acknowledged in sequence while the queue was empty, and whether these are a whole window.
    empty_for: f64,
    is_fast: bool,
    cut: Option<Instant>,
    quick: Quick,
    rtt: Option<Duration>,
}

/// What arrives in a round trip, which may replace the window.
#[derive(Clone, Copy, Debug, Default)]
struct Quick {
    /// End of the round trip that is measured.
    end: Option<Instant>,
    arrived: f64,
    /// Whether a packet was lost or trimmed since the last replacement.
    lost: bool,
    /// Bytes that were in flight at the last replacement and still say nothing about the new window.
    old: f64,
    in_flight: f64,
}

impl Nscc {
    /// Creates an instance with the maximum window.
    #[must_use]
    pub fn new(parameters: &NsccParameters, start: &Start) -> Self {
        let parameters = parameters.in_range();
        let base_rtt = f64::from(parameters.base_rtt);
        let target = match parameters.target_delay {
            0 => base_rtt * 0.75,
            own => f64::from(own),
        };
        let (rate, rtt) = REFERENCE;
        let line_rate = start.line_rate.get() as f64;
        let mut new = Self {
            parameters,
            mtu: f64::from(start.mtu),
            line: line_rate / 8e9,
            least_rtt: base_rtt,
            target,
            size: line_rate * base_rtt / (rate * rtt),
            delay_ratio: target / rtt,
            window: f64::INFINITY,
            most: 0.0,
            average_delay: 0.0,
            increase: 0.0,
            acknowledged: 0.0,
            adjusted: Instant::ZERO,
            empty_for: 0.0,
            is_fast: false,
            cut: None,
            quick: Quick::default(),
            rtt: None,
        };
        new.set_base_rtt(base_rtt);
        new
    }

    /// Sets the base round trip, and with it the maximum window.
    fn set_base_rtt(&mut self, rtt: f64) {
        self.least_rtt = rtt;
        self.most = (self.line * rtt * f64::from(self.parameters.max_window) / 100.0).max(self.mtu);
        self.limit();
    }

    fn limit(&mut self) {
        self.window = self.window.clamp(self.mtu, self.most);
    }

    /// Returns the delay of queues that an acknowledgement shows. Only a measured round trip changes the
    /// average; without one, the average is all that is known.
    fn delay(&mut self, ack: &Ack) -> f64 {
        let Some(rtt) = ack.rtt else { return self.average_delay };
        self.rtt = Some(rtt);
        let rtt = (rtt.as_nanos() as f64).max(1.0);
        if rtt < self.least_rtt {
            self.set_base_rtt(rtt);
        }
        let delay = rtt - self.least_rtt;
        // A long queue whose packets are not marked drains already.
        let counts = if !ack.marked && delay > self.target { self.least_rtt * 0.25 } else { delay };
        self.average(counts);
        delay
    }

    fn average(&mut self, delay: f64) {
        self.average_delay += DELAY_WEIGHT * (delay - self.average_delay);
    }

    /// Replaces the window by what arrived in the last round trip, if that is little. Returns whether
    /// the event has thereby had its effect, or belongs to the time before the last replacement.
    fn adapt_quickly(&mut self, now: Instant, delay: f64, marked: bool) -> bool {
        if !self.parameters.quick_adapt {
            return false;
        }
        let mut is_done = false;
        if self.quick.old > 0.0 && marked {
            is_done = true;
        } else if self.quick.end.is_none_or(|end| now > end) {
            let gate = self.most / power(2.0, self.parameters.quick_gate.into());
            let is_congested = self.quick.lost || delay > QUICK_DELAY * self.target;
            if self.quick.end.is_some() && is_congested && self.quick.arrived < gate {
                self.window = self.quick.arrived;
                self.limit();
                self.quick.old = self.quick.in_flight;
                self.quick.lost = false;
                is_done = true;
            }
            self.quick.arrived = 0.0;
            self.quick.end = Some(now.plus_nanos((self.least_rtt + self.target) as u64));
        }
        if is_done {
            (self.increase, self.acknowledged) = (0.0, 0.0);
        }
        is_done
    }

    /// Notes the growth for `bytes` that were acknowledged without a mark.
    fn grow(&mut self, bytes: f64, delay: f64) {
        if delay >= self.target {
            self.increase += FAIR * self.mtu * self.size * bytes;
            return;
        }
        self.empty_for = if delay < EMPTY { self.empty_for + bytes } else { 0.0 };
        self.is_fast = delay < EMPTY && (self.is_fast || self.empty_for > self.window);
        if self.is_fast {
            self.window += FAST * self.size * bytes;
        } else {
            let gain = PROPORTIONAL * self.mtu * self.size * self.delay_ratio;
            self.increase += gain * bytes * (1.0 - delay / self.target);
        }
    }

    /// Cuts the window by the average excess over the target, at most once per round trip.
    fn shrink(&mut self, now: Instant) {
        (self.is_fast, self.empty_for) = (false, 0.0);
        let is_early = self.cut.is_some_and(|cut| now.since(cut).as_nanos() as f64 <= self.least_rtt);
        if self.average_delay > self.target && !is_early {
            let excess = (self.average_delay - self.target) / self.average_delay;
            self.window *= (1.0 - GAMMA * excess).max(LEAST_SHARE);
            self.cut = Some(now);
        }
    }

    /// Lets the noted increases take effect, if enough was acknowledged.
    fn adjust(&mut self, now: Instant) {
        let period = f64::from(self.parameters.base_rtt);
        let is_late = |adjusted| now.since(adjusted).as_nanos() as f64 >= period;
        if self.acknowledged <= PACKETS_PER_ADJUSTMENT * self.mtu && !is_late(self.adjusted) {
            return;
        }
        self.window += self.increase / self.window;
        if is_late(self.adjusted) {
            self.window += STEADY * self.mtu * self.size;
            self.adjusted = now;
        }
        (self.increase, self.acknowledged) = (0.0, 0.0);
        self.limit();
    }
}

impl CongestionControl for Nscc {
    fn on_ack(&mut self, now: Instant, ack: &Ack) {
        let bytes = ack.bytes as f64;
        self.quick.arrived += bytes;
        self.quick.old -= bytes;
        self.quick.in_flight = ack.in_flight as f64;
        self.acknowledged += bytes;
        let delay = self.delay(ack);
        if self.adapt_quickly(now, delay, ack.marked) {
            return;
        }
        match (ack.marked, delay >= self.target) {
            (false, _) => self.grow(bytes, delay),
            (true, true) => self.shrink(now),
            (true, false) => {}
        }
        self.limit();
        self.adjust(now);
    }

    fn on_trimmed(&mut self, now: Instant, trim: Trim) {
        let bytes = trim.bytes as f64;
        self.quick.old -= bytes;
        // How long the queue was that trimmed the packet is not known: about a round trip.
        self.average(f64::from(self.parameters.base_rtt));
        self.quick.lost = true;
        if !self.adapt_quickly(now, 0.0, true) {
            self.window -= bytes;
            self.limit();
        }
    }

    /// The first of several trimmed packets is a loss, too, and then takes its size twice.
    fn on_loss(&mut self, _now: Instant, _loss: Loss) {
        self.quick.lost = true;
        self.window -= self.mtu;
        self.limit();
    }

    fn window(&self) -> Option<u64> {
        Some(self.window as u64)
    }

    fn observe(&self, _now: Instant) -> Observation {
        Observation { rate: f64::INFINITY, window: self.window(), rtt: self.rtt, ..Observation::default() }
    }
}

#[cfg(test)]
mod tests {
    use roce_packet::Qpn;

    use super::*;
    use crate::Rate;

    const MTU: f64 = 4_000.0;
    /// 100 Gb/s for 12 us are 150,000 bytes.
    const MOST: f64 = 225_000.0;

    fn start() -> Start {
        let line_rate = Rate::megabits_per_second(100_000);
        Start { now: Instant::ZERO, qpn: Qpn::new(0x11), mtu: MTU as u32, line_rate }
    }

    /// An instance, and the time of its next event.
    struct Sender {
        law: Nscc,
        micros: u64,
    }

    impl Sender {
        fn new(text: &str) -> Self {
            let (congestion, _) = crate::Congestion::parse(text).unwrap();
            let crate::Algorithm::Nscc(parameters) = congestion.algorithm else {
                panic!("another algorithm")
            };
            Self { law: Nscc::new(&parameters, &start()), micros: 1_000 }
        }

        /// Without quick adaptation, and with this window.
        fn plain(window: f64) -> Self {
            let mut sender = Self::new("nscc:quick_adapt=0");
            sender.law.window = window;
            sender.law.adjusted = sender.now();
            sender
        }

        fn now(&self) -> Instant {
            Instant::from_nanos(self.micros * 1_000)
        }

        /// An acknowledgement whose round trip shows this delay.
        fn ack(&mut self, bytes: f64, delay_us: u64, marked: bool) {
            let rtt = Some(Duration::from_micros(12 + delay_us));
            let ack = Ack { bytes: bytes as u64, in_flight: 40_000, rtt, marked, hops: None };
            self.law.on_ack(self.now(), &ack);
        }

        fn trim(&mut self) {
            self.law.on_trimmed(self.now(), Trim { bytes: MTU as u64, is_repeated: false });
        }

        #[track_caller]
        fn expect(&self, window: f64) {
            assert!((self.law.window - window).abs() < 1e-6 * window, "{} is not {window}", self.law.window);
        }
    }

    #[test]
    fn the_first_window_is_the_maximum() {
        Sender::new("nscc:quick_adapt=0").expect(MOST);
        Sender::new("nscc:max_window=100").expect(MOST / 1.5);
        let mut sender = Sender::new("nscc:quick_adapt=0");
        sender.law.window = 10.0 * MTU;
        // A shorter round trip reduces the maximum.
        let rtt = Some(Duration::from_micros(6));
        sender.law.on_ack(sender.now(), &Ack { rtt, ..Ack::default() });
        assert_eq!((sender.law.most, sender.law.least_rtt), (MOST / 2.0, 6_000.0));
    }

    #[test]
    fn below_the_target_growth_is_proportional_to_the_distance() {
        // The target is 9 us; a third of it remains. The ratio of delays is 9 / 12.
        let mut sender = Sender::plain(20.0 * MTU);
        sender.ack(9.0 * MTU, 6, false);
        let growth = 4.0 * MTU * 0.75 * 9.0 / 20.0 / 3.0;
        sender.expect(20.0 * MTU + growth);
    }

    #[test]
    fn above_the_target_without_marks_growth_is_fair() {
        let mut sender = Sender::plain(20.0 * MTU);
        sender.ack(10.0 * MTU, 20, false);
        sender.expect(20.0 * MTU + 5.0 * MTU * 10.0 / 20.0);
    }

    #[test]
    fn increases_take_effect_after_eight_packets_or_a_round_trip() {
        let mut sender = Sender::plain(20.0 * MTU);
        sender.ack(8.0 * MTU, 20, false);
        sender.expect(20.0 * MTU);
        sender.micros += 12;
        sender.ack(0.0, 20, false);
        sender.expect(20.0 * MTU + 5.0 * MTU * 8.0 / 20.0 + 0.15 * MTU);
    }

    #[test]
    fn an_empty_queue_for_a_whole_window_makes_growth_fast() {
        let mut sender = Sender::plain(10.0 * MTU);
        sender.ack(8.0 * MTU, 0, false);
        sender.expect(10.0 * MTU);
        sender.ack(4.0 * MTU, 0, false);
        // The first eight packets grew proportionally, and take effect now.
        let fast = 10.0 * MTU + MTU;
        sender.expect(fast + 4.0 * MTU * 0.75 * 8.0 * MTU / fast);
    }

    #[test]
    fn a_mark_below_the_target_changes_nothing() {
        let mut sender = Sender::plain(20.0 * MTU);
        sender.ack(10.0 * MTU, 8, true);
        sender.expect(20.0 * MTU);
    }

    #[test]
    fn marks_above_the_target_cut_by_the_average_excess_once_per_round_trip() {
        let mut sender = Sender::plain(20.0 * MTU);
        // The average must exceed the target, too.
        sender.ack(0.0, 18, true);
        sender.expect(20.0 * MTU);
        sender.law.average_delay = 18_000.0;
        sender.ack(0.0, 18, true);
        let cut = 20.0 * MTU * (1.0 - 0.8 * 0.5);
        sender.expect(cut);
        sender.micros += 12;
        sender.ack(0.0, 18, true);
        assert!(sender.law.window >= cut, "not yet");
        sender.micros += 1;
        let before = sender.law.window;
        sender.law.average_delay = 1e9;
        sender.ack(0.0, 18, true);
        sender.expect(before / 2.0);
    }

    #[test]
    fn each_trimmed_packet_takes_its_size_down_to_one_packet() {
        let mut sender = Sender::plain(3.5 * MTU);
        for window in [2.5, 1.5, 1.0, 1.0] {
            sender.trim();
            sender.expect(window * MTU);
        }
        // Each of them counts as a delay of 12 us.
        let average = 12_000.0 * (1.0 - (1.0_f64 - 1.0 / 80.0).powi(4));
        assert!((sender.law.average_delay - average).abs() < 1e-6);
    }

    #[test]
    fn other_losses_take_one_packet() {
        for loss in [Loss::Nak, Loss::Timeout] {
            let mut sender = Sender::plain(3.0 * MTU);
            sender.law.on_loss(sender.now(), loss);
            sender.expect(2.0 * MTU);
        }
    }

    /// Returns a sender whose last round trip brought this much, and which was told of a trimmed packet.
    fn after_a_round_trip(bytes: f64) -> Sender {
        let mut sender = Sender::new("nscc");
        sender.ack(0.0, 5, false);
        sender.micros += 10;
        sender.ack(bytes, 5, false);
        sender.trim();
        sender.micros += 12;
        sender
    }

    #[test]
    fn what_arrives_in_a_round_trip_replaces_the_window_if_it_is_little() {
        let mut sender = after_a_round_trip(5.0 * MTU);
        sender.trim();
        sender.expect(5.0 * MTU);
        // An eighth of the maximum is 28,125 bytes, seven packets and a bit.
        let mut sender = after_a_round_trip(8.0 * MTU);
        let before = sender.law.window;
        sender.trim();
        sender.expect(before - MTU);
        let mut sender = Sender::new("nscc:quick_adapt=0");
        sender.law.window = 10.0 * MTU;
        sender.trim();
        sender.expect(9.0 * MTU);
    }

    #[test]
    fn what_was_in_flight_at_a_replacement_says_nothing_about_it() {
        let mut sender = after_a_round_trip(5.0 * MTU);
        sender.trim();
        // Ten packets were in flight; the last of them counts.
        for _ in 0..4 {
            sender.trim();
            sender.law.average_delay = 1e9;
            sender.ack(MTU, 18, true);
            sender.expect(5.0 * MTU);
        }
        for window in [5.0, 4.0] {
            sender.trim();
            sender.expect(window * MTU);
        }
    }

    #[test]
    fn a_long_delay_replaces_the_window_without_a_loss() {
        for (delay_us, is_replaced) in [(36, false), (37, true)] {
            let mut sender = Sender::new("nscc");
            sender.ack(0.0, 5, false);
            sender.micros += 22;
            sender.ack(2.0 * MTU, delay_us, true);
            assert_eq!(sender.law.window == 2.0 * MTU, is_replaced, "{delay_us} us: {}", sender.law.window);
        }
    }

    #[test]
    fn gains_are_scaled_to_the_network() {
        let line_rate = Rate::megabits_per_second(400_000);
        let parameters = NsccParameters { base_rtt: 6_000, quick_adapt: false, ..NsccParameters::default() };
        let mut law = Nscc::new(&parameters, &Start { line_rate, ..start() });
        assert_eq!((law.most, law.target, law.size), (450_000.0, 4_500.0, 2.0));
        (law.window, law.adjusted) = (20.0 * MTU, Instant::from_nanos(1_000_000));
        let rtt = Some(Duration::from_micros(12));
        let ack = Ack { bytes: 10 * MTU as u64, rtt, ..Ack::default() };
        law.on_ack(Instant::from_nanos(1_000_000), &ack);
        assert!((law.window - (20.0 * MTU + 2.0 * 5.0 * MTU / 2.0)).abs() < 1e-6, "{}", law.window);
    }
}
