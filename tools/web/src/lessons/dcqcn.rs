//! Lesson 9: marks, notifications, and the rate of the sender.

use roce_packet::{Opcode, Operation, Qpn};
use roce_sim::pair::{Action, Settings, Side};
use roce_transport::congestion::{CongestionControl, Dcqcn, DcqcnParameters, NotificationPoint, Rate, Start};
use roce_transport::{EngineConfig, Instant, SendOp};

use super::scene::{Scene, operation_of, simulate};
use super::{AnswerKey, Expected, Outcome};

/// The rate of the link in tasks 1 and 2, in Gb/s.
const LINE: f64 = 40.0;
/// The preset of the parameters.
const PRESET: &str = "paper";
/// Task 3: the marked packets, and the time from one to the next.
const MARKED: usize = 1_000;
const PACKET_NS: u64 = 1_000;
/// The scenario of task 4.
const SCENARIO: &str = include_str!("../../../../docs/lessons/scenarios/three-points.toml");

/// Judges an answer to a task of the lesson.
pub fn check(task: usize, answer: &str) -> Option<Outcome> {
    let key = match task {
        1 => first_cut(),
        2 => recovery(),
        3 => notifications(),
        4 => no_notifications(),
        _ => None,
    };
    Some(key?.judge(answer))
}

/// The reaction point of a queue pair.
struct Reaction {
    algorithm: Dcqcn,
    parameters: DcqcnParameters,
    now: Instant,
}

impl Reaction {
    fn new() -> Option<Self> {
        let parameters = DcqcnParameters::preset(PRESET)?;
        let now = Instant::from_nanos(1_000_000);
        let line_rate = Rate::megabits_per_second((LINE * 1e3) as u64);
        let start = Start { now, qpn: Qpn::new(0x11), mtu: 1_024, line_rate };
        Some(Self { algorithm: Dcqcn::new(&parameters, &start), parameters, now })
    }

    fn notify(&mut self) {
        self.algorithm.on_cnp(self.now);
    }

    /// Lets some periods of the timer pass.
    fn wait(&mut self, periods: u64) {
        let period = u64::from(self.parameters.rpg_time_reset) * 1_000;
        for _ in 0..periods {
            self.now = self.now.plus_nanos(period);
            self.algorithm.on_timer(self.now);
        }
    }

    /// Returns the rate in Gb/s.
    fn rate(&self) -> f64 {
        self.algorithm.rate().get() as f64 / 1e9
    }

    fn alpha(&self) -> f64 {
        f64::from(self.parameters.initial_alpha_value) / 1_024.0
    }
}

/// Returns an expected rate in Gb/s.
fn gigabits(rate: f64) -> Expected {
    Expected::Near(rate, 0.2)
}

/// The rate after the first CNP.
fn first_cut() -> Option<AnswerKey> {
    let mut reaction = Reaction::new()?;
    let alpha = reaction.alpha();
    reaction.notify();
    let rate = reaction.rate();
    let shows = format!(
        "The reaction point of the engine ran with the preset `{PRESET}` at {LINE} Gb/s.\n\
         Before the CNP alpha was {alpha}. After it the rate was {rate:.2} Gb/s:\n\
         {LINE} x (1 - {alpha} / 2)."
    );
    let mut twice = Reaction::new()?;
    twice.notify();
    twice.notify();
    let key = AnswerKey::new(gigabits(rate), shows)
        .hint(
            gigabits(LINE * (1.0 - alpha)),
            "Alpha is 1, but a cut takes only half of alpha from the rate. A queue pair never stops.",
        )
        .hint(
            gigabits(LINE),
            "A CNP cuts the rate at once. The rate of the link becomes the target of the recovery.",
        )
        .hint(gigabits(twice.rate()), "This is the rate after two CNPs.")
        .otherwise("Put the rate and alpha = 1 into: rate x (1 - alpha / 2).");
    Some(key)
}

/// The rate after two periods of the timer.
fn recovery() -> Option<AnswerKey> {
    let after = |periods| {
        let mut reaction = Reaction::new()?;
        reaction.notify();
        reaction.wait(periods);
        Some(reaction.rate())
    };
    let (cut, once, twice) = (after(0)?, after(1)?, after(2)?);
    let reaction = Reaction::new()?;
    let (period, threshold) = (reaction.parameters.rpg_time_reset, reaction.parameters.rpg_threshold);
    let step = f64::from(reaction.parameters.rpg_ai_rate) / 1e3;
    let shows = format!(
        "The reaction point of the engine ran without another CNP.\n\
         At 0 us: {cut:.2} Gb/s. At {period} us: {once:.2} Gb/s. At {} us: {twice:.2} Gb/s.\n\
         The first {threshold} increases are fast recovery: each halves the distance to the target of \
         {LINE} Gb/s.",
        2 * period,
    );
    let key = AnswerKey::new(gigabits(twice), shows)
        .hint(
            gigabits(LINE),
            "Fast recovery does not return to the target at once. Each increase halves the distance to it.",
        )
        .hint(gigabits(once), "This is the rate after one period. Two periods have passed.")
        .hint(
            Expected::Near(cut + 2.0 * step, 0.01),
            "Additive increase comes later. The first increases are fast recovery, which halves the \
             distance to the target.",
        )
        .hint(gigabits(cut), "The timer also raises the rate while nothing else happens.")
        .otherwise("Start with the rate of task 1, and go half of the way to the target, twice.");
    Some(key)
}

/// The number of CNPs for many marked packets.
fn notifications() -> Option<AnswerKey> {
    let notification = NotificationPoint::preset(PRESET)?;
    let interval = notification.min_time_between_cnps;
    let config = EngineConfig { notification, ..EngineConfig::from_number(9) };
    let mut scene = Scene::with_config(config, 1 << 20, &Settings::default());
    scene.pair.packet_time_ns = PACKET_NS;
    scene.pair.set_script(|sent| {
        if operation_of(sent) == Some(Operation::Write) { Action::Mark } else { Action::Pass }
    });
    let bytes = MARKED * Settings::default().mtu.bytes();
    scene.post(1, bytes, |remote_addr, rkey| SendOp::Write { remote_addr, rkey })?;
    scene.run();
    let packets = scene.sent(Side::A, Operation::Write).count();
    let cnps = scene.pair.sent.iter().filter(|sent| sent.opcode == Opcode::CNP).count() as u64;
    let shows = format!(
        "Two engines exchanged a WRITE of {packets} packets, one each microsecond, all marked.\n\
         The receiver sent {cnps} CNPs: one at once, and one after each {interval} us."
    );
    let key = AnswerKey::new(Expected::Number(cnps), shows)
        .hint(
            Expected::Number(MARKED as u64),
            format!(
                "The receiver does not answer each mark: at least {interval} us lie between two CNPs of a \
                 queue pair."
            ),
        )
        .hint(
            Expected::Number(1),
            "The minimum time between CNPs is over long before the last packet. Then a mark causes another \
             CNP.",
        )
        .hint(
            Expected::Number(cnps + 1),
            "The last interval ends only after the last packet. Count the CNPs from the first packet on.",
        )
        .hint(
            Expected::Number(cnps - 1),
            "The first marked packet causes a CNP at once, not only after the first interval.",
        )
        .otherwise(format!("The packets arrive within {MARKED} us. How often do {interval} us fit into it?"));
    Some(key)
}

/// The three answers of task 4.
const RATES_FALL: &str = "The senders reduce their rates.";
const PAUSES: &str = "PFC pauses the senders.";
const DROPS: &str = "The switch drops packets.";

/// The consequence of a receiver that sends no CNPs.
fn no_notifications() -> Option<AnswerKey> {
    let run = |sets: &[(&str, &str)]| simulate(SCENARIO, sets);
    let off = format!("dcqcn:{PRESET},cnp_enable=0");
    let (with, without) = (run(&[])?, run(&[("host.congestion", off.as_str())])?);
    let marked = without.sum(|port| port.marked);
    let pauses = without.sum(|port| port.pauses_sent);
    let dropped = without.sum(roce_sim::net::PortStats::drops);
    let cnps: u64 = without.flows.iter().map(|flow| flow.counts.cnps_handled).sum();
    let cnps_before: u64 = with.flows.iter().map(|flow| flow.counts.cnps_handled).sum();
    let right = match (cnps, dropped, pauses) {
        (1.., ..) => RATES_FALL,
        (_, 1.., _) => DROPS,
        (_, _, 1..) => PAUSES,
        _ => return None,
    };
    let longest = without.longest_queue().map_or(0, |port| port.stats.queue_most);
    let shows = format!(
        "The simulator ran the scenario with and without CNPs.\n\
         With: {cnps_before} CNPs reached the senders, and {} pauses.\n\
         Without: {marked} packets were marked, {cnps} CNPs reached the senders, the queue had up to \
         {longest} bytes,\n{pauses} pauses, {dropped} packets dropped.",
        with.sum(|port| port.pauses_sent),
    );
    let key = AnswerKey::new(Expected::text(right), shows)
        .hint(
            Expected::text(RATES_FALL),
            format!(
                "The switch marked {marked} packets, but their sender does not see the marks. {cnps} CNPs \
                 reached the senders."
            ),
        )
        .hint(
            Expected::text(DROPS),
            format!(
                "Priority 3 is lossless in this network: {dropped} packets were dropped. What does the \
                 switch do before its buffer is full?"
            ),
        )
        .otherwise("Choose one of the answers.");
    Some(key)
}
