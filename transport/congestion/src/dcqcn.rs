//! DCQCN, the reaction point of RDMA NICs: notifications cut the rate, time and bytes raise it again.
//!
//! DCQCN has three forms, which differ in the update of alpha, the estimate of congestion, and in the cuts:
//!
//! - [`DcqcnForm::Paper`] (SIGCOMM 2015): each notification that cuts also raises alpha, and alpha decays in
//!   each period without one. In hyper increase the step grows with each round.
//! - [`DcqcnForm::Device`] (ConnectX-4 and later): alpha is updated once per period, upward if a notification
//!   arrived in it and otherwise downward. The step of hyper increase is fixed.
//! - [`DcqcnForm::Ns3`] (HPCC's simulator on ns-3, commit 9f4be2a, and derived ones): alpha as in the device
//!   form. The first notification starts a clock of the monitor period. At each tick the rate is cut if a
//!   notification arrived since the previous tick: the first cut comes one period after the first
//!   notification. The time of a packet follows from the rate when the previous one left, regardless of later
//!   changes.
//!
//! The algorithm has no timer. Its state is that of the last call, and each call first applies what has
//! become due: the decay of alpha in closed form, cuts and increases one by one in the order of time. A
//! period of one microsecond therefore costs no more than one of a second.

use core::fmt;

use roce_packet::Qpn;

use crate::Instant;
use crate::math::power;
use crate::parameters::ParameterRange::{Number, Words};
use crate::parameters::{Parameters as _, Value, parameters};
use crate::{Ack, CongestionControl, Observation, Rate, Start};

/// The way in which alpha is updated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DcqcnForm {
    /// Alpha is updated with each cut.
    Paper,
    /// Alpha is updated once per period.
    Device,
    /// Alpha is updated once per period, and cuts occur at clock ticks, as in HPCC's simulator on ns-3.
    Ns3,
}

impl Value for DcqcnForm {
    fn from_raw(raw: u32) -> Self {
        match raw {
            0 => Self::Paper,
            1 => Self::Device,
            _ => Self::Ns3,
        }
    }
    fn raw(self) -> u32 {
        self as u32
    }
}

parameters! {
    /// The parameters of [`Dcqcn`], named as in the hardware (sysfs `roce_rp`, kernel debugfs `cc_params`),
    /// and four switches of our own at the end. The default is the preset `cx-default`.
    pub struct DcqcnParameters {
        /// Whether every cut first sets the target rate to the current rate.
        clamp_tgt_rate: bool = false, Number(0, 1), "", "rp_clamp_tgt_rate";
        /// Whether a cut does so if the last increase since the previous cut was one of the timer.
        clamp_tgt_rate_after_time_inc: bool = true, Number(0, 1), "", "rp_clamp_tgt_rate_ati";
        /// Time between two increases by the timer.
        rpg_time_reset: u32 = 300, Number(1, 131_071), "us", "rp_time_reset";
        /// Bytes sent between two increases by the byte counter; 0 disables the byte counter.
        rpg_byte_reset: u32 = 32_767, Number(0, 1 << 24), "x 64 bytes", "rp_byte_reset";
        /// Increases of one kind before additive increase begins.
        rpg_threshold: u32 = 1, Number(1, 31), "", "rp_threshold";
        /// Step of additive increase.
        rpg_ai_rate: u32 = 5, Number(1, 1_000_000), "Mb/s", "rp_ai_rate";
        /// Step of hyper increase.
        rpg_hai_rate: u32 = 50, Number(1, 1_000_000), "Mb/s", "rp_hai_rate";
        /// Maximum rate; 0 means the rate of the link.
        rpg_max_rate: u32 = 0, Number(0, 1_000_000), "Mb/s", "rp_max_rate";
        /// Minimum rate.
        rpg_min_rate: u32 = 1, Number(1, 1_000_000), "Mb/s", "rp_min_rate";
        /// Minimum share of the rate after one cut.
        rpg_min_dec_fac: u32 = 50, Number(0, 100), "%", "rp_min_dec_fac";
        /// A cut reduces the rate by alpha, in 1024ths, divided by 2 to this power; 11 means half of alpha.
        rpg_gd: u32 = 11, Number(0, 15), "", "rp_gd";
        /// Rate that the first notification sets instead of a cut; 0 means a cut.
        rate_to_set_on_first_cnp: u32 = 0, Number(0, 1_000_000), "Mb/s", "rp_rate_to_set_on_first_cnp";
        /// Weight of the old alpha in an update; the rest to 1024 is g.
        dce_tcp_g: u32 = 1_019, Number(0, 1_023), "/ 1024", "rp_dce_tcp_g";
        /// Period after which alpha is updated.
        dce_tcp_rtt: u32 = 1, Number(1, 131_071), "us", "rp_dce_tcp_rtt";
        /// Minimum time between cuts; a notification within it cuts at its end. Period of the clock in `ns3`.
        rate_reduce_monitor_period: u32 = 4, Number(0, 1_000_000), "us", "rp_rate_reduce_monitor_period";
        /// Alpha at the first notification.
        initial_alpha_value: u32 = 1_023, Number(0, 1_024), "/ 1024", "rp_initial_alpha_value";
        /// How alpha is updated, and when a notification cuts.
        form: DcqcnForm = DcqcnForm::Device, Words(&["paper", "device", "ns3"]), "", "";
        /// Whether a notification updates alpha before it cuts; not in the form `ns3`.
        alpha_first: bool = false, Number(0, 1), "", "";
    }
}

impl DcqcnParameters {
    /// The names of the presets.
    pub const PRESETS: [&'static str; 5] = ["paper", "cx-default", "hpcc", "ns3", "tester"];

    /// Returns the preset with this name: `paper` (SIGCOMM 2015), `cx-default` (defaults of ConnectX), `hpcc`
    /// (values of the RDMA simulators on ns-3 at 100 Gb/s, in the device form), `ns3` (these values in the
    /// form of the simulators), `tester` (a traffic generator).
    #[must_use]
    pub fn preset(name: &str) -> Option<Self> {
        let device = Self::default();
        let hpcc = Self {
            rpg_byte_reset: 0,
            rpg_ai_rate: 20,
            rpg_hai_rate: 200,
            rpg_min_rate: 100,
            dce_tcp_g: 1_020,
            initial_alpha_value: 1_024,
            ..device
        };
        Some(match name {
            "paper" => Self {
                clamp_tgt_rate: true,
                clamp_tgt_rate_after_time_inc: false,
                rpg_time_reset: 55,
                rpg_byte_reset: 156_250,
                rpg_threshold: 5,
                rpg_ai_rate: 40,
                rpg_hai_rate: 200,
                dce_tcp_g: 1_020,
                dce_tcp_rtt: 55,
                rate_reduce_monitor_period: 0,
                initial_alpha_value: 1_024,
                form: DcqcnForm::Paper,
                ..device
            },
            "cx-default" => device,
            "hpcc" => hpcc,
            "ns3" => Self { form: DcqcnForm::Ns3, ..hpcc },
            "tester" => {
                Self { rpg_byte_reset: 31_250, rpg_ai_rate: 5, rpg_hai_rate: 40, rpg_min_rate: 2, ..device }
            }
            _ => return None,
        })
    }
}

/// The cause of an increase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    Timer,
    Bytes,
}

impl Source {
    fn name(self) -> &'static str {
        match self {
            Self::Timer => "timer",
            Self::Bytes => "bytes",
        }
    }
}

/// The kind of an increase, which depends on the number of increases since the last cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Halves the distance to the target rate.
    FastRecovery,
    /// First raises the target rate by a small step.
    AdditiveIncrease,
    /// First raises the target rate by a large step.
    HyperIncrease,
}

impl Phase {
    fn name(self) -> &'static str {
        match self {
            Self::FastRecovery => "fast recovery",
            Self::AdditiveIncrease => "additive increase",
            Self::HyperIncrease => "hyper increase",
        }
    }
}

/// The notifications in the current period of alpha. Device form only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Period {
    Quiet,
    /// A notification arrived and takes effect at the end of the period.
    Notified,
    /// A notification arrived and was applied to alpha at once.
    Applied,
}

/// The reaction point of one queue pair.
#[derive(Clone, Debug)]
pub struct Dcqcn {
    parameters: DcqcnParameters,
    /// The queue pair for trace events, or `None` for a copy that looks ahead.
    traced: Option<Qpn>,
    /// Bits per second, like the next four fields.
    rate: f64,
    /// The rate when the last packet left, which spaces the next one in the form `ns3`.
    pace: f64,
    target: f64,
    least: f64,
    most: f64,
    alpha: f64,
    /// Beginning of the current period of alpha.
    alpha_at: Instant,
    period: Period,
    /// Number of increases of each kind since the last cut.
    time_stage: u32,
    byte_stage: u32,
    last_increase: Option<Source>,
    /// The time of the next increase by the timer, or `None` before the first notification.
    increase_at: Option<Instant>,
    /// Bytes sent since the last reset of the byte counter.
    bytes: u64,
    /// The time of the first notification.
    first: Option<Instant>,
    last_cut: Option<Instant>,
    /// Whether a notification waits for the end of the monitor period, or for `tick` of the clock.
    cut_pending: bool,
    tick: Instant,
}

const MEGABIT: f64 = 1e6;
/// After this number of rounds without a call, the rate is at its maximum: even the smallest step, 1 Mb/s,
/// has raised the target by 1 Tb/s. This bounds the work of one call after a long time.
const MOST_ROUNDS: u64 = 1 << 20;

impl Dcqcn {
    /// Creates an instance that starts at line rate.
    #[must_use]
    pub fn new(parameters: &DcqcnParameters, start: &Start) -> Self {
        let parameters = &parameters.in_range();
        let megabits = |rate: u32| f64::from(rate) * MEGABIT;
        let most = match parameters.rpg_max_rate {
            0 => start.line_rate.get() as f64,
            limit => megabits(limit).min(start.line_rate.get() as f64),
        };
        let least = megabits(parameters.rpg_min_rate).min(most);
        Self {
            parameters: *parameters,
            traced: Some(start.qpn),
            rate: most,
            pace: most,
            target: most,
            least,
            most,
            alpha: f64::from(parameters.initial_alpha_value) / 1024.0,
            alpha_at: start.now,
            period: Period::Quiet,
            time_stage: 0,
            byte_stage: 0,
            last_increase: None,
            increase_at: None,
            bytes: 0,
            first: None,
            last_cut: None,
            cut_pending: false,
            tick: start.now,
        }
    }

    fn is_ns3(&self) -> bool {
        self.parameters.form == DcqcnForm::Ns3
    }

    fn is_at_most(&self) -> bool {
        self.rate >= self.most && self.target >= self.most
    }

    fn g(&self) -> f64 {
        1.0 - self.kept()
    }

    /// Returns 1 - g.
    fn kept(&self) -> f64 {
        f64::from(self.parameters.dce_tcp_g) / 1024.0
    }

    fn raise_alpha(&mut self) {
        self.alpha = self.kept() * self.alpha + self.g();
    }

    /// Applies the periods of alpha that ended by `now`: the first with its notifications, others as decay.
    fn age_alpha(&mut self, now: Instant) {
        let length = micros(self.parameters.dce_tcp_rtt);
        let periods = now.as_nanos().saturating_sub(self.alpha_at.as_nanos()) / length;
        if periods == 0 || self.first.is_none() {
            return;
        }
        match self.period {
            Period::Quiet => self.alpha *= self.kept(),
            Period::Notified => self.raise_alpha(),
            Period::Applied => {}
        }
        self.alpha *= power(self.kept(), periods - 1);
        self.period = Period::Quiet;
        self.alpha_at = self.alpha_at.plus_nanos(periods * length);
    }

    fn cut_due(&self) -> Option<Instant> {
        if self.is_ns3() {
            return self.cut_pending.then_some(self.tick);
        }
        let last = self.last_cut.filter(|_| self.cut_pending)?;
        Some(last.plus_nanos(micros(self.parameters.rate_reduce_monitor_period)))
    }

    /// Applies everything that was due by `now`.
    fn advance(&mut self, now: Instant) {
        loop {
            let cut = self.cut_due().filter(|at| *at <= now);
            // A deadline in the far future cannot move on, so it never counts as reached.
            let increase = self.increase_at.filter(|at| *at <= now && *at < Instant::FAR_FUTURE);
            match (cut, increase) {
                (None, None) => break,
                (Some(at), None) => self.cut(at),
                (Some(at), Some(increase)) if at <= increase => self.cut(at),
                (_, Some(at)) => self.timer_increase(at, now),
            }
        }
        self.age_alpha(now);
    }

    fn timer_increase(&mut self, at: Instant, now: Instant) {
        let step = micros(self.parameters.rpg_time_reset);
        if (now.as_nanos() - at.as_nanos()) / step > MOST_ROUNDS {
            (self.rate, self.target) = (self.most, self.most);
        }
        // At the maximum there is nothing left to raise, whatever the number of rounds.
        let rounds = if self.is_at_most() && !self.cut_pending {
            (now.as_nanos() - at.as_nanos()) / step + 1
        } else {
            self.increase(at, Source::Timer);
            1
        };
        self.increase_at = Some(at.plus_nanos(rounds.saturating_mul(step)));
    }

    /// Makes one step of fast recovery, additive or hyper increase.
    fn increase(&mut self, at: Instant, source: Source) {
        let (before, phase) = (self.rate, self.phase());
        let step = match phase {
            Phase::FastRecovery => 0.0,
            Phase::AdditiveIncrease => f64::from(self.parameters.rpg_ai_rate),
            Phase::HyperIncrease => {
                let rounds = match self.parameters.form {
                    DcqcnForm::Paper => self.rounds() - self.parameters.rpg_threshold,
                    DcqcnForm::Device | DcqcnForm::Ns3 => 1,
                };
                f64::from(self.parameters.rpg_hai_rate) * f64::from(rounds)
            }
        };
        self.target = (self.target + step * MEGABIT).min(self.most);
        self.rate = (self.rate + self.target) / 2.0;
        if self.most - self.rate < 1.0 {
            self.rate = self.most;
        }
        self.last_increase = Some(source);
        let stage = match source {
            Source::Timer => &mut self.time_stage,
            Source::Bytes => &mut self.byte_stage,
        };
        *stage = stage.saturating_add(1);
        self.trace_increase(at, source, phase, before);
    }

    /// Returns the number of rounds of both kinds since the last cut, or of the timer if it is the only kind.
    fn rounds(&self) -> u32 {
        if self.parameters.rpg_byte_reset == 0 {
            self.time_stage
        } else {
            self.time_stage.min(self.byte_stage)
        }
    }

    /// Returns the phase of the next increase.
    fn phase(&self) -> Phase {
        let threshold = self.parameters.rpg_threshold;
        if self.time_stage.max(self.byte_stage) < threshold {
            Phase::FastRecovery
        } else if self.rounds() <= threshold {
            Phase::AdditiveIncrease
        } else {
            Phase::HyperIncrease
        }
    }

    fn trace_increase(&self, at: Instant, source: Source, phase: Phase, before: f64) {
        let Some(qpn) = self.traced.map(Qpn::get) else { return };
        tracing::debug!(
            qpn,
            due_ns = at.as_nanos(),
            from_bits_per_second = before as u64,
            bits_per_second = self.rate as u64,
            target_bits_per_second = self.target as u64,
            stage = phase.name(),
            cause = source.name(),
            "rate increase"
        );
        self.trace_stage(at, phase);
    }

    fn trace_cut(&self, at: Instant, before: f64, phase: Phase) {
        let Some(qpn) = self.traced.map(Qpn::get) else { return };
        tracing::debug!(
            qpn,
            due_ns = at.as_nanos(),
            from_bits_per_second = before as u64,
            bits_per_second = self.rate as u64,
            target_bits_per_second = self.target as u64,
            alpha = self.alpha,
            "rate cut"
        );
        self.trace_stage(at, phase);
    }

    /// Traces the begin of a phase other than `before`.
    fn trace_stage(&self, at: Instant, before: Phase) {
        let Some(qpn) = self.traced.map(Qpn::get) else { return };
        let phase = self.phase();
        if phase != before {
            tracing::debug!(qpn, due_ns = at.as_nanos(), from = before.name(), to = phase.name(), "stage");
        }
    }

    fn cut(&mut self, now: Instant) {
        let (before, phase) = (self.rate, self.phase());
        self.age_alpha(now);
        let (paper, alpha_first) = (self.parameters.form == DcqcnForm::Paper, self.parameters.alpha_first);
        if paper && alpha_first {
            self.raise_alpha();
        }
        let after_time = self.last_increase == Some(Source::Timer);
        if self.parameters.clamp_tgt_rate || self.parameters.clamp_tgt_rate_after_time_inc && after_time {
            self.target = self.rate;
        }
        let share = 1.0 - self.alpha * 1024.0 / f64::from(1_u32 << self.parameters.rpg_gd);
        let share = share.max(f64::from(self.parameters.rpg_min_dec_fac) / 100.0);
        self.rate = (self.rate * share).max(self.least);
        if paper {
            if !alpha_first {
                self.raise_alpha();
            }
            self.alpha_at = now;
        }
        self.restart_recovery(now);
        self.trace_cut(now, before, phase);
    }

    fn restart_recovery(&mut self, now: Instant) {
        (self.time_stage, self.byte_stage, self.bytes) = (0, 0, 0);
        self.last_increase = None;
        self.increase_at = Some(now.plus_nanos(micros(self.parameters.rpg_time_reset)));
        self.last_cut = Some(now);
        self.cut_pending = false;
    }

    /// Sets the rate at the first notification, if a parameter says so. Returns whether it did.
    fn set_on_first(&mut self, now: Instant) -> bool {
        let set = self.parameters.rate_to_set_on_first_cnp;
        if set > 0 {
            let before = self.rate;
            self.rate = (f64::from(set) * MEGABIT).clamp(self.least, self.most);
            self.target = self.rate;
            self.trace_cut(now, before, self.phase());
        }
        set > 0
    }

    /// Handles a notification in the form `ns3`: it cuts at the next tick of the clock.
    fn wait_for_tick(&mut self, now: Instant) {
        let Some(first) = self.first else {
            self.first = Some(now);
            self.alpha_at = now;
            self.set_on_first(now);
            self.tick = now.plus_nanos(self.clock());
            self.cut_pending = true;
            return;
        };
        if self.period == Period::Quiet {
            self.period = Period::Notified;
        }
        if !self.cut_pending {
            let ticks = now.as_nanos().saturating_sub(first.as_nanos()) / self.clock();
            self.tick = first.plus_nanos(ticks.saturating_add(1).saturating_mul(self.clock()));
            self.cut_pending = true;
        }
    }

    /// Returns the period of the clock, at least one nanosecond.
    fn clock(&self) -> u64 {
        micros(self.parameters.rate_reduce_monitor_period).max(1)
    }
}

impl CongestionControl for Dcqcn {
    fn on_send(&mut self, now: Instant, bytes: u32) {
        self.advance(now);
        self.pace = self.rate;
        let reset = u64::from(self.parameters.rpg_byte_reset) * 64;
        if reset == 0 || self.is_at_most() {
            return;
        }
        self.bytes += u64::from(bytes);
        while self.bytes >= reset {
            self.bytes -= reset;
            self.increase(now, Source::Bytes);
        }
    }

    /// An echoed mark is a notification, as in the simulators on ns-3.
    fn on_ack(&mut self, now: Instant, ack: &Ack) {
        if ack.marked {
            self.on_cnp(now);
        }
    }

    fn on_cnp(&mut self, now: Instant) {
        self.advance(now);
        if self.is_ns3() {
            return self.wait_for_tick(now);
        }
        if self.first.is_none() {
            self.first = Some(now);
            self.alpha_at = now;
            if self.set_on_first(now) {
                self.restart_recovery(now);
                return;
            }
        } else if self.parameters.form == DcqcnForm::Device && self.period == Period::Quiet {
            self.period = Period::Notified;
            if self.parameters.alpha_first {
                self.raise_alpha();
                self.period = Period::Applied;
            }
        }
        let monitor = micros(self.parameters.rate_reduce_monitor_period);
        if self.last_cut.is_some_and(|last| now < last.plus_nanos(monitor)) {
            self.cut_pending = true;
        } else {
            self.cut(now);
        }
    }

    fn on_timer(&mut self, now: Instant) {
        self.advance(now);
    }

    fn next_timer(&self) -> Option<Instant> {
        if self.is_ns3() {
            return None;
        }
        let increase = self.increase_at.filter(|_| !self.is_at_most());
        [self.cut_due(), increase].into_iter().flatten().min()
    }

    fn rate(&self) -> Rate {
        if self.is_ns3() {
            return Rate::from_float(self.pace);
        }
        if self.rate >= self.most && self.parameters.rpg_max_rate == 0 {
            return Rate::UNLIMITED;
        }
        Rate::from_float(self.rate)
    }

    /// Each step is traced with its own time; one call may apply several steps.
    fn reports_changes(&self) -> bool {
        true
    }

    fn observe(&self, now: Instant) -> Observation {
        let mut then = Self { traced: None, ..self.clone() };
        then.advance(now);
        Observation {
            rate: then.rate,
            target_rate: Some(then.target),
            alpha: Some(then.alpha),
            ..Observation::default()
        }
    }
}

fn micros(micros: u32) -> u64 {
    u64::from(micros) * 1000
}

impl fmt::Display for DcqcnForm {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Paper => "paper",
            Self::Device => "device",
            Self::Ns3 => "ns3",
        })
    }
}
