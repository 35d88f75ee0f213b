//! Parsing of a plan of faults of verbs from text.

use std::fmt;
use std::str::FromStr;

use roce_transport::{WcStatus, units};

use super::errno::Errno;
use super::names::Verb;
use super::plan::{
    CallFault, CompletionFault, LinkFlap, Outage, VerbsItem, VerbsPlan, Which, Window, WorkQueue,
};
use crate::closest::closest;
use crate::parse::{chance, duration};

/// The error for a text that is not a plan of faults of verbs.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("verbs fault plan, item {item} `{text}`: {kind}")]
pub struct VerbsPlanError {
    /// Number of the item, counted from 1.
    pub item: usize,
    /// Text of the item.
    pub text: String,
    /// Description of the problem.
    pub kind: VerbsPlanErrorKind,
}

/// The problem of an item of a plan. It is a part of a [`VerbsPlanError`], not its source.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum VerbsPlanErrorKind {
    /// The first word of the item is unknown.
    UnknownVerb {
        /// The unknown word.
        name: String,
        /// The name of which it may be a misspelling.
        suggestion: Option<&'static str>,
    },
    /// A part of the item is not valid.
    BadPart {
        /// The part.
        part: String,
        /// A description of valid parts.
        expected: &'static str,
        /// The name of which it may be a misspelling.
        suggestion: Option<&'static str>,
    },
    /// Something that may be given once is given twice.
    Repeated {
        /// What it is.
        what: &'static str,
    },
    /// Something is missing.
    Missing {
        /// What it is.
        expected: &'static str,
    },
    /// The function cannot report an error.
    CannotFail {
        /// The function.
        verb: Verb,
    },
}

impl fmt::Display for VerbsPlanErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownVerb { name, suggestion } => {
                write!(f, "`{name}` is not a function of libibverbs or librdmacm that this library has")?;
                suggested(f, *suggestion)?;
                write!(f, "; expected such a name, completion, port, device, qp, link or seed")
            }
            Self::BadPart { part, expected, suggestion } => {
                write!(f, "`{part}` is not valid here")?;
                suggested(f, *suggestion)?;
                write!(f, "; expected {expected}")
            }
            Self::Repeated { what } => write!(f, "{what} is given twice"),
            Self::Missing { expected } => write!(f, "{expected} is missing"),
            Self::CannotFail { verb } => {
                write!(f, "{verb} cannot report an error; it can only take longer, such as {verb}:delay=1ms")
            }
        }
    }
}

fn suggested(f: &mut fmt::Formatter<'_>, suggestion: Option<&str>) -> fmt::Result {
    suggestion.map_or(Ok(()), |name| write!(f, " (did you mean `{name}`?)"))
}

type Problem = VerbsPlanErrorKind;

fn bad(part: &str, expected: &'static str) -> Problem {
    Problem::BadPart { part: part.to_owned(), expected, suggestion: None }
}

impl FromStr for VerbsPlan {
    type Err = VerbsPlanError;

    fn from_str(text: &str) -> Result<Self, VerbsPlanError> {
        let mut plan = Self::default();
        let mut seed = None;
        let lines = text.lines().map(|line| line.split('#').next().unwrap_or_default());
        let items = lines.flat_map(|line| line.split(';')).map(str::trim).filter(|item| !item.is_empty());
        for (index, item) in items.filter(|item| *item != "none").enumerate() {
            let at = |kind| VerbsPlanError { item: index + 1, text: item.to_owned(), kind };
            match item.strip_prefix("seed=") {
                Some(_) if seed.is_some() => return Err(at(Problem::Repeated { what: "the seed" })),
                Some(number) => seed = Some(number.trim().parse::<u64>().map_err(|_| at(bad(number, SEED)))?),
                None => plan.items.push(read_item(item).map_err(at)?),
            }
        }
        plan.seed = seed.unwrap_or(0);
        Ok(plan)
    }
}

/// The words of an item: `name:part:part@window=result`.
struct Words<'a> {
    name: &'a str,
    parts: Vec<Part<'a>>,
    window: Option<&'a str>,
    result: Option<&'a str>,
}

/// A part: a word, or `key=value`.
#[derive(Clone, Copy)]
struct Part<'a> {
    key: &'a str,
    value: Option<&'a str>,
}

impl Part<'_> {
    fn text(&self) -> String {
        self.value.map_or_else(|| self.key.to_owned(), |value| format!("{}={value}", self.key))
    }

    fn refused(&self, expected: &'static str) -> Problem {
        let words = expected.split([',', ' ', '=', ':', '@']).filter(|word| word.len() > 2);
        let suggestion = closest(self.key, words);
        Problem::BadPart { part: self.text(), expected, suggestion }
    }
}

/// Keys of parts that have a value. After any other word, `=` begins the result.
const WITH_VALUE: [&str; 4] = ["every", "p", "delay", "qp"];

impl<'a> Words<'a> {
    fn split(item: &'a str) -> Result<Self, Problem> {
        let (head, tail) = match item.split_once('@') {
            Some((head, tail)) => (head, Some(tail)),
            None => (item, None),
        };
        let (window, mut result) = match tail.map(|tail| tail.split_once('=')) {
            Some(Some((window, result))) => (Some(window.trim()), Some(result.trim())),
            Some(None) => (tail.map(str::trim), None),
            None => (None, None),
        };
        let mut words = head.split(':').map(str::trim).peekable();
        let mut keep_result = |text: &'a str, is_last: bool| {
            if !is_last {
                return Err(bad(text, "an error at the end of the item"));
            }
            match result.replace(text.trim()) {
                Some(_) => Err(Problem::Repeated { what: "the error" }),
                None => Ok(()),
            }
        };
        let mut name = words.next().unwrap_or_default();
        if let Some((word, text)) = name.split_once('=') {
            name = word.trim();
            keep_result(text, words.peek().is_none())?;
        }
        let mut parts = Vec::new();
        while let Some(word) = words.next() {
            let (key, mut rest) = match word.split_once('=') {
                Some((key, rest)) => (key.trim(), Some(rest)),
                None => (word, None),
            };
            let mut value = None;
            if WITH_VALUE.contains(&key)
                && let Some(text) = rest
            {
                let (own, after) = match text.split_once('=') {
                    Some((own, after)) => (own, Some(after)),
                    None => (text, None),
                };
                (value, rest) = (Some(own.trim()), after);
            }
            if let Some(text) = rest {
                keep_result(text, words.peek().is_none())?;
            }
            parts.push(Part { key, value });
        }
        Ok(Self { name, parts, window, result })
    }

    /// Fails if the item has an error at its end.
    fn without_result(&self) -> Result<(), Problem> {
        self.result.map_or(Ok(()), |text| Err(bad(&format!("={text}"), "the end of the item")))
    }

    /// Splits the parts into the name of a device, if one is given, and the action, which must be `action`.
    fn of_device(&self, action: &'static str, expected: &'static str) -> Result<Option<String>, Problem> {
        self.without_result()?;
        match &self.parts[..] {
            [only] if only.key == action && only.value.is_none() => Ok(None),
            [device, last] if last.key == action && last.value.is_none() && device.value.is_none() => {
                Ok(Some(device.key.to_owned()))
            }
            [.., wrong] => Err(wrong.refused(expected)),
            [] => Err(Problem::Missing { expected }),
        }
    }

    fn window(&self) -> Result<Option<Window>, Problem> {
        self.window.map(|text| window(text).ok_or_else(|| bad(text, WINDOW))).transpose()
    }

    fn time(&self) -> Result<u64, Problem> {
        let text = self.window.ok_or(Problem::Missing { expected: TIME })?;
        duration(text).ok_or_else(|| bad(text, TIME))
    }
}

fn read_item(item: &str) -> Result<VerbsItem, Problem> {
    let words = Words::split(item)?;
    match words.name {
        "completion" => read_completion(&words).map(VerbsItem::Completion),
        "port" => {
            let device = words.of_device("down", PORT)?;
            let window = words.window()?.ok_or(Problem::Missing { expected: PORT_TIME })?;
            Ok(VerbsItem::Outage(Outage::Port { device, window }))
        }
        "device" => {
            let device = words.of_device("fatal", DEVICE)?;
            Ok(VerbsItem::Outage(Outage::Device { device, at_ns: words.time()? }))
        }
        "qp" => {
            let text = words.of_device("error", QP)?.ok_or(Problem::Missing { expected: QP })?;
            let qp = text.parse::<u32>().ok().filter(|qp| *qp > 0).ok_or_else(|| bad(&text, QP))?;
            Ok(VerbsItem::Outage(Outage::QueuePair { qp, at_ns: words.time()? }))
        }
        "link" => {
            let device = words.of_device("flap", LINK)?;
            let text = words.window.ok_or(Problem::Missing { expected: FLAP })?;
            let (after_bytes, for_ns) = flap(text).ok_or_else(|| bad(text, FLAP))?;
            Ok(VerbsItem::Flap(LinkFlap { device, after_bytes, for_ns }))
        }
        _ => read_call(&words).map(VerbsItem::Call),
    }
}

fn read_call(words: &Words<'_>) -> Result<CallFault, Problem> {
    let name = words.name;
    let unknown = || Problem::UnknownVerb { name: name.to_owned(), suggestion: suggestion_for(name) };
    let verb = Verb::find(name).ok_or_else(unknown)?;
    let (mut which, mut delay_ns) = (None, None);
    for part in &words.parts {
        if part.key == "delay" {
            let delay = part.value.and_then(duration).ok_or_else(|| bad(&part.text(), DELAY))?;
            once(&mut delay_ns, delay, "the delay")?;
        } else {
            let selected = selection(part).ok_or_else(|| part.refused(CALL_PARTS))?;
            once(&mut which, selected, "the selection of calls")?;
        }
    }
    let errno = match words.result {
        Some(_) if !verb.can_fail() => return Err(Problem::CannotFail { verb }),
        Some(text) => Some(Errno::find(text).ok_or_else(|| Problem::BadPart {
            part: text.to_owned(),
            expected: ERRNO,
            suggestion: Errno::suggest(text),
        })?),
        None => None,
    };
    if errno.is_none() && delay_ns.is_none() {
        return Err(Problem::Missing { expected: CALL_EFFECT });
    }
    let window = words.window()?.unwrap_or_default();
    let (which, delay_ns) = (which.unwrap_or(Which::All), delay_ns.unwrap_or(0));
    Ok(CallFault { verb, which, window, delay_ns, errno })
}

/// Returns the first word for which a misspelled one may stand.
fn suggestion_for(name: &str) -> Option<&'static str> {
    Verb::suggest(name).or_else(|| closest(name, ["completion", "port", "device", "link", "seed"]))
}

fn read_completion(words: &Words<'_>) -> Result<CompletionFault, Problem> {
    let (mut which, mut queue, mut qp) = (None, None, None);
    for part in &words.parts {
        match (part.key, part.value) {
            ("send", None) => once(&mut queue, WorkQueue::Send, "send or recv")?,
            ("recv", None) => once(&mut queue, WorkQueue::Receive, "send or recv")?,
            ("qp", Some(text)) => {
                let number = text.parse::<u32>().ok().filter(|qp| *qp > 0);
                once(&mut qp, number.ok_or_else(|| bad(&part.text(), QP_NUMBER))?, "the queue pair")?;
            }
            _ => {
                let selected = selection(part).ok_or_else(|| part.refused(COMPLETION_PARTS))?;
                once(&mut which, selected, "the selection of completions")?;
            }
        }
    }
    let text = words.result.ok_or(Problem::Missing { expected: STATUS })?;
    let status = status(text).ok_or_else(|| Problem::BadPart {
        part: text.to_owned(),
        expected: STATUS,
        suggestion: closest(text.strip_prefix(STATUS_PREFIX).unwrap_or(text), statuses().map(WcStatus::name)),
    })?;
    let window = words.window()?.unwrap_or_default();
    Ok(CompletionFault { queue, qp, which: which.unwrap_or(Which::All), window, status })
}

/// Stores a value that may be given once.
fn once<T>(place: &mut Option<T>, value: T, what: &'static str) -> Result<(), Problem> {
    match place.replace(value) {
        None => Ok(()),
        Some(_) => Err(Problem::Repeated { what }),
    }
}

/// Returns the statuses of failures.
fn statuses() -> impl Iterator<Item = WcStatus> {
    WcStatus::ALL.into_iter().filter(|status| *status != WcStatus::Success)
}

fn status(text: &str) -> Option<WcStatus> {
    let name = text.strip_prefix(STATUS_PREFIX).unwrap_or(text);
    statuses().find(|status| status.name() == name)
}

fn selection(part: &Part<'_>) -> Option<Which> {
    match (part.key, part.value) {
        ("every", Some(text)) => count(text).map(Which::Every),
        ("p", Some(text)) => chance(text).map(Which::Chance),
        (range, None) => match range.split_once("..") {
            Some((first, "")) => Some(Which::Numbers(count(first)?, None)),
            Some((first, last)) => {
                let (first, last) = (count(first)?, count(last)?);
                (first <= last).then_some(Which::Numbers(first, Some(last)))
            }
            None => count(range).map(|number| Which::Numbers(number, Some(number))),
        },
        _ => None,
    }
}

/// Parses a number that counts from 1.
fn count(text: &str) -> Option<u64> {
    let text = text.trim();
    // `parse` alone would accept "+1".
    let is_number = text.starts_with(|first: char| first.is_ascii_digit());
    text.parse::<u64>().ok().filter(|number| is_number && *number > 0)
}

fn window(text: &str) -> Option<Window> {
    let (from, until) = text.split_once("..").unwrap_or((text, ""));
    let from_ns = duration(from.trim())?;
    let until_ns = if until.trim().is_empty() { None } else { Some(duration(until.trim())?) };
    until_ns.is_none_or(|until| from_ns < until).then_some(Window { from_ns, until_ns })
}

fn flap(text: &str) -> Option<(u64, u64)> {
    let (size, time) = text.split_once(" for ")?;
    Some((units::size(size).ok()?, duration(time.trim()).filter(|time| *time > 0)?))
}

const STATUS_PREFIX: &str = "IBV_WC_";

const SEED: &str = "a number such as seed=7";
const TIME: &str = "@ and a time such as @3s; units are ns, us, ms, s";
const WINDOW: &str = "a time such as 2s, or a time and a later one such as 2s..5s; units are ns, us, ms, s";
const DELAY: &str = "a time such as delay=200ms; units are ns, us, ms, s";
const ERRNO: &str = "the name of an error such as ENOMEM, or a number from 1 to 4095";
const STATUS: &str = "= and the status of a failure such as =IBV_WC_RETRY_EXC_ERR";
const CALL_PARTS: &str = "numbers of calls such as 3, 3..5 or 3.., every=10, p=1% or delay=200ms";
const CALL_EFFECT: &str = "an error such as =ENOMEM, or a delay such as :delay=200ms";
const COMPLETION_PARTS: &str =
    "send, recv, qp=1, or numbers of completions such as 3, 3..5 or 3.., every=10 or p=1%";
const QP_NUMBER: &str = "a queue pair in the order of creation such as qp=1";
const PORT: &str = "port:down@2s..5s, or with the name of a device port:roce0:down@2s..5s";
const PORT_TIME: &str = "@ and the time such as @2s..5s";
const DEVICE: &str = "device:fatal@3s, or with the name of a device device:roce0:fatal@3s";
const QP: &str = "qp:1:error@3s, with the queue pair in the order of creation";
const LINK: &str = "link:flap@1MiB for 50ms, or with the name of a device link:roce0:flap@1MiB for 50ms";
const FLAP: &str = "a number of bytes and a time such as @1MiB for 50ms";
