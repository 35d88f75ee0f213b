//! Rule 10: what a sender does after congestion notifications.

use roce_packet::Opcode;

use super::judgement::{Role, Scene, Verdict};
use super::rules;
use crate::record::{Bits, Record};

/// Number of packets from which a rate is computed.
const RATE_PACKETS: usize = 8;
/// A rate over more time than this says that the sender had little to send.
const LONGEST_NS: u64 = 5_000_000;
/// A NIC needs some time until a notification takes effect, in nanoseconds.
const EFFECT_NS: u64 = 10_000;
/// Notifications within this time count as one: NICs reduce the rate once for them.
const TOGETHER_NS: u64 = 4_000;
/// The rate has recovered at this share of the rate before the notification.
const RECOVERED: f64 = 0.9;
/// Number of notifications from which "no reaction" is said. One or two may reduce a limit that the sender
/// does not reach.
const ENOUGH_CUTS: usize = 10;
/// Number of pairs of consecutive reductions from which α and g are fitted.
const ENOUGH_PAIRS: usize = 5;
/// Period of α and of increases in the default preset, in nanoseconds.
const PERIOD_NS: u64 = 55_000;
/// The default preset: exponent of g, and additive increase in Mbit/s.
const DEFAULT_G: f64 = 1.0 / 256.0;
/// Additive increase of the default preset, in Mbit/s.
const DEFAULT_INCREASE_MBPS: f64 = 40.0;

/// A data packet of the sender.
#[derive(Clone, Copy, Debug)]
struct Sample {
    time_ns: u64,
    bits: f64,
}

/// The packets of one sender, and the notifications that arrive at it, by time.
struct Sender {
    data: Vec<Sample>,
    notifications: Vec<(u64, usize)>,
}

/// Judges the reaction of both ends of a connection.
pub(super) fn of_connection(scene: &Scene<'_>) -> Vec<Verdict> {
    let of_end = |end| Some(of_end(scene, end)?.of(scene.party(Role::Sender, end)));
    (0..2).filter_map(of_end).collect()
}

fn sender(scene: &Scene<'_>, end: usize) -> Option<Sender> {
    let [from0, from1] = scene.connection.streams;
    let (own, other) = if end == 0 { (from0, from1) } else { (from1, from0) };
    let mut found = Sender { data: Vec::new(), notifications: Vec::new() };
    let is_used = |record: &&Record| record.is_sound() && !record.bits.contains(Bits::COPY);
    for &index in &scene.connection.view_of(end)?.indices {
        let Some(record) = scene.analysis.records.get(index).filter(is_used) else { continue };
        let is_cnp = record.opcode == Opcode::CNP;
        if Some(record.stream) == own && record.payload_len > 0 && !is_cnp {
            found.data.push(Sample { time_ns: record.time_ns, bits: f64::from(record.wire_len) * 8.0 });
        } else if Some(record.stream) == other && is_cnp {
            let is_new = |(last, _): &(u64, usize)| record.time_ns.saturating_sub(*last) > TOGETHER_NS;
            if found.notifications.last().is_none_or(is_new) {
                found.notifications.push((record.time_ns, index));
            }
        }
    }
    Some(found)
}

/// Returns the rate of some packets in bits per second.
fn rate(data: &[Sample]) -> Option<f64> {
    let (first, rest) = data.split_first()?;
    let span_ns = rest.last()?.time_ns.checked_sub(first.time_ns).filter(|span| *span > 0)?;
    let bits: f64 = rest.iter().map(|sample| sample.bits).sum();
    (span_ns <= LONGEST_NS).then(|| bits * 1e9 / span_ns as f64)
}

/// The reduction at one notification.
#[derive(Clone, Copy, Debug)]
struct Cut {
    at_ns: u64,
    before: f64,
    after: f64,
}

impl Cut {
    fn factor(&self) -> f64 {
        self.after / self.before
    }
}

impl Sender {
    fn cut(&self, at_ns: u64, next_ns: Option<u64>) -> Option<Cut> {
        let position = self.data.partition_point(|sample| sample.time_ns <= at_ns);
        let start = position.checked_sub(RATE_PACKETS)?;
        let before = rate(self.data.get(start..position)?)?;
        let effect = self.data.partition_point(|sample| sample.time_ns <= at_ns.saturating_add(EFFECT_NS));
        let after = self.data.get(effect..effect + RATE_PACKETS)?;
        // The next notification changes the rate again.
        let is_alone = next_ns.is_none_or(|next| after.last().is_some_and(|last| last.time_ns <= next));
        is_alone.then(|| rate(after)).flatten().map(|after| Cut { at_ns, before, after })
    }

    /// Returns the time until the rate is nearly that before a cut, if no notification comes before.
    fn recovery_ns(&self, cut: &Cut, next_ns: Option<u64>) -> Option<u64> {
        let start = self.data.partition_point(|sample| sample.time_ns <= cut.at_ns.saturating_add(EFFECT_NS));
        let windows = self.data.get(start..)?.windows(RATE_PACKETS);
        let recovered = windows
            .take_while(|window| {
                next_ns.is_none_or(|next| window.last().is_some_and(|last| last.time_ns <= next))
            })
            .find(|window| rate(window).is_some_and(|rate| rate >= cut.before * RECOVERED))?;
        recovered.last()?.time_ns.checked_sub(cut.at_ns)
    }

    /// Returns the increase of the rate in bits per second for each period, long after a cut.
    fn increase(&self, cut: &Cut, next_ns: Option<u64>) -> Option<f64> {
        // Five periods of fast recovery come first.
        let start_ns = cut.at_ns.saturating_add(6 * PERIOD_NS);
        let start = self.data.partition_point(|sample| sample.time_ns <= start_ns);
        let end = next_ns
            .map_or(self.data.len(), |next| self.data.partition_point(|sample| sample.time_ns <= next));
        let span = self.data.get(start..end)?;
        let early = span.get(..RATE_PACKETS)?;
        let late = span.get(span.len().checked_sub(RATE_PACKETS)?..)?;
        let elapsed = late.first()?.time_ns.checked_sub(early.first()?.time_ns)?;
        // Windows that overlap say nothing.
        if elapsed < 4 * PERIOD_NS {
            return None;
        }
        let grown = rate(late)? - rate(early)?;
        Some(grown * PERIOD_NS as f64 / elapsed as f64).filter(|increase| *increase > 0.0)
    }
}

fn median(values: &mut [f64]) -> Option<f64> {
    values.sort_unstable_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

/// Fits g: the α of each cut follows from that of the cut before and the time between both. Returns g and
/// the mean deviation of α.
fn fit(cuts: &[Cut]) -> Option<(f64, f64)> {
    let alpha = |cut: &Cut| (2.0 * (1.0 - cut.factor())).clamp(0.0, 1.0);
    let pairs: Vec<(f64, f64, f64)> = cuts
        .iter()
        .zip(cuts.iter().skip(1))
        .map(|(one, two)| {
            let periods = two.at_ns.saturating_sub(one.at_ns) as f64 / PERIOD_NS as f64;
            (alpha(one), alpha(two), periods)
        })
        .filter(|(one, two, _)| *one > 0.0 && *two > 0.0)
        .collect();
    if pairs.len() < ENOUGH_PAIRS {
        return None;
    }
    let deviation = |g: f64| {
        let sum: f64 = pairs
            .iter()
            .map(|(one, two, periods)| {
                let raised = (1.0 - g) * one + g;
                (raised * (1.0 - g).powf(*periods) - two).abs()
            })
            .sum();
        sum / pairs.len() as f64
    };
    let candidates = (8..=40).map(|quarters| 0.5_f64.powf(f64::from(quarters) / 4.0));
    candidates.map(|g| (g, deviation(g))).min_by(|one, two| one.1.total_cmp(&two.1))
}

fn of_end(scene: &Scene<'_>, end: usize) -> Option<Verdict> {
    let sender = sender(scene, end)?;
    if sender.notifications.is_empty() {
        return None;
    }
    let address = scene.connection.ends.get(end)?.address;
    let count = sender.notifications.len();
    let places = sender.notifications.iter().filter_map(|(_, index)| scene.place(*index));
    let unknown = |because: String| {
        Some(Verdict::unknown(&rules::REACTION, because).at(places.clone()).with("cnp_rx", count as f64))
    };
    if !scene.has_times() {
        return unknown("the file contains no times, so no rate is known".to_owned());
    }
    let next = |at: usize| sender.notifications.get(at + 1).map(|(time, _)| *time);
    let found: Vec<(Cut, Option<u64>)> = sender
        .notifications
        .iter()
        .enumerate()
        .filter_map(|(at, (time, _))| Some((sender.cut(*time, next(at))?, next(at))))
        .collect();
    if found.is_empty() {
        return unknown(format!(
            "{address} sends too few packets around the {count} CNPs that it receives to know its rate"
        ));
    }
    Some(judge(scene, end, &sender, &found))
}

fn judge(scene: &Scene<'_>, end: usize, sender: &Sender, found: &[(Cut, Option<u64>)]) -> Verdict {
    let address = scene.connection.ends.get(end).map(|end| end.address.to_string()).unwrap_or_default();
    let cuts: Vec<Cut> = found.iter().map(|(cut, _)| *cut).collect();
    let mut factors: Vec<f64> = cuts.iter().map(Cut::factor).collect();
    let factor = median(&mut factors).unwrap_or(1.0);
    let (first, last) =
        (cuts.first().map_or(0.0, |cut| cut.before), cuts.last().map_or(0.0, |cut| cut.after));
    let count = sender.notifications.len();
    let (outcome, summary): (fn(_, String) -> Verdict, _) = if factor < 0.98 {
        let text = format!("{address} reduces its rate at a CNP to {:.0} % (median)", factor * 100.0);
        (Verdict::pass, text)
    } else if cuts.len() >= ENOUGH_CUTS && last >= first * 0.98 {
        let text = format!(
            "{address} does not slow down: {:.2} Gbit/s before and {:.2} Gbit/s after {count} CNPs",
            first / 1e9,
            last / 1e9
        );
        (Verdict::fail, text)
    } else {
        let text = format!(
            "{count} CNPs do not change the rate of {address}, which may be below its limit; {ENOUGH_CUTS} \
             with enough packets around them are needed"
        );
        (Verdict::unknown, text)
    };
    let mut recoveries: Vec<f64> = found
        .iter()
        .filter_map(|(cut, next)| sender.recovery_ns(cut, *next))
        .map(|ns| ns as f64 / 1e3)
        .collect();
    let mut increases: Vec<f64> =
        found.iter().filter_map(|(cut, next)| sender.increase(cut, *next)).map(|bps| bps / 1e6).collect();
    let fitted = fit(&cuts).filter(|_| factor < 0.98);
    let summary = match fitted {
        Some((g, _)) => format!(
            "{summary}; g of DCQCN fits 1/{:.0}, and the default is 1/{:.0}",
            1.0 / g,
            1.0 / DEFAULT_G
        ),
        None => format!("{summary}; too few reductions follow each other to fit DCQCN"),
    };
    let mut verdict = outcome(&rules::REACTION, summary)
        .at(sender.notifications.iter().filter_map(|(_, index)| scene.place(*index)))
        .with("cnp_rx", count as f64)
        .with("rate_before_gbps", first / 1e9)
        .with("cut_factor", factor)
        .with("alpha", (2.0 * (1.0 - factor)).clamp(0.0, 1.0));
    if let Some(recovery) = median(&mut recoveries) {
        verdict = verdict.with("recovery_us", recovery);
    }
    if let Some(increase) = median(&mut increases) {
        verdict = verdict
            .with("additive_increase_mbps", increase)
            .with("default_additive_increase_mbps", DEFAULT_INCREASE_MBPS);
    }
    if let Some((g, deviation)) = fitted {
        verdict = verdict
            .with("g", g)
            .with("default_g", DEFAULT_G)
            .with("alpha_deviation", deviation)
            .with("default_period_us", PERIOD_NS as f64 / 1e3);
    }
    verdict
}

#[cfg(test)]
mod tests {
    use super::super::{Outcome, of_connection as judge_all};
    use super::*;
    use crate::testing::wire::{Sketch, Wire};

    /// A sender of SENDs. `rate` gives packets per millisecond after a number of CNPs; a CNP comes after
    /// every `every` packets.
    fn verdict(every: u32, interval_ns: impl Fn(u32) -> u64, packets: u32) -> Verdict {
        let mut wire = Wire::default();
        let mut time = 1_000_000;
        for psn in 0..packets {
            let after = psn / every;
            time += interval_ns(after);
            wire.add(0, time, Sketch::send(1, psn));
            if psn % every == every - 1 {
                wire.add(0, time + 10, Sketch::cnp(2));
            }
        }
        wire.add(0, time + 1000, Sketch::ack(2, packets - 1, packets));
        let analysis = wire.analyze();
        let mut found = judge_all(&analysis, &analysis.connections[0]);
        found.retain(|verdict| verdict.rule.number == 10);
        let [verdict] = &found[..] else { panic!("one sender receives CNPs: {found:?}") };
        verdict.clone()
    }

    fn figure(verdict: &Verdict, name: &str) -> f64 {
        verdict.figures.iter().find(|figure| figure.name == name).map(|figure| figure.value).unwrap()
    }

    #[test]
    fn a_sender_that_halves_its_rate_passes() {
        let verdict = verdict(40, |cnps| 1000 << cnps, 80);
        assert_eq!(verdict.outcome, Outcome::Pass, "{}", verdict.summary);
        assert!((figure(&verdict, "cut_factor") - 0.5).abs() < 0.01, "{verdict:?}");
    }

    #[test]
    fn a_sender_that_ignores_many_notifications_fails() {
        let verdict = verdict(40, |_| 1000, 800);
        assert_eq!(verdict.outcome, Outcome::Fail, "{}", verdict.summary);
    }

    #[test]
    fn few_notifications_say_nothing_about_a_slow_sender() {
        let verdict = verdict(40, |_| 1000, 120);
        assert_eq!(verdict.outcome, Outcome::Unknown, "{}", verdict.summary);
    }

    #[test]
    fn few_packets_give_no_rate() {
        let verdict = verdict(2, |_| 1000, 6);
        assert_eq!(verdict.outcome, Outcome::Unknown, "{}", verdict.summary);
    }

    /// Reductions computed with g = 1/16, each with the α of the model.
    #[test]
    fn g_is_fitted_from_consecutive_reductions() {
        let (g, mut alpha, mut cuts, mut at_ns) = (1.0 / 16.0, 0.5, Vec::new(), 0);
        for number in 0..20 {
            let before = 1e9;
            cuts.push(Cut { at_ns, before, after: before * (1.0 - alpha / 2.0) });
            let periods = 1 + number % 7;
            at_ns += periods * PERIOD_NS;
            alpha = ((1.0 - g) * alpha + g) * (1.0_f64 - g).powf(periods as f64);
        }
        let (fitted, deviation) = fit(&cuts).unwrap();
        assert!((fitted / g - 1.0).abs() < 0.01 && deviation < 1e-6, "{fitted} {deviation}");
        assert_eq!(fit(&cuts[..3]), None, "too few pairs");
    }
}
