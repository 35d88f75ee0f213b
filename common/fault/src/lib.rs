//! Fault injection: loses, duplicates, delays, reorders, damages or marks datagrams.
//!
//! A [`FaultPlan`] describes the faults. They happen at random, or to the datagrams that a rule selects. A
//! [`FaultInjector`] decides about the datagrams of one direction, one after the other. It has no clock and
//! performs no input or output, so a simulated link and a wrapper around a real device use the same injector.
//! Equal plans, seeds and datagrams always give equal decisions.

mod closest;
mod held;
mod parse;
mod plan;
pub mod random;
mod text;
mod track;
pub mod verbs;

#[cfg(test)]
mod tests;

use rand_core::Rng;
use rand_pcg::Pcg32;
use roce_packet::{Bth, Ecn, Path};
use roce_transport::Instant;

pub use closest::closest;
pub use held::{Held, MAX_HELD};
pub use parse::{FaultPlanError, FaultPlanErrorKind};
pub use plan::{Action, Chance, Delay, DelayTime, FaultPlan, Numbers, OpcodePattern, Rates, Rule};

use track::{Flows, Passes, Relative};

pub use track::{Sighting, Sightings};

/// Decides about each datagram of one direction.
///
/// ```
/// use roce_packet::Ecn;
/// use roce_fault::{FaultInjector, FaultPlan, Verdict};
/// use roce_transport::Instant;
///
/// let plan: FaultPlan = "rule:psn=5,pass=1,action=drop".parse()?;
/// let mut injector = FaultInjector::new(plan, 42);
/// let datagram = [0x04, 0, 0xff, 0xff, 0, 0, 0, 0x11, 0, 0, 0, 5, 1, 2, 3, 4];
/// assert_eq!(injector.inject(Instant::ZERO, Ecn::Capable0, &datagram), Verdict::Drop);
/// // Its retransmission passes.
/// assert_eq!(injector.inject(Instant::ZERO, Ecn::Capable0, &datagram), Verdict::UNTOUCHED);
/// assert_eq!(injector.counters().dropped, 1);
/// # Ok::<(), roce_fault::FaultPlanError>(())
/// ```
#[derive(Debug)]
pub struct FaultInjector {
    plan: FaultPlan,
    /// Number of times that each rule of the plan has applied.
    applied: Vec<u32>,
    random: Generators,
    flows: Option<Flows>,
    passes: Option<Passes>,
    /// Time of the first datagram.
    origin: Option<Instant>,
    /// Index of the rule that decided about the last datagram.
    decided_by: Option<usize>,
    counters: FaultCounters,
}

/// The fate of a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The datagram is lost.
    Drop,
    /// The datagram arrives, changed as described.
    Deliver(Delivery),
}

impl Verdict {
    /// The datagram arrives as it was sent.
    pub const UNTOUCHED: Self = Self::Deliver(Delivery::UNTOUCHED);
}

/// The way in which a datagram arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// Bits to flip, in both copies if the datagram is duplicated.
    pub flips: BitFlips,
    /// Whether the datagram is marked "congestion experienced".
    pub mark: bool,
    /// Bits of the traffic class to set to zero, as routers do that do not trust the sender.
    pub clears: u8,
    /// Whether the datagram arrives twice.
    pub duplicate: bool,
    /// Delay in nanoseconds.
    pub delay_ns: u64,
    /// Later datagrams to let overtake this one, if any.
    pub reorder: Option<Reorder>,
}

impl Delivery {
    /// A delivery at once and undamaged.
    pub const UNTOUCHED: Self =
        Self { flips: BitFlips::NONE, mark: false, clears: 0, duplicate: false, delay_ns: 0, reorder: None };

    /// Returns the path as the receiver sees it, with the remaining bits of the traffic class and the mark.
    #[must_use]
    pub const fn path(&self, mut path: Path) -> Path {
        path.traffic_class &= !self.clears;
        if self.mark { path.with_ecn(Ecn::CongestionExperienced) } else { path }
    }
}

/// Number of datagrams that overtake a datagram, and the longest wait for them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reorder {
    /// Number of later datagrams of the same direction that go first, at least 1. Lost datagrams do not
    /// count.
    pub behind: u16,
    /// Time in nanoseconds after which the datagram goes even if too few others came.
    pub hold_ns: u64,
}

/// A set of up to three bits to flip.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BitFlips {
    bits: [u32; 3],
    count: u8,
}

impl BitFlips {
    /// No damage.
    pub const NONE: Self = Self { bits: [0; 3], count: 0 };

    /// Returns the set of one bit, counted from the most significant bit of the first byte.
    #[must_use]
    pub const fn one(bit: u32) -> Self {
        Self { bits: [bit, 0, 0], count: 1 }
    }

    /// Returns whether the set is empty.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Returns the bits, counted from the most significant bit of the first byte. No two are equal.
    pub fn bits(&self) -> impl Iterator<Item = u32> + '_ {
        self.bits.iter().take(self.count.into()).copied()
    }

    /// Flips the bits in `datagram`. Ignores bits beyond its end.
    pub fn apply(&self, datagram: &mut [u8]) {
        for bit in self.bits() {
            if let Some(byte) = datagram.get_mut(bit as usize / 8) {
                *byte ^= 0x80 >> (bit % 8);
            }
        }
    }

    fn insert(&mut self, bit: u32) {
        if self.bits().any(|known| known == bit) {
            return;
        }
        if let Some(place) = self.bits.get_mut(usize::from(self.count)) {
            *place = bit;
            self.count += 1;
        }
    }
}

/// Defines the counters of an injector. Each row consists of a meaning and a name.
macro_rules! counters {
    ($($(#[doc = $doc:literal])+ $name:ident,)+) => {
        /// Number of datagrams for each kind of fault. A datagram that is both delayed and marked counts for
        /// both.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct FaultCounters {
            $($(#[doc = $doc])+ pub $name: u64,)+
        }

        impl FaultCounters {
            /// Names of the counters in the order of [`Self::visit`], without a prefix.
            pub const NAMES: &'static [&'static str] = &[$(stringify!($name)),+];

            /// Calls `visit` with the name, prefixed with `fault_`, and the value of each counter.
            pub fn visit(&self, visit: &mut dyn FnMut(&'static str, u64)) {
                $(visit(concat!("fault_", stringify!($name)), self.$name);)+
            }

            /// Calls `visit` for the transmit direction of a device: each name is prefixed with `fault_tx_`.
            pub fn visit_transmit(&self, visit: &mut dyn FnMut(&'static str, u64)) {
                $(visit(concat!("fault_tx_", stringify!($name)), self.$name);)+
            }

            /// Calls `visit` for the receive direction of a device: each name is prefixed with `fault_rx_`.
            pub fn visit_receive(&self, visit: &mut dyn FnMut(&'static str, u64)) {
                $(visit(concat!("fault_rx_", stringify!($name)), self.$name);)+
            }
        }
    };
}

counters! {
    /// All datagrams about which the injector decided.
    seen,
    /// Datagrams to which a rule applied, `action=deliver` included.
    by_rule,
    /// Datagrams dropped.
    dropped,
    /// Datagrams delivered twice.
    duplicated,
    /// Datagrams overtaken by later ones.
    reordered,
    /// Damaged datagrams.
    corrupted,
    /// Delayed datagrams.
    delayed,
    /// Datagrams marked "congestion experienced".
    marked,
    /// Datagrams with bits of the traffic class set to zero.
    cleared,
    /// Datagrams chosen to be marked that are not ECN capable or already carry the mark.
    not_markable,
    /// Datagrams of queue pairs beyond the 65,536 that relative rules can track.
    untracked,
}

impl FaultInjector {
    /// Creates an injector for one direction. The injectors of two directions need different seeds; otherwise
    /// the same random faults happen in both.
    #[must_use]
    pub fn new(plan: FaultPlan, seed: u64) -> Self {
        let relative = |rule: &Rule| rule.relative_qp.is_some() || rule.relative_psn.is_some();
        Self {
            applied: vec![0; plan.rules.len()],
            random: Generators::new(seed),
            flows: plan.rules.iter().any(relative).then(Flows::default),
            passes: plan.rules.iter().any(|rule| rule.pass.is_some()).then(Passes::new),
            origin: None,
            decided_by: None,
            counters: FaultCounters::default(),
            plan,
        }
    }

    /// Decides about one datagram, given its bytes from BTH to ICRC and the ECN field of its path. A datagram
    /// that is too short for a BTH matches no condition of a rule, but random faults apply to it.
    pub fn inject(&mut self, now: Instant, ecn: Ecn, datagram: &[u8]) -> Verdict {
        self.inject_headers(now, ecn, datagram, datagram.len())
    }

    /// Decides about a datagram of `len` bytes of which only the headers are available, as if all bytes were
    /// present.
    pub fn inject_headers(&mut self, now: Instant, ecn: Ecn, headers: &[u8], len: usize) -> Verdict {
        self.counters.seen += 1;
        let origin = *self.origin.get_or_insert(now);
        self.decided_by = None;
        let verdict = match self.rule_for(now.as_nanos().saturating_sub(origin.as_nanos()), headers, len) {
            Some(action) => {
                self.counters.by_rule += 1;
                self.act(action, ecn, len)
            }
            None => self.draw(ecn, len),
        };
        self.count(&verdict);
        verdict
    }

    /// Returns the counters of all decisions so far.
    #[must_use]
    pub const fn counters(&self) -> &FaultCounters {
        &self.counters
    }

    /// Returns the index in the plan of the rule that decided about the last datagram, or `None` if no rule
    /// did.
    #[must_use]
    pub const fn decided_by(&self) -> Option<usize> {
        self.decided_by
    }

    /// Returns the plan.
    #[must_use]
    pub const fn plan(&self) -> &FaultPlan {
        &self.plan
    }

    /// Returns the action of the first rule that applies.
    fn rule_for(&mut self, time_ns: u64, headers: &[u8], len: usize) -> Option<Action> {
        if self.plan.rules.is_empty() {
            return None;
        }
        let facts = Bth::parse(headers).ok().map(|(bth, _)| Facts {
            relative: self.flows.as_mut().map(|flows| flows.observe(&bth)).unwrap_or_default(),
            pass: self.passes.as_mut().map(|passes| passes.observe(&bth)),
            bth,
            len: u32::try_from(len).unwrap_or(u32::MAX),
        });
        if facts.is_some_and(|facts| self.flows.is_some() && facts.relative.psn.is_none()) {
            self.counters.untracked += 1;
        }
        for (index, (rule, applied)) in self.plan.rules.iter().zip(&mut self.applied).enumerate() {
            let exhausted = rule.times.is_some_and(|times| *applied >= times);
            if exhausted || !rule.is_valid_at(time_ns) || !rule.is_met_by(facts.as_ref()) {
                continue;
            }
            if rule.chance.is_some_and(|chance| !chance.hits(self.random.rule.next_u32())) {
                continue;
            }
            *applied = applied.saturating_add(1);
            self.decided_by = Some(index);
            return Some(rule.action);
        }
        None
    }

    fn act(&mut self, action: Action, ecn: Ecn, len: usize) -> Verdict {
        let mut delivery = Delivery::UNTOUCHED;
        match action {
            Action::Deliver => {}
            Action::Drop => return Verdict::Drop,
            Action::Duplicate => delivery.duplicate = true,
            Action::Reorder(behind) => {
                delivery.reorder = Some(self.reorder(behind.unwrap_or(self.plan.rates.behind)));
            }
            Action::Corrupt(Some(bit)) => delivery.flips = BitFlips::one(bit),
            Action::Corrupt(None) => delivery.flips = self.random.flips(len),
            Action::Mark { force } => delivery.mark = self.mark(ecn, force),
            Action::ClearEcn => delivery.clears = 0b11,
            Action::ClearDscp => delivery.clears = !0b11,
            Action::Delay(time) => delivery.delay_ns = self.random.time(time),
        }
        Verdict::Deliver(delivery)
    }

    /// Decides at random. Each kind of fault has its own generator, so changing one rate does not change
    /// which datagrams the other faults affect.
    fn draw(&mut self, ecn: Ecn, len: usize) -> Verdict {
        let rates = self.plan.rates;
        let random = &mut self.random;
        let dropped = strikes(rates.drop, &mut random.drop);
        let duplicate = strikes(rates.duplicate, &mut random.duplicate);
        let reordered = strikes(rates.reorder, &mut random.reorder);
        let corrupted = strikes(rates.corrupt, &mut random.corrupt);
        let marked = strikes(rates.mark, &mut random.mark);
        let delayed = strikes(rates.delay.chance, &mut random.delay);
        if dropped {
            return Verdict::Drop;
        }
        let flips = if corrupted { random.flips(len) } else { BitFlips::NONE };
        let delay_ns = if delayed { random.time(rates.delay.time) } else { 0 };
        Verdict::Deliver(Delivery {
            flips,
            mark: marked && self.mark(ecn, rates.force_mark),
            clears: 0,
            duplicate,
            delay_ns,
            reorder: reordered.then(|| self.reorder(rates.behind)),
        })
    }

    fn reorder(&mut self, behind: u16) -> Reorder {
        Reorder { behind, hold_ns: self.random.time(self.plan.rates.hold) }
    }

    /// Returns whether to mark the datagram: a switch marks ECN-capable datagrams that do not carry the mark
    /// yet.
    fn mark(&mut self, ecn: Ecn, force: bool) -> bool {
        let markable = match ecn {
            Ecn::Capable0 | Ecn::Capable1 => true,
            Ecn::NotCapable => force,
            Ecn::CongestionExperienced => false,
        };
        self.counters.not_markable += u64::from(!markable);
        markable
    }

    fn count(&mut self, verdict: &Verdict) {
        let counters = &mut self.counters;
        match verdict {
            Verdict::Drop => counters.dropped += 1,
            Verdict::Deliver(delivery) => {
                counters.duplicated += u64::from(delivery.duplicate);
                counters.reordered += u64::from(delivery.reorder.is_some());
                counters.corrupted += u64::from(!delivery.flips.is_empty());
                counters.delayed += u64::from(delivery.delay_ns != 0);
                counters.marked += u64::from(delivery.mark);
                counters.cleared += u64::from(delivery.clears != 0);
            }
        }
    }
}

/// The properties of a datagram that rules examine.
#[derive(Clone, Copy)]
struct Facts {
    bth: Bth,
    relative: Relative,
    /// Known only if a rule asks for it.
    pass: Option<u32>,
    len: u32,
}

impl Rule {
    fn is_valid_at(&self, time_ns: u64) -> bool {
        self.after_ns.is_none_or(|after| time_ns >= after)
            && self.until_ns.is_none_or(|until| time_ns < until)
    }

    fn is_met_by(&self, facts: Option<&Facts>) -> bool {
        let meets = |wanted: Option<Numbers>, number: Option<u32>| {
            wanted.is_none_or(|wanted| number.is_some_and(|number| wanted.contains(number)))
        };
        let opcode = facts.map(|facts| facts.bth.opcode);
        let opcode_fits = |pattern: &OpcodePattern| opcode.is_some_and(|opcode| pattern.contains(opcode));
        meets(self.qp, facts.map(|facts| facts.bth.dest_qp.get()))
            && meets(self.psn, facts.map(|facts| facts.bth.psn.get()))
            && meets(self.relative_qp, facts.and_then(|facts| facts.relative.qp))
            && meets(self.relative_psn, facts.and_then(|facts| facts.relative.psn))
            && meets(self.len, facts.map(|facts| facts.len))
            && meets(self.pass, facts.and_then(|facts| facts.pass))
            && self.opcode.as_ref().is_none_or(opcode_fits)
    }
}

/// One generator for each kind of decision.
#[derive(Debug)]
struct Generators {
    drop: Pcg32,
    duplicate: Pcg32,
    reorder: Pcg32,
    corrupt: Pcg32,
    mark: Pcg32,
    delay: Pcg32,
    rule: Pcg32,
    /// Draws lengths of time and positions of bits.
    amount: Pcg32,
}

impl Generators {
    fn new(seed: u64) -> Self {
        let stream = |number| random::generator(seed, number);
        Self {
            drop: stream(1),
            duplicate: stream(2),
            reorder: stream(3),
            corrupt: stream(4),
            mark: stream(5),
            delay: stream(6),
            rule: stream(7),
            amount: stream(8),
        }
    }

    /// Draws one to three different bits of a datagram of `len` bytes.
    fn flips(&mut self, len: usize) -> BitFlips {
        let bits = u32::try_from(len).unwrap_or(u32::MAX).saturating_mul(8);
        let mut flips = BitFlips::NONE;
        if bits == 0 {
            return flips;
        }
        for _ in 0..=below(3, &mut self.amount) {
            flips.insert(below(bits, &mut self.amount));
        }
        flips
    }

    fn time(&mut self, time: DelayTime) -> u64 {
        if time.from_ns == time.to_ns {
            return time.from_ns;
        }
        let choices = u128::from(time.to_ns.saturating_sub(time.from_ns)) + 1;
        let offset = (u128::from(self.amount.next_u64()) * choices) >> 64;
        time.from_ns.saturating_add(u64::try_from(offset).unwrap_or(u64::MAX))
    }
}

/// Returns whether a fault happens. Draws no number for [`Chance::NEVER`], so an unused fault costs nothing.
fn strikes(chance: Chance, random: &mut Pcg32) -> bool {
    chance != Chance::NEVER && chance.hits(random.next_u32())
}

/// Draws a number from 0 to `limit` - 1. The bias, below `limit` / 2^32, is negligible here.
fn below(limit: u32, random: &mut Pcg32) -> u32 {
    ((u64::from(random.next_u32()) * u64::from(limit)) >> 32) as u32
}
