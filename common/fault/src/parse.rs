//! Parsing of a fault plan from text.

use std::fmt;
use std::str::FromStr;

use roce_transport::units;

use super::closest::closest;
use super::plan::{Action, Chance, Delay, DelayTime, FaultPlan, Numbers, OpcodePattern, Rates, Rule};
use super::text::number;

/// The error for a text that is not a fault plan: its position, and the text that was expected there.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("fault plan, item {item} `{text}`: {kind}")]
pub struct FaultPlanError {
    /// Number of the item, counted from 1. Items are separated by semicolons.
    pub item: usize,
    /// Text of the item.
    pub text: String,
    /// Description of the problem.
    pub kind: FaultPlanErrorKind,
}

/// The problem of an item of a fault plan. It is a part of a [`FaultPlanError`], not its source.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FaultPlanErrorKind {
    /// The name is unknown.
    UnknownName {
        /// The unknown name.
        name: String,
        /// The valid names.
        expected: &'static str,
        /// The valid name of which it may be a misspelling.
        suggestion: Option<&'static str>,
    },
    /// The name lacks `=` and a value.
    MissingValue {
        /// The name.
        name: String,
        /// The kind of value that it takes.
        expected: &'static str,
    },
    /// The value is not valid for its name.
    BadValue {
        /// The name in front of the value.
        name: String,
        /// The value.
        value: String,
        /// A description of valid values.
        expected: &'static str,
    },
    /// The name was given before.
    Repeated {
        /// The name.
        name: String,
    },
    /// The rule has no action.
    MissingAction,
}

impl fmt::Display for FaultPlanErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownName { name, expected, suggestion } => {
                write!(f, "`{name}` is not known here")?;
                if let Some(suggestion) = suggestion {
                    write!(f, " (did you mean `{suggestion}`?)")?;
                }
                write!(f, "; expected one of {expected}")
            }
            Self::MissingValue { name, expected } => {
                write!(f, "`{name}` has no value; expected {name}={expected}")
            }
            Self::BadValue { name, value, expected } => write!(f, "{name}=`{value}`: expected {expected}"),
            Self::Repeated { name } => write!(f, "`{name}` is given twice"),
            Self::MissingAction => write!(f, "the rule does nothing; expected action= and one of {ACTIONS}"),
        }
    }
}

impl FromStr for FaultPlan {
    type Err = FaultPlanError;

    fn from_str(text: &str) -> Result<Self, FaultPlanError> {
        let mut plan = Self::default();
        if matches!(text.trim(), "" | "none") {
            return Ok(plan);
        }
        let mut rate_names = Names::default();
        for (index, item) in text.split(';').enumerate() {
            let item = item.trim();
            let read = match item.strip_prefix("rule:") {
                Some(parts) => read_rule(parts).map(|rule| plan.rules.push(rule)),
                None => read_rates(item, &mut plan.rates, &mut rate_names),
            };
            read.map_err(|kind| FaultPlanError { item: index + 1, text: item.to_owned(), kind })?;
        }
        Ok(plan)
    }
}

fn read_rates(item: &str, rates: &mut Rates, seen: &mut Names) -> Result<(), FaultPlanErrorKind> {
    for part in item.split(',') {
        let pair = Pair::split(part);
        seen.insert(pair.name)?;
        match pair.name {
            "drop" => rates.drop = pair.chance()?,
            "dup" => rates.duplicate = pair.chance()?,
            "reorder" => rates.reorder = pair.chance()?,
            "corrupt" => rates.corrupt = pair.chance()?,
            "ecn" => rates.mark = pair.chance()?,
            "delay" => rates.delay = pair.value(DELAY, delay)?,
            "reorder-behind" => rates.behind = pair.value(BEHIND, behind)?,
            "reorder-hold" => rates.hold = pair.value(TIME, delay_time)?,
            "force-ecn" => rates.force_mark = pair.value(SWITCH, switch)?,
            _ => return Err(pair.unknown(RATE_NAMES)),
        }
    }
    Ok(())
}

fn read_rule(parts: &str) -> Result<Rule, FaultPlanErrorKind> {
    let mut seen = Names::default();
    let mut action_given = false;
    let mut rule = Rule::new(Action::Deliver);
    for part in parts.split(',') {
        let pair = Pair::split(part);
        seen.insert(pair.name)?;
        match pair.name {
            "qp" => rule.qp = Some(pair.value(NUMBERS_24, numbers_24)?),
            "rqp" => rule.relative_qp = Some(pair.value(COUNTS, counts)?),
            "psn" => rule.psn = Some(pair.value(NUMBERS_24, numbers_24)?),
            "rpsn" => rule.relative_psn = Some(pair.value(NUMBERS_24, numbers_24)?),
            "opcode" => rule.opcode = Some(pair.value(OPCODE, OpcodePattern::new)?),
            "pass" => rule.pass = Some(pair.value(COUNTS, counts)?),
            "len" => rule.len = Some(pair.value(LENGTHS, numbers)?),
            "after" => rule.after_ns = Some(pair.value(DURATION, duration)?),
            "until" => rule.until_ns = Some(pair.value(DURATION, duration)?),
            "chance" => rule.chance = Some(pair.chance()?),
            "times" => rule.times = Some(pair.value(NUMBER, number)?),
            "action" => {
                rule.action = pair.value(ACTIONS, action)?;
                action_given = true;
            }
            _ => return Err(pair.unknown(RULE_NAMES)),
        }
    }
    if action_given { Ok(rule) } else { Err(FaultPlanErrorKind::MissingAction) }
}

/// A `name=value` pair.
struct Pair<'a> {
    name: &'a str,
    value: Option<&'a str>,
}

impl<'a> Pair<'a> {
    fn split(part: &'a str) -> Self {
        match part.split_once('=') {
            Some((name, value)) => Self { name: name.trim(), value: Some(value.trim()) },
            None => Self { name: part.trim(), value: None },
        }
    }

    fn value<T>(
        &self,
        expected: &'static str,
        read: impl FnOnce(&str) -> Option<T>,
    ) -> Result<T, FaultPlanErrorKind> {
        let name = self.name.to_owned();
        let Some(value) = self.value else { return Err(FaultPlanErrorKind::MissingValue { name, expected }) };
        let value_text = || value.to_owned();
        read(value).ok_or_else(|| FaultPlanErrorKind::BadValue { name, value: value_text(), expected })
    }

    fn chance(&self) -> Result<Chance, FaultPlanErrorKind> {
        let parts = self.value(CHANCE, |text| fixed_point(text.strip_suffix('%')?, PERCENT_DECIMALS))?;
        let parts = u32::try_from(parts).ok().and_then(Chance::from_parts_per_billion);
        parts.map_or_else(|| self.value("at most 100%", |_| None), Ok)
    }

    fn unknown(&self, expected: &'static str) -> FaultPlanErrorKind {
        let suggestion = closest(self.name, expected.split(", "));
        FaultPlanErrorKind::UnknownName { name: self.name.to_owned(), expected, suggestion }
    }
}

/// The names seen so far.
#[derive(Default)]
struct Names(Vec<String>);

impl Names {
    fn insert(&mut self, name: &str) -> Result<(), FaultPlanErrorKind> {
        if self.0.iter().any(|known| known == name) {
            return Err(FaultPlanErrorKind::Repeated { name: name.to_owned() });
        }
        self.0.push(name.to_owned());
        Ok(())
    }
}

fn action(text: &str) -> Option<Action> {
    let (name, argument) = match text.split_once(':') {
        Some((name, argument)) => (name.trim(), Some(argument.trim())),
        None => (text, None),
    };
    match (name, argument) {
        ("deliver", None) => Some(Action::Deliver),
        ("drop", None) => Some(Action::Drop),
        ("dup", None) => Some(Action::Duplicate),
        ("reorder", None) => Some(Action::Reorder(None)),
        ("reorder", Some(argument)) => behind(argument).map(Some).map(Action::Reorder),
        ("corrupt", None) => Some(Action::Corrupt(None)),
        ("corrupt", Some(argument)) => number(argument).map(Some).map(Action::Corrupt),
        ("ecn", None) => Some(Action::Mark { force: false }),
        ("force-ecn", None) => Some(Action::Mark { force: true }),
        ("clear-ecn", None) => Some(Action::ClearEcn),
        ("clear-dscp", None) => Some(Action::ClearDscp),
        ("delay", Some(argument)) => delay_time(argument).map(Action::Delay),
        _ => None,
    }
}

pub(super) fn chance(text: &str) -> Option<Chance> {
    let parts = fixed_point(text.strip_suffix('%')?, PERCENT_DECIMALS)?;
    Chance::from_parts_per_billion(u32::try_from(parts).ok()?)
}

fn delay(text: &str) -> Option<Delay> {
    match text.split_once('@') {
        Some((time, share)) => Some(Delay { time: delay_time(time.trim())?, chance: chance(share.trim())? }),
        None => Some(Delay { time: delay_time(text)?, chance: Chance::ALWAYS }),
    }
}

fn delay_time(text: &str) -> Option<DelayTime> {
    match text.split_once('-') {
        Some((from, to)) => {
            let (from_ns, to_ns) = (duration(from.trim())?, duration(to.trim())?);
            (from_ns <= to_ns).then_some(DelayTime { from_ns, to_ns })
        }
        None => duration(text).map(DelayTime::exactly),
    }
}

/// Parses a duration into nanoseconds.
pub(super) fn duration(text: &str) -> Option<u64> {
    units::duration_ns(text).ok()
}

fn numbers_24(text: &str) -> Option<Numbers> {
    numbers(text).filter(|numbers| numbers.last() <= roce_packet::Psn::MASK)
}

/// Parses numbers that count from 1.
fn counts(text: &str) -> Option<Numbers> {
    numbers(text).filter(|numbers| !numbers.contains(0))
}

fn numbers(text: &str) -> Option<Numbers> {
    match text.split_once('-') {
        Some((first, last)) => Numbers::new(number(first.trim())?, number(last.trim())?),
        None => number(text).map(Numbers::one),
    }
}

fn behind(text: &str) -> Option<u16> {
    let behind = u16::try_from(number(text)?).ok()?;
    (1..=Rates::MAX_BEHIND).contains(&behind).then_some(behind)
}

fn switch(text: &str) -> Option<bool> {
    match text {
        "on" => Some(true),
        "off" => Some(false),
        _ => None,
    }
}

/// Parses a decimal number and returns it times 10^`decimals`, if that is an integer.
fn fixed_point(text: &str, decimals: u32) -> Option<u64> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let is_digits = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    if !is_digits(whole) || !is_digits(fraction) {
        return None;
    }
    let fraction = fraction.trim_end_matches('0');
    let missing = decimals.checked_sub(u32::try_from(fraction.len()).ok()?)?;
    let fraction = if fraction.is_empty() { 0 } else { fraction.parse::<u64>().ok()? };
    let scaled = whole.parse::<u64>().ok()?.checked_mul(10_u64.checked_pow(decimals)?)?;
    scaled.checked_add(fraction.checked_mul(10_u64.checked_pow(missing)?)?)
}

/// Decimal places of a percentage in parts per billion.
const PERCENT_DECIMALS: u32 = 7;

const RATE_NAMES: &str =
    "drop, dup, reorder, corrupt, ecn, delay, reorder-behind, reorder-hold, force-ecn, rule:";
const RULE_NAMES: &str = "qp, rqp, psn, rpsn, opcode, pass, len, after, until, chance, times, action";
const ACTIONS: &str = "drop, dup, reorder, reorder:NUMBER, corrupt, corrupt:BIT, ecn, force-ecn, clear-ecn, clear-dscp, delay:TIME, \
     deliver";
const CHANCE: &str = "a percentage with at most seven decimal places such as 0.5%";
const TIME: &str = "a time such as 50us or 50us-70us; units are ns, us, ms, s";
const DURATION: &str = "a time such as 50us; units are ns, us, ms, s";
const DELAY: &str = "a time such as 50us, 50us-70us or 50us@10%; units are ns, us, ms, s";
const BEHIND: &str = "a number from 1 to 1000";
const SWITCH: &str = "on or off";
const NUMBER: &str = "a number such as 5 or 0x11";
const NUMBERS_24: &str = "a number from 0 to 16777215 such as 5 or 0x11, or a range such as 5-9";
const LENGTHS: &str = "a number of bytes such as 1048, or a range such as 1048-65535";
const COUNTS: &str = "a number from 1 such as 2, or a range such as 2-4";
const OPCODE: &str =
    "a name such as RC_SEND_ONLY, the beginning of names such as RC_SEND_*, or a number from 0 to 255";
