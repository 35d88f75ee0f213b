//! The fault plan as data, and its text form.

use std::fmt;

use roce_packet::Opcode;

use super::text::{DurationText, Percent, number};

/// A plan of faults, read from text such as
/// `drop=1%,delay=50us;rule:qp=0x11,psn=5,pass=2,action=drop`.
///
/// ```text
/// plan     = "none" | item *( ";" item )
/// item     = rates | rule
/// rates    = rate *( "," rate )
/// rule     = "rule:" part *( "," part )
///
/// rate     = "drop="     chance        loses the datagram
///          | "dup="      chance        delivers it twice
///          | "reorder="  chance        lets later datagrams overtake it
///          | "corrupt="  chance        flips one to three random bits between BTH and ICRC
///          | "ecn="      chance        marks it as a congested switch does: only if it is ECN capable
///          | "delay="    time [ "@" chance ]
///          | "reorder-behind=" number  how many datagrams overtake, 1 to 1000; 3 if not given
///          | "reorder-hold="   time    how long one waits for them at most; 1ms if not given
///          | "force-ecn=" ( "on" | "off" )   marks also what is not ECN capable
///
/// part     = "qp=" numbers             destination queue pair
///          | "rqp=" numbers            the same, counted from 1 in the order of appearance, without QP 1
///          | "psn=" numbers            packet sequence number
///          | "rpsn=" numbers           the same, counted from the first one seen on its queue pair, 0
///          | "opcode=" ( name | prefix "*" | number )
///          | "pass=" numbers           which time this PSN is seen on its queue pair; 1 is the first
///          | "len=" numbers            bytes from BTH to ICRC
///          | "after=" time | "until=" time    time since the first datagram
///          | "chance=" chance          applies to this share only
///          | "times=" number           applies at most this often
///          | "action=" action          required
/// action   = "drop" | "dup" | "reorder" [ ":" number ] | "corrupt" [ ":" bit ]
///          | "ecn" | "force-ecn" | "clear-ecn" | "clear-dscp" | "delay:" time | "deliver"
///
/// chance   = decimal "%"               at most seven decimal places
/// time     = duration [ "-" duration ] the second one makes it random in between
/// duration = decimal ( "ns" | "us" | "ms" | "s" )
/// numbers  = number [ "-" number ]     both ends belong to the range
/// number   = decimal | "0x" hexadecimal
/// ```
///
/// Rules are tried in order. The first matching rule alone decides, so `action=deliver` exempts datagrams
/// from everything after it. If no rule matches, each rate is drawn independently: one datagram may be
/// marked, delayed and duplicated at once. If a datagram is dropped, the other rates do not matter.
///
/// An injector sees one direction only, so the numbers of queue pairs and sequence numbers are those of that
/// direction. Requests and responses to the same queue pair count their sequence numbers separately, as in
/// the protocol.
///
/// The text that [`Display`](fmt::Display) writes is parsed by [`FromStr`](std::str::FromStr) into an equal
/// plan.
///
/// ```
/// use roce_fault::FaultPlan;
///
/// let plan: FaultPlan = "drop=0.5%; rule: opcode=RC_RDMA_READ_RESPONSE_*, pass=1, times=1, action=drop".parse()?;
/// assert_eq!(plan.to_string(), "drop=0.5%;rule:opcode=RC_RDMA_READ_RESPONSE_*,pass=1,times=1,action=drop");
///
/// let error = "drop=1%,dupe=2%".parse::<FaultPlan>().unwrap_err();
/// assert!(error.to_string().contains("`dupe`"));
/// # Ok::<(), roce_fault::FaultPlanError>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FaultPlan {
    /// Faults of datagrams that no rule matches.
    pub rates: Rates,
    /// Rules, tried in this order. The first that matches decides.
    pub rules: Vec<Rule>,
}

impl FaultPlan {
    /// Returns whether the plan never affects a datagram.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let Rates { drop, duplicate, reorder, corrupt, mark, delay, .. } = &self.rates;
        let rates = [drop, duplicate, reorder, corrupt, mark, &delay.chance];
        self.rules.is_empty() && rates.iter().all(|rate| **rate == Chance::NEVER)
    }
}

/// Probabilities and parameters of random faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rates {
    /// Chance that a datagram is lost.
    pub drop: Chance,
    /// Chance that a datagram is delivered twice.
    pub duplicate: Chance,
    /// Chance that later datagrams overtake a datagram.
    pub reorder: Chance,
    /// Chance that one to three bits are flipped.
    pub corrupt: Chance,
    /// Chance that a datagram is marked "congestion experienced".
    pub mark: Chance,
    /// Delay, and its chance.
    pub delay: Delay,
    /// Number of later datagrams that overtake a reordered one, 1 to [`Self::MAX_BEHIND`].
    pub behind: u16,
    /// Longest time that a reordered datagram waits for the others.
    pub hold: DelayTime,
    /// Whether datagrams that are not ECN capable are marked too, which no switch does.
    pub force_mark: bool,
}

impl Rates {
    /// Largest number of datagrams that may overtake one.
    pub const MAX_BEHIND: u16 = 1000;
}

impl Default for Rates {
    fn default() -> Self {
        Self {
            drop: Chance::NEVER,
            duplicate: Chance::NEVER,
            reorder: Chance::NEVER,
            corrupt: Chance::NEVER,
            mark: Chance::NEVER,
            delay: Delay { time: DelayTime::exactly(0), chance: Chance::NEVER },
            behind: 3,
            hold: DelayTime::exactly(1_000_000),
            force_mark: false,
        }
    }
}

/// A probability in parts per billion. The printed value is exact.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Chance(u32);

impl Chance {
    /// 0 %.
    pub const NEVER: Self = Self(0);
    /// 100 %.
    pub const ALWAYS: Self = Self(1_000_000_000);

    /// Creates a chance. Returns `None` if `parts` exceeds one billion.
    #[must_use]
    pub const fn from_parts_per_billion(parts: u32) -> Option<Self> {
        if parts > Self::ALWAYS.0 { None } else { Some(Self(parts)) }
    }

    /// Returns the chance in parts per billion, 0 to 1,000,000,000.
    #[must_use]
    pub const fn parts_per_billion(self) -> u32 {
        self.0
    }

    /// Returns whether the event happens for `draw`, a uniformly distributed 32-bit number.
    pub(super) const fn hits(self, draw: u32) -> bool {
        (draw as u64 * Self::ALWAYS.0 as u64) >> 32 < self.0 as u64
    }
}

/// A range of delays, inclusive at both ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DelayTime {
    /// Shortest delay in nanoseconds.
    pub from_ns: u64,
    /// Longest delay in nanoseconds, not less than `from_ns`.
    pub to_ns: u64,
}

impl DelayTime {
    /// Returns the range that contains only `nanos`.
    #[must_use]
    pub const fn exactly(nanos: u64) -> Self {
        Self { from_ns: nanos, to_ns: nanos }
    }
}

/// A delay and its chance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delay {
    /// Duration of the delay.
    pub time: DelayTime,
    /// Chance of the delay.
    pub chance: Chance,
}

/// Conditions, all of which a datagram must meet, and the action for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Destination queue pair number.
    pub qp: Option<Numbers>,
    /// Index of the destination queue pair in the order of first appearance, from 1. QP 1 is not counted
    /// because connection management uses it.
    pub relative_qp: Option<Numbers>,
    /// Packet sequence number.
    pub psn: Option<Numbers>,
    /// Packet sequence number relative to the first one seen on its queue pair.
    pub relative_psn: Option<Numbers>,
    /// Matching operations.
    pub opcode: Option<OpcodePattern>,
    /// Number of times that this sequence number was seen on its queue pair, from 1; 2 is the first
    /// retransmission.
    pub pass: Option<Numbers>,
    /// Length of the datagram from BTH to ICRC, in bytes.
    pub len: Option<Numbers>,
    /// Time at which the rule becomes valid, in nanoseconds since the first datagram of all.
    pub after_ns: Option<u64>,
    /// Time at which the rule ceases to be valid, in nanoseconds since the first datagram of all.
    pub until_ns: Option<u64>,
    /// Share of the matching datagrams to which the rule applies.
    pub chance: Option<Chance>,
    /// Largest number of times that the rule applies.
    pub times: Option<u32>,
    /// Action of the rule.
    pub action: Action,
}

impl Rule {
    /// Creates a rule that matches every datagram.
    #[must_use]
    pub const fn new(action: Action) -> Self {
        Self {
            qp: None,
            relative_qp: None,
            psn: None,
            relative_psn: None,
            opcode: None,
            pass: None,
            len: None,
            after_ns: None,
            until_ns: None,
            chance: None,
            times: None,
            action,
        }
    }
}

/// The action of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Delivers the datagram; later rules and the rates do not apply.
    Deliver,
    /// Loses the datagram.
    Drop,
    /// Delivers the datagram twice.
    Duplicate,
    /// Lets this number of later datagrams overtake the datagram, or the number in the rates if `None`.
    Reorder(Option<u16>),
    /// Flips this bit, counted from the first bit of the BTH, or one to three random bits if `None`.
    Corrupt(Option<u32>),
    /// Marks the datagram "congestion experienced".
    Mark {
        /// Whether to mark a datagram that is not ECN capable.
        force: bool,
    },
    /// Sets the ECN field to zero, "not ECN capable".
    ClearEcn,
    /// Sets the DSCP of the traffic class to zero.
    ClearDscp,
    /// Delays the datagram.
    Delay(DelayTime),
}

/// A number or a range of numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Numbers {
    first: u32,
    last: u32,
}

impl Numbers {
    /// Creates a range. Returns `None` if `last` is smaller than `first`.
    #[must_use]
    pub const fn new(first: u32, last: u32) -> Option<Self> {
        if last < first { None } else { Some(Self { first, last }) }
    }

    /// Creates a range of one number.
    #[must_use]
    pub const fn one(number: u32) -> Self {
        Self { first: number, last: number }
    }

    /// Returns whether the range contains `number`.
    #[must_use]
    pub const fn contains(self, number: u32) -> bool {
        self.first <= number && number <= self.last
    }

    pub(super) const fn last(self) -> u32 {
        self.last
    }
}

/// A set of opcodes with the text that describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpcodePattern {
    text: String,
    /// Bit `n` of word `w` stands for opcode `64 * w + n`.
    members: [u64; 4],
}

impl OpcodePattern {
    /// Creates a pattern from a name (`RC_SEND_ONLY`), a prefix (`RC_RDMA_READ_RESPONSE_*`) or a number
    /// (`0x04`). Returns `None` if no opcode matches.
    #[must_use]
    pub fn new(text: &str) -> Option<Self> {
        let text = text.to_ascii_uppercase();
        if let Some(number) = number(&text.to_ascii_lowercase()) {
            let opcode = Opcode(u8::try_from(number).ok()?);
            return Some(Self::with_members(format!("0x{:02x}", opcode.0), |other| other == opcode));
        }
        let pattern = match text.strip_suffix('*') {
            Some(start) => Self::with_members(text.clone(), |opcode| {
                opcode.name().is_some_and(|name| name.starts_with(start))
            }),
            None => Self::with_members(text.clone(), |opcode| opcode.name() == Some(&text)),
        };
        (pattern.members != [0; 4]).then_some(pattern)
    }

    fn with_members(text: String, is_member: impl Fn(Opcode) -> bool) -> Self {
        let mut members = [0; 4];
        for (word, base) in members.iter_mut().zip([0_u8, 64, 128, 192]) {
            for bit in 0..64 {
                *word |= u64::from(is_member(Opcode(base + bit))) << bit;
            }
        }
        Self { text, members }
    }

    /// Returns whether the set contains `opcode`.
    #[must_use]
    pub fn contains(&self, opcode: Opcode) -> bool {
        let word = self.members.get(usize::from(opcode.0 >> 6));
        word.is_some_and(|word| word >> (opcode.0 & 63) & 1 == 1)
    }
}

impl fmt::Display for FaultPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rates = self.rates.to_string();
        let mut items = Some(rates)
            .into_iter()
            .filter(|text| !text.is_empty())
            .chain(self.rules.iter().map(ToString::to_string));
        let Some(first) = items.next() else { return f.write_str("none") };
        f.write_str(&first)?;
        items.try_for_each(|item| write!(f, ";{item}"))
    }
}

impl fmt::Display for Rates {
    /// Writes only the values that differ from the default.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let default = Self::default();
        let mut list = List { f, separator: "" };
        for (name, rate) in [
            ("drop", self.drop),
            ("dup", self.duplicate),
            ("reorder", self.reorder),
            ("corrupt", self.corrupt),
            ("ecn", self.mark),
        ] {
            list.pair(name, (rate != Chance::NEVER).then_some(rate))?;
        }
        list.pair("delay", (self.delay != default.delay).then_some(self.delay))?;
        list.pair("reorder-behind", (self.behind != default.behind).then_some(self.behind))?;
        list.pair("reorder-hold", (self.hold != default.hold).then_some(self.hold))?;
        list.pair("force-ecn", self.force_mark.then_some("on"))
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut list = List { f, separator: "rule:" };
        list.pair("qp", self.qp.map(Hexadecimal))?;
        list.pair("rqp", self.relative_qp)?;
        list.pair("psn", self.psn)?;
        list.pair("rpsn", self.relative_psn)?;
        list.pair("opcode", self.opcode.as_ref().map(|pattern| &pattern.text))?;
        list.pair("pass", self.pass)?;
        list.pair("len", self.len)?;
        list.pair("after", self.after_ns.map(DurationText))?;
        list.pair("until", self.until_ns.map(DurationText))?;
        list.pair("chance", self.chance)?;
        list.pair("times", self.times)?;
        list.pair("action", Some(self.action))
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Deliver => f.write_str("deliver"),
            Self::Drop => f.write_str("drop"),
            Self::Duplicate => f.write_str("dup"),
            Self::Reorder(None) => f.write_str("reorder"),
            Self::Reorder(Some(behind)) => write!(f, "reorder:{behind}"),
            Self::Corrupt(None) => f.write_str("corrupt"),
            Self::Corrupt(Some(bit)) => write!(f, "corrupt:{bit}"),
            Self::Mark { force: false } => f.write_str("ecn"),
            Self::Mark { force: true } => f.write_str("force-ecn"),
            Self::ClearEcn => f.write_str("clear-ecn"),
            Self::ClearDscp => f.write_str("clear-dscp"),
            Self::Delay(time) => write!(f, "delay:{time}"),
        }
    }
}

impl fmt::Display for Chance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Percent(self.0).fmt(f)
    }
}

impl fmt::Display for DelayTime {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        DurationText(self.from_ns).fmt(f)?;
        if self.to_ns == self.from_ns { Ok(()) } else { write!(f, "-{}", DurationText(self.to_ns)) }
    }
}

impl fmt::Display for Delay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.time.fmt(f)?;
        if self.chance == Chance::ALWAYS { Ok(()) } else { write!(f, "@{}", self.chance) }
    }
}

impl fmt::Display for Numbers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.first)?;
        if self.last == self.first { Ok(()) } else { write!(f, "-{}", self.last) }
    }
}

/// Queue pair numbers in hexadecimal, as other tools for this protocol write them.
struct Hexadecimal(Numbers);

impl fmt::Display for Hexadecimal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Numbers { first, last } = self.0;
        write!(f, "{first:#x}")?;
        if last == first { Ok(()) } else { write!(f, "-{last:#x}") }
    }
}

/// Writes pairs separated by commas.
struct List<'a, 'b> {
    f: &'a mut fmt::Formatter<'b>,
    separator: &'static str,
}

impl List<'_, '_> {
    fn pair(&mut self, name: &str, value: Option<impl fmt::Display>) -> fmt::Result {
        let Some(value) = value else { return Ok(()) };
        write!(self.f, "{}{name}={value}", self.separator)?;
        self.separator = ",";
        Ok(())
    }
}
