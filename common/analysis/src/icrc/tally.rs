//! Mistakes over many packets, and the conclusion from their numbers.

use std::collections::{BTreeMap, BTreeSet};

use super::mistake::{Certainty, Detail, Mistake, Verdict, names};

/// Counts the ICRCs of many packets, preferably of one sender.
///
/// One packet cannot confirm a search of 65,536 values, because a random ICRC agrees with one of them once in
/// 65,536 packets. Two packets with the same mistake can.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    correct: u64,
    unchecked: u64,
    wrong: u64,
    /// The packets of each explanation.
    causes: BTreeMap<Vec<Mistake>, Cause>,
    /// The first wrong ICRC.
    first: Option<u32>,
    /// Whether another wrong ICRC differs from the first.
    has_several: bool,
    /// Correct values of the wrong ICRCs; at most [`ENOUGH_VALUES`].
    correct_values: BTreeSet<u32>,
}

/// Number of packets with different correct ICRCs whose equal wrong ICRCs are no accident.
const ENOUGH_VALUES: usize = 3;

/// The packets with one explanation.
#[derive(Clone, Copy, Debug)]
struct Cause {
    packets: u64,
    /// Packets for which the finding is definite.
    definite: u64,
    /// Number of packets that agree by accident, if all wrong ICRCs are random.
    accidents_per_packet: f64,
    detail: Option<Detail>,
    /// Whether all packets have the same detail.
    is_one_detail: bool,
}

/// What the packets say together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Conclusion {
    /// The mistakes; empty if there are none, or if they are unknown.
    pub mistakes: Vec<Mistake>,
    /// Whether accident is ruled out as the reason of the agreement.
    pub is_certain: bool,
    /// The conclusion with its numbers, as a sentence without a full stop.
    pub text: String,
    /// The remedy, as a sentence without a full stop.
    pub remedy: Option<String>,
}

impl Tally {
    /// Adds the result of one packet.
    pub fn add(&mut self, verdict: &Verdict) {
        let wrong = match verdict {
            Verdict::Correct => {
                self.correct += 1;
                return;
            }
            Verdict::Unchecked(_) => {
                self.unchecked += 1;
                return;
            }
            Verdict::Wrong(wrong) => wrong,
        };
        self.wrong += 1;
        self.has_several |= *self.first.get_or_insert(wrong.found) != wrong.found;
        if self.correct_values.len() < ENOUGH_VALUES {
            self.correct_values.insert(wrong.computed);
        }
        for finding in &wrong.findings {
            let (definite, tried) = match finding.certainty {
                Certainty::Definite => (1, 0),
                Certainty::Probable { tried } => (0, tried),
            };
            let cause = self.causes.entry(finding.mistakes.clone()).or_insert(Cause {
                packets: 0,
                definite: 0,
                accidents_per_packet: 0.0,
                detail: finding.detail,
                is_one_detail: true,
            });
            cause.packets += 1;
            cause.definite += definite;
            let accidents = f64::from(tried) / 2_f64.powi(32);
            cause.accidents_per_packet = cause.accidents_per_packet.max(accidents);
            cause.is_one_detail &= cause.detail == finding.detail;
        }
    }

    /// Adds the packets of another tally.
    pub(crate) fn merge(&mut self, other: Self) {
        self.correct += other.correct;
        self.unchecked += other.unchecked;
        self.wrong += other.wrong;
        let differs = self.first.zip(other.first).is_some_and(|(own, other)| own != other);
        self.has_several |= other.has_several || differs;
        self.first = self.first.or(other.first);
        let room = ENOUGH_VALUES.saturating_sub(self.correct_values.len());
        self.correct_values.extend(other.correct_values.into_iter().take(room));
        for (mistakes, new) in other.causes {
            let Some(cause) = self.causes.get_mut(&mistakes) else {
                self.causes.insert(mistakes, new);
                continue;
            };
            cause.packets += new.packets;
            cause.definite += new.definite;
            cause.accidents_per_packet = cause.accidents_per_packet.max(new.accidents_per_packet);
            cause.is_one_detail &= new.is_one_detail && cause.detail == new.detail;
        }
    }

    /// Returns the number of correct ICRCs.
    #[must_use]
    pub const fn correct(&self) -> u64 {
        self.correct
    }

    /// Returns the number of wrong ICRCs.
    #[must_use]
    pub const fn wrong(&self) -> u64 {
        self.wrong
    }

    /// Returns the number of packets whose ICRC could not be checked.
    #[must_use]
    pub const fn unchecked(&self) -> u64 {
        self.unchecked
    }

    /// Returns the mistakes with the number of packets that each explains, most packets first.
    #[must_use]
    pub fn counts(&self) -> Vec<(&[Mistake], u64)> {
        let mut counts: Vec<_> =
            self.causes.iter().map(|(mistakes, cause)| (mistakes.as_slice(), cause.packets)).collect();
        counts.sort_by_key(|(mistakes, packets)| (std::cmp::Reverse(*packets), mistakes.len()));
        counts
    }

    /// Returns what the packets say together.
    #[must_use]
    pub fn conclusion(&self) -> Conclusion {
        let checked = self.correct + self.wrong;
        if self.wrong == 0 {
            let text = match (checked, self.unchecked) {
                (0, 0) => "no packet has an ICRC".to_owned(),
                (0, unchecked) => format!("none of {unchecked} ICRCs could be checked"),
                (checked, 0) => format!("all {checked} ICRCs are correct"),
                (checked, unchecked) => {
                    format!("all {checked} checked ICRCs are correct; {unchecked} could not be checked")
                }
            };
            return Conclusion { mistakes: Vec::new(), is_certain: checked > 0, text, remedy: None };
        }
        let wrong = format!("{} of {checked} ICRCs are wrong", self.wrong);
        let order = |cause: &Cause| (cause.packets, cause.definite);
        // Of explanations with equal numbers, the one with fewer mistakes.
        let best = self.causes.iter().max_by(|(a, one), (b, other)| {
            order(one).cmp(&order(other)).then(b.len().cmp(&a.len())).then(b.cmp(a))
        });
        match best {
            Some((mistakes, cause)) if !self.is_accident(cause) => self.explained(&wrong, mistakes, cause),
            best => self.unexplained(&wrong, best.map(|(mistakes, cause)| (mistakes.as_slice(), cause))),
        }
    }

    /// Returns whether random ICRCs are a good explanation of the agreement, too.
    fn is_accident(&self, cause: &Cause) -> bool {
        let expected = cause.accidents_per_packet * self.wrong as f64;
        cause.definite == 0 && cause.packets as f64 <= 10.0 * expected
    }

    fn explained(&self, wrong: &str, mistakes: &[Mistake], cause: &Cause) -> Conclusion {
        let is_damage =
            mistakes.iter().any(|mistake| matches!(mistake, Mistake::BitFlipped | Mistake::ByteDamaged));
        let is_certain = cause.definite > 0 || cause.packets > 1;
        let probably = if is_certain { "" } else { "probably " };
        let all = if cause.packets == self.wrong { "each".to_owned() } else { cause.packets.to_string() };
        let mut text = format!("{wrong}; {probably}{}, which explains {all} of them", names(mistakes));
        if let Some(detail) = cause.detail.filter(|_| cause.is_one_detail) {
            text += &format!(" ({detail})");
        }
        if !is_certain {
            text += "; one packet does not prove it, because the search tried many values";
        } else if cause.packets > 1 && cause.definite == 0 && !is_damage {
            let expected = cause.accidents_per_packet * self.wrong as f64;
            text += &format!("; {expected:.4} of them would agree by accident");
        }
        if self.correct == 0 && self.wrong > 1 && !is_damage {
            text += "; no ICRC is correct, so this is not random damage";
        }
        let remedy = mistakes.iter().map(|mistake| mistake.fix()).collect::<Vec<_>>().join("; ");
        Conclusion { mistakes: mistakes.to_vec(), is_certain, text, remedy: Some(remedy) }
    }

    fn unexplained(&self, wrong: &str, best: Option<(&[Mistake], &Cause)>) -> Conclusion {
        if let Some(found) = self.first
            && !self.has_several
            && self.correct_values.len() >= ENOUGH_VALUES
        {
            let mistakes = vec![Mistake::NotComputed];
            let text = format!("{wrong}, and all of them contain the number 0x{found:08x}");
            let remedy = Some(Mistake::NotComputed.fix().to_owned());
            return Conclusion { mistakes, is_certain: true, text, remedy };
        }
        let mut text = format!("{wrong}, and no known mistake explains them");
        if let Some((mistakes, cause)) = best {
            text += &format!(" ({} agree with {}, as accident allows)", cause.packets, names(mistakes));
        }
        let remedy = if self.correct == 0 {
            "compare the bytes that the sender covers with the list of `roce explain`, and look for a device \
             that rewrites addresses, ports or payload"
        } else {
            "look for damage on the path and in memory: cables, optics, switches (`ethtool -S`), ECC errors"
        };
        Conclusion { mistakes: Vec::new(), is_certain: false, text, remedy: Some(remedy.to_owned()) }
    }
}
