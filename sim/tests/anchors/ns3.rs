//! DCQCN as the two ns-3 simulators compute it.
//!
//! It cuts the rate at other times than the device form. The first notification starts a clock of the monitor
//! period. Each tick cuts the rate if a notification arrived since the previous tick. So the first cut comes
//! one whole period after the first notification, which determines the queue of the first burst. There is no
//! byte counter.

use roce_packet::Qpn;
use roce_transport::Instant;
use roce_transport::congestion::{Ack, CongestionControl, Dcqcn, DcqcnParameters, Observation, Rate, Start};

/// The parameters, with times in ns and rates in bits per second.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Parameters {
    pub(crate) alpha_period: u64,
    pub(crate) cut_period: u64,
    pub(crate) increase_period: u64,
    pub(crate) stages: u32,
    pub(crate) additive: f64,
    pub(crate) hyper: f64,
    pub(crate) least: f64,
}

impl Parameters {
    /// Returns the parameters with all rates multiplied by `factor`.
    pub(crate) fn scaled(self, factor: f64) -> Self {
        Self {
            additive: self.additive * factor,
            hyper: self.hyper * factor,
            least: self.least * factor,
            ..self
        }
    }
}

pub(crate) const MLX100: Parameters = Parameters {
    alpha_period: 1_000,
    cut_period: 4_000,
    increase_period: 300_000,
    stages: 1,
    additive: 20e6,
    hyper: 200e6,
    least: 100e6,
};

pub(crate) const PAPER40: Parameters = Parameters {
    alpha_period: 55_000,
    cut_period: 50_000,
    increase_period: 55_000,
    stages: 5,
    additive: 40e6,
    hyper: 200e6,
    least: 100e6,
};

const GAIN: f64 = 1.0 / 256.0;

#[derive(Debug)]
pub(crate) struct Ns3Dcqcn {
    parameters: Parameters,
    most: f64,
    rate: f64,
    /// The rate when the last packet left, which decides when the next packet may leave.
    pace: f64,
    target: f64,
    alpha: f64,
    stage: u32,
    /// The next ticks, after the first notification.
    clock: Option<Clock>,
    increase_at: Option<u64>,
}

#[derive(Clone, Copy, Debug)]
struct Clock {
    alpha_at: u64,
    alpha_notified: bool,
    cut_at: u64,
    cut_notified: bool,
}

impl Ns3Dcqcn {
    pub(crate) fn new(parameters: Parameters, start: &Start) -> Self {
        let most = start.line_rate.get() as f64;
        Self {
            parameters,
            most,
            rate: most,
            pace: most,
            target: most,
            alpha: 1.0,
            stage: 0,
            clock: None,
            increase_at: None,
        }
    }

    fn age_alpha(&mut self, now: u64) {
        let Some(clock) = &mut self.clock else { return };
        while clock.alpha_at <= now {
            let notified = if clock.alpha_notified { GAIN } else { 0.0 };
            self.alpha = self.alpha * (1.0 - GAIN) + notified;
            clock.alpha_notified = false;
            clock.alpha_at += self.parameters.alpha_period;
        }
    }

    fn advance(&mut self, now: u64) {
        while let Some(clock) = &mut self.clock {
            let increase = self.increase_at.unwrap_or(u64::MAX);
            let next = clock.cut_at.min(increase);
            if next > now {
                break;
            }
            if clock.cut_at <= increase {
                clock.cut_at += self.parameters.cut_period;
                if std::mem::take(&mut clock.cut_notified) {
                    self.cut(next);
                }
            } else {
                self.increase();
                self.increase_at = Some(next + self.parameters.increase_period);
            }
        }
        self.age_alpha(now);
    }

    fn cut(&mut self, now: u64) {
        self.age_alpha(now);
        if self.stage > 0 {
            self.target = self.rate;
        }
        self.rate = (self.rate * (1.0 - self.alpha / 2.0)).max(self.parameters.least);
        self.stage = 0;
        self.increase_at = Some(now + self.parameters.increase_period);
    }

    fn increase(&mut self) {
        let step = match self.stage.cmp(&self.parameters.stages) {
            std::cmp::Ordering::Less => 0.0,
            std::cmp::Ordering::Equal => self.parameters.additive,
            std::cmp::Ordering::Greater => self.parameters.hyper,
        };
        self.target = (self.target + step).min(self.most);
        self.rate = (self.rate + self.target) / 2.0;
        self.stage += 1;
    }
}

impl CongestionControl for Ns3Dcqcn {
    fn on_send(&mut self, now: Instant, _bytes: u32) {
        self.advance(now.as_nanos());
        self.pace = self.rate;
    }

    fn on_ack(&mut self, now: Instant, ack: &Ack) {
        if ack.marked {
            self.on_cnp(now);
        }
    }

    fn on_cnp(&mut self, now: Instant) {
        self.advance(now.as_nanos());
        match &mut self.clock {
            Some(clock) => (clock.alpha_notified, clock.cut_notified) = (true, true),
            None => {
                let now = now.as_nanos();
                self.clock = Some(Clock {
                    alpha_at: now + self.parameters.alpha_period,
                    alpha_notified: false,
                    cut_at: now + self.parameters.cut_period,
                    cut_notified: true,
                });
            }
        }
    }

    fn rate(&self) -> Rate {
        Rate::bits_per_second(self.pace as u64)
    }

    fn observe(&self, _: Instant) -> Observation {
        Observation {
            rate: self.rate,
            target_rate: Some(self.target),
            alpha: Some(self.alpha),
            ..Observation::default()
        }
    }
}

/// Compares the form `ns3` that `roce` has with this one: notifications and packets at random times.
#[test]
fn the_shipped_form_is_this_one() {
    let start = Start {
        now: Instant::from_nanos(5),
        qpn: Qpn::new(0x11),
        mtu: 1_024,
        line_rate: Rate::bits_per_second(100_000_000_000),
    };
    let mut paper = DcqcnParameters::preset("ns3").unwrap();
    (paper.dce_tcp_rtt, paper.rate_reduce_monitor_period, paper.rpg_time_reset) = (55, 50, 55);
    (paper.rpg_threshold, paper.rpg_ai_rate) = (5, 40);
    let both = [(MLX100, DcqcnParameters::preset("ns3").unwrap()), (PAPER40, paper)];
    for (seed, (own, shipped)) in (1..).zip(both.into_iter().cycle().take(20)) {
        let mut model = Ns3Dcqcn::new(own, &start);
        let mut shipped = Dcqcn::new(&shipped, &start);
        let (mut state, mut now) = (seed, 5_u64);
        let mut draw = |most: u64| {
            state = u64::wrapping_mul(state, 0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
            (state >> 33) % most
        };
        for step in 0..5_000 {
            // Bursts of notifications, quiet times, and sometimes the exact time of a tick.
            now += if draw(50) == 0 { draw(5_000_000) } else { draw(3) * 1_000 + draw(2) * draw(900) };
            let at = Instant::from_nanos(now);
            if draw(3) == 0 {
                model.on_cnp(at);
                shipped.on_cnp(at);
            } else {
                model.on_send(at, 1_106);
                shipped.on_send(at, 1_106);
            }
            let (ours, theirs) = (shipped.rate().get() as f64, model.rate().get() as f64);
            assert!((ours / theirs - 1.0).abs() < 1e-6, "seed {seed}, step {step}: {ours} for {theirs}");
            let (ours, theirs) = (shipped.observe(at).alpha.unwrap(), model.observe(at).alpha.unwrap());
            assert!((ours - theirs).abs() < 1e-9, "seed {seed}, step {step}: alpha {ours} for {theirs}");
        }
    }
}
