//! DCQCN, the reaction point of RDMA NICs: notifications cut the rate, time and bytes raise it again.
//!
//! It has three forms. Two differ in how they update alpha, the estimate of congestion, the third also in when it cuts:
//!
//! - [`DcqcnForm::Paper`] (SIGCOMM 2015): each notification that cuts also raises alpha; without one for a period
//!   alpha decays. In hyper increase the step grows with each round.
//! - [`DcqcnForm::Device`] (ConnectX-4 and later): alpha is updated once a period, upward if a notification came in it
//!   and downward if not. The step of hyper increase is fixed.
//! - [`DcqcnForm::Ns3`] (HPCC's simulator on ns-3, commit 9f4be2a, and those derived from it): alpha as in the device form. The
//!   first notification starts a clock of the monitor period, and the rate is cut at each of its ticks if a notification came
//!   since the tick before; so the first cut comes one period after the first notification. The time at which a
//!   packet leaves follows from the rate when the packet before it left: a later change has no effect on it.
//!
//! The algorithm has no timer of its own. The state is that of the last call, and each call first applies what has been due
//! since: the decay of alpha in closed form, cuts and increases one by one in the order of their time. So a period of one
//! microsecond costs no more than one of a second.

use core::fmt;

use roce_packet::Qpn;

use super::math::power;
use super::{Ack, CongestionControl, Observation, Rate, Start};
use crate::parameters::ParameterRange::{Number, Words};
use crate::parameters::{Parameters as _, Value, parameters};
use crate::time::Instant;

/// How alpha is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DcqcnForm {
    /// With each cut.
    Paper,
    /// Once a period.
    Device,
    /// Once a period, with cuts at the ticks of a clock, as HPCC's simulator on ns-3 has it.
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
    /// Everything that can be set in [`Dcqcn`], under the names of the hardware (sysfs `roce_rp`, kernel debugfs
    /// `cc_params`), and four switches of our own at the end. The default is the preset `cx-default`.
    pub struct DcqcnParameters {
        /// Whether every cut first sets the target rate to the present rate.
        clamp_tgt_rate: bool = false, Number(0, 1), "", "rp_clamp_tgt_rate";
        /// Whether a cut does so if the last increase since the cut before was one of the timer.
        clamp_tgt_rate_after_time_inc: bool = true, Number(0, 1), "", "rp_clamp_tgt_rate_ati";
        /// Time between two increases by the timer.
        rpg_time_reset: u32 = 300, Number(1, 131_071), "us", "rp_time_reset";
        /// Bytes sent between two increases by the byte counter; 0 for no byte counter.
        rpg_byte_reset: u32 = 32_767, Number(0, 1 << 24), "x 64 bytes", "rp_byte_reset";
        /// Increases of one kind before additive increase begins.
        rpg_threshold: u32 = 1, Number(1, 31), "", "rp_threshold";
        /// Step of additive increase.
        rpg_ai_rate: u32 = 5, Number(1, 1_000_000), "Mb/s", "rp_ai_rate";
        /// Step of hyper increase.
        rpg_hai_rate: u32 = 50, Number(1, 1_000_000), "Mb/s", "rp_hai_rate";
        /// Rate that is never exceeded; 0 for that of the link.
        rpg_max_rate: u32 = 0, Number(0, 1_000_000), "Mb/s", "rp_max_rate";
        /// Lowest rate.
        rpg_min_rate: u32 = 1, Number(1, 1_000_000), "Mb/s", "rp_min_rate";
        /// Share of the rate that one cut leaves at least.
        rpg_min_dec_fac: u32 = 50, Number(0, 100), "%", "rp_min_dec_fac";
        /// A cut takes alpha, in 1024ths, over 2 to this power; 11 is half of alpha.
        rpg_gd: u32 = 11, Number(0, 15), "", "rp_gd";
        /// Rate that the first notification sets instead of cutting; 0 to cut.
        rate_to_set_on_first_cnp: u32 = 0, Number(0, 1_000_000), "Mb/s", "rp_rate_to_set_on_first_cnp";
        /// Weight of the old alpha in an update; the rest to 1024 is g.
        dce_tcp_g: u32 = 1_019, Number(0, 1_023), "/ 1024", "rp_dce_tcp_g";
        /// Period after which alpha is updated.
        dce_tcp_rtt: u32 = 1, Number(1, 131_071), "us", "rp_dce_tcp_rtt";
        /// At most one cut in such a time; a notification inside it cuts at its end. In the form `ns3` the period of the clock.
        rate_reduce_monitor_period: u32 = 4, Number(0, 1_000_000), "us", "rp_rate_reduce_monitor_period";
        /// Alpha at the first notification.
        initial_alpha_value: u32 = 1_023, Number(0, 1_024), "/ 1024", "rp_initial_alpha_value";
        /// How alpha is kept, and when a notification cuts.
        form: DcqcnForm = DcqcnForm::Device, Words(&["paper", "device", "ns3"]), "", "";
        /// Whether a notification updates alpha before it cuts; not in the form `ns3`.
        alpha_first: bool = false, Number(0, 1), "", "";
    }
}

impl DcqcnParameters {
    /// The names of the presets.
    pub const PRESETS: [&'static str; 5] = ["paper", "cx-default", "hpcc", "ns3", "tester"];

    /// The preset of this name: `paper` (SIGCOMM 2015), `cx-default` (defaults of ConnectX), `hpcc` (the values of the RDMA
    /// simulators on ns-3 at 100 Gb/s, in the form of a device), `ns3` (the same values in the form of those simulators),
    /// `tester` (a traffic generator).
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

/// What an increase does, by how many there were since the last cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Halves the distance to the target rate.
    FastRecovery,
    /// Raises the target rate by a small step first.
    AdditiveIncrease,
    /// Raises it by a large step.
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

/// The notifications in the present period of alpha. Device form only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Period {
    Quiet,
    /// A notification arrived; the end of the period applies it.
    Notified,
    /// A notification arrived and was applied to alpha at once.
    Applied,
}

/// The reaction point of one queue pair.
#[derive(Clone, Debug)]
pub struct Dcqcn {
    parameters: DcqcnParameters,
    /// The queue pair of the trace events; `None` for a copy that only looks ahead.
    traced: Option<Qpn>,
    /// Bits a second, like the five below.
    rate: f64,
    /// The rate when the last packet left, which spaces the next one in the form `ns3`.
    pace: f64,
    target: f64,
    least: f64,
    most: f64,
    alpha: f64,
    /// When the present period of alpha began.
    alpha_at: Instant,
    period: Period,
    /// Increases of each kind since the last cut.
    time_stage: u32,
    byte_stage: u32,
    last_increase: Option<Source>,
    /// When the timer raises the rate next; `None` before the first notification.
    increase_at: Option<Instant>,
    /// Bytes since the byte counter was reset.
    bytes: u64,
    /// When the first notification arrived.
    first: Option<Instant>,
    last_cut: Option<Instant>,
    /// A notification waits for the end of the monitor period, or for this tick of the clock.
    cut_pending: bool,
    tick: Instant,
}

const MEGABIT: f64 = 1e6;
/// After so many rounds without a call a queue pair is at its highest rate: the smallest step, a megabit, has raised it by a
/// terabit by then. That bounds what one call makes up for, however long ago the last one was.
const MOST_ROUNDS: u64 = 1 << 20;

impl Dcqcn {
    /// An instance that starts at line rate.
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

    /// 1 - g.
    fn kept(&self) -> f64 {
        f64::from(self.parameters.dce_tcp_g) / 1024.0
    }

    fn raise_alpha(&mut self) {
        self.alpha = self.kept() * self.alpha + self.g();
    }

    /// Lets the periods of alpha that ended by `now` take effect: the first with its notifications, the others as decay.
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
            // The far future never comes: a deadline there cannot move on.
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
        // At the top nothing is left to raise, whatever the number of rounds.
        let rounds = if self.is_at_most() && !self.cut_pending {
            (now.as_nanos() - at.as_nanos()) / step + 1
        } else {
            self.increase(at, Source::Timer);
            1
        };
        self.increase_at = Some(at.plus_nanos(rounds.saturating_mul(step)));
    }

    /// One step of fast recovery, additive or hyper increase.
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

    /// Rounds of both kinds since the last cut. Without a byte counter the timer alone decides.
    fn rounds(&self) -> u32 {
        if self.parameters.rpg_byte_reset == 0 {
            self.time_stage
        } else {
            self.time_stage.min(self.byte_stage)
        }
    }

    /// The phase of the next increase.
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

    /// Reports that another phase began than the one before.
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

    /// The first notification sets the rate, if a parameter says so. Returns whether it did.
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

    /// A notification in the form `ns3`: it cuts at the next tick of the clock that the first one started.
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

    /// The period of the clock; at least a nanosecond.
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

    /// A mark that the peer echoed is a notification, as in the simulators on ns-3.
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

    /// Each step is reported with its own time, of which one call may make up for several.
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
