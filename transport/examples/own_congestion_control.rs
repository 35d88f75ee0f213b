//! A congestion control algorithm of one's own, complete, and a network to watch it in.
//!
//! ```sh
//! cargo run -p roce-transport --example own_congestion_control > rate.csv
//! ```
//!
//! The algorithm is the oldest there is: half as fast when the network says so, a little faster as long as it does not.

use roce_sim::pair::{Action, Pair, Settings, Side};
use roce_transport::congestion::{Algorithm, Congestion, CongestionControl, Observation, Rate, Start};
use roce_transport::{EngineConfig, Instant, QpType, SendOp, SendWr};

/// Halves the rate with a notification, at most once in a period, and raises it by a step in each period without one.
#[derive(Debug)]
struct HalveAndStep {
    rate: u64,
    line_rate: u64,
    /// When the rate is raised next; `None` before the first notification.
    raise_at: Option<Instant>,
}

const STEP: u64 = 100_000_000;
const FLOOR: u64 = 10_000_000;
const PERIOD_NS: u64 = 50_000;

impl HalveAndStep {
    fn new(start: &Start) -> Self {
        Self { rate: start.line_rate.get(), line_rate: start.line_rate.get(), raise_at: None }
    }

    /// Makes up for the steps that are due. Nobody calls while there is nothing to send, so it may be many.
    fn catch_up(&mut self, now: Instant) {
        while let Some(at) = self.raise_at.filter(|at| *at <= now) {
            self.rate = (self.rate + STEP).min(self.line_rate);
            // At the top there is nothing left to raise.
            self.raise_at = (self.rate < self.line_rate).then(|| at.plus_nanos(PERIOD_NS));
        }
    }
}

impl CongestionControl for HalveAndStep {
    fn on_cnp(&mut self, now: Instant) {
        self.catch_up(now);
        // The next step is a period after the last cut; a notification before that is old news.
        let just_cut = self.raise_at.is_some_and(|at| now.plus_nanos(PERIOD_NS / 2) < at);
        if !just_cut {
            self.rate = (self.rate / 2).max(FLOOR);
            self.raise_at = Some(now.plus_nanos(PERIOD_NS));
        }
    }

    fn on_timer(&mut self, now: Instant) {
        self.catch_up(now);
    }

    fn next_timer(&self) -> Option<Instant> {
        self.raise_at
    }

    fn rate(&self) -> Rate {
        Rate::bits_per_second(self.rate)
    }

    fn observe(&self, _now: Instant) -> Observation {
        Observation { rate: self.rate as f64, ..Observation::default() }
    }
}

/// Sends through a link of 10 Gb/s for 20 ms; the link marks what finds more than 20 packets waiting. Returns the time in
/// microseconds and the rate in bits a second, each 50 µs.
pub(crate) fn run() -> Vec<(u64, f64)> {
    let algorithm = Algorithm::custom("halve-and-step", |start| Box::new(HalveAndStep::new(start)));
    let mut config = EngineConfig::from_number(1);
    config.congestion = Congestion::new(algorithm);
    config.line_rate = Rate::megabits_per_second(40_000);
    let mut pair = Pair::with_config(config, 1 << 20);
    // A packet of path MTU 1024 takes 885 ns.
    pair.packet_time_ns = 885;
    let mut free_at = 0_u64;
    pair.set_script(move |sent| {
        if sent.from == Side::B {
            return Action::Pass;
        }
        let now = sent.at.as_nanos();
        let waiting = free_at.saturating_sub(now) / 885;
        free_at = free_at.max(now) + 885;
        if waiting > 20 { Action::Mark } else { Action::Pass }
    });
    let (a, _) = pair.connect_with(QpType::Rc, &Settings::default());
    let source = pair.host(Side::A).memory_range(0, 1 << 20);
    let target = pair.host(Side::B).memory_range(0, 1 << 20);
    let op = SendOp::Write { remote_addr: target.addr, rkey: pair.host(Side::B).rkey() };
    for wr_id in 0..30 {
        pair.post_send(Side::A, a, &SendWr::new(wr_id, op, &[source])).expect("the queue has room");
    }
    let begin = pair.now;
    let mut seen = Vec::new();
    for micros in (0..20_000).step_by(50) {
        pair.drive_until(begin.plus_nanos(micros * 1000));
        let now = begin.plus_nanos(micros * 1000);
        let observation = pair.host(Side::A).engine.congestion(now, a).expect("it has an algorithm");
        seen.push((micros, observation.rate));
    }
    seen
}

#[allow(dead_code, reason = "a test takes this file as a module")]
fn main() {
    println!("time_us,rate_bps");
    for (micros, rate) in run() {
        println!("{micros},{rate}");
    }
}
