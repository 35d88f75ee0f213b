//! The changes between two files with counters.

use super::event::{Event, Kind};
use super::parse::{Group, Snapshot};
use super::table::{Counter, Driver, find, rank};

/// How a counter changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Outcome {
    /// The value is the same.
    Same,
    /// The value grew by this number.
    Grew(u64),
    /// The value passed the largest number of the NIC, and grew by `by`.
    Wrapped {
        /// The growth.
        by: u64,
        /// Number of bits of the counter.
        bits: u32,
    },
    /// The counter began at zero again, for example because the driver was loaded, and grew by `since`
    /// afterwards. The growth before is unknown.
    Reset {
        /// The growth since.
        since: u64,
    },
    /// A level fell by this number.
    Fell(u64),
    /// The counter is only in the second file.
    Appeared,
    /// The counter is only in the first file.
    Gone,
}

impl Outcome {
    /// Returns the growth, as far as it is known.
    #[must_use]
    pub const fn growth(self) -> u64 {
        match self {
            Self::Grew(by) | Self::Wrapped { by, .. } | Self::Reset { since: by } => by,
            Self::Same | Self::Fell(_) | Self::Appeared | Self::Gone => 0,
        }
    }

    /// Returns the name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Same => "same",
            Self::Grew(_) => "grew",
            Self::Wrapped { .. } => "wrapped",
            Self::Reset { .. } => "reset",
            Self::Fell(_) => "fell",
            Self::Appeared => "appeared",
            Self::Gone => "gone",
        }
    }
}

/// A counter in both files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// Name of the counter.
    pub name: String,
    /// Value in the first file.
    pub before: Option<u64>,
    /// Value in the second file.
    pub after: Option<u64>,
    /// How it changed.
    pub outcome: Outcome,
    /// What it counts, if the name is known.
    pub event: Option<Event>,
}

impl Change {
    /// Returns whether the counter grew and counts problems.
    #[must_use]
    pub fn is_problem(&self) -> bool {
        self.kind() == Some(Kind::Problem) && self.outcome.growth() > 0
    }

    /// Returns the significance of the counter, if the name is known.
    #[must_use]
    pub fn kind(&self) -> Option<Kind> {
        self.event.map(Event::kind)
    }
}

/// The changes of a device or port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Comparison {
    /// Device and port.
    pub name: String,
    /// The driver, as far as the names tell.
    pub driver: Option<Driver>,
    /// All counters: problems, congestion, traffic, levels, then unknown names, each in the order of the
    /// file.
    pub changes: Vec<Change>,
    /// Whether the counters began at zero again between the two files.
    pub is_reset: bool,
}

impl Comparison {
    /// Returns the counter of an event with its growth. `None` if the driver has none. If the driver counts
    /// the event in several counters, the one that is first in the table decides.
    #[must_use]
    pub fn growth(&self, event: Event) -> Option<(&str, u64)> {
        let changes = self.changes.iter().filter(|change| change.event == Some(event));
        let present = changes.filter(|change| !matches!(change.outcome, Outcome::Appeared | Outcome::Gone));
        let first = present.min_by_key(|change| rank(&change.name))?;
        Some((first.name.as_str(), first.outcome.growth()))
    }
}

/// Compares two snapshots, device by device.
#[must_use]
pub fn compare(before: &Snapshot, after: &Snapshot) -> Vec<Comparison> {
    let is_alone = after.groups.len() == 1;
    let new =
        after.groups.iter().map(|group| compare_group(before.counterpart(group, is_alone), Some(group)));
    let gone = before.groups.iter().filter(|group| {
        let is_alone = before.groups.len() == 1;
        after.counterpart(group, is_alone).is_none()
    });
    new.chain(gone.map(|group| compare_group(Some(group), None))).collect()
}

fn compare_group(before: Option<&Group>, after: Option<&Group>) -> Comparison {
    let named = after.or(before);
    let driver = after.and_then(|group| group.driver).or(before.and_then(|group| group.driver));
    let value = |group: Option<&Group>, name: &str| group.and_then(|group| group.get(name));
    let is_reset = is_reset(driver, before, after);
    let mut changes: Vec<Change> = Vec::new();
    for (name, _) in [after, before].into_iter().flatten().flat_map(|group| &group.counters) {
        if changes.iter().any(|change| change.name == *name) {
            continue;
        }
        let counter = find(driver, name);
        let (before, after) = (value(before, name), value(after, name));
        let outcome = outcome(counter, before, after, is_reset);
        let event = counter.map(|counter| counter.event);
        changes.push(Change { name: name.clone(), before, after, outcome, event });
    }
    // Unknown names are last. The order of the file remains within one significance.
    changes.sort_by_key(|change| change.kind().map_or(u8::MAX, |kind| kind as u8));
    Comparison { name: named.map_or_else(String::new, Group::name), driver, changes, is_reset }
}

/// Returns whether most counters that were not zero began at zero again.
fn is_reset(driver: Option<Driver>, before: Option<&Group>, after: Option<&Group>) -> bool {
    let (Some(before), Some(after)) = (before, after) else { return false };
    let (mut fallen, mut others) = (0, 0);
    for (name, old) in before.counters.iter().filter(|(_, old)| *old > 0) {
        let counter = find(driver, name);
        let is_level = counter.is_some_and(|counter| counter.event.kind() == Kind::Level);
        let Some(new) = after.get(name).filter(|_| !is_level) else { continue };
        if new < *old && wrap(counter, *old, new).is_none() {
            fallen += 1;
        } else {
            others += 1;
        }
    }
    fallen > others
}

fn outcome(counter: Option<Counter>, before: Option<u64>, after: Option<u64>, is_reset: bool) -> Outcome {
    let (before, after) = match (before, after) {
        (Some(before), Some(after)) => (before, after),
        (None, _) => return Outcome::Appeared,
        (_, None) => return Outcome::Gone,
    };
    let is_level = counter.is_some_and(|counter| counter.event.kind() == Kind::Level);
    if is_level {
        return match after.checked_sub(before) {
            Some(0) => Outcome::Same,
            Some(by) => Outcome::Grew(by),
            None => Outcome::Fell(before - after),
        };
    }
    if is_reset {
        return Outcome::Reset { since: after };
    }
    match after.checked_sub(before) {
        Some(0) => Outcome::Same,
        Some(by) => Outcome::Grew(by),
        None => match wrap(counter, before, after) {
            Some((by, bits)) => Outcome::Wrapped { by, bits },
            None => Outcome::Reset { since: after },
        },
    }
}

/// Returns growth and number of bits if a value passed the largest one. A value that was far from the largest
/// one did not pass it, so that the counter was reset.
fn wrap(counter: Option<Counter>, before: u64, after: u64) -> Option<(u64, u32)> {
    let widths = match counter.map(|counter| counter.bits) {
        Some(32) => &[32][..],
        // A driver may extend a counter of 32 bits, or not.
        _ => &[32, 64],
    };
    widths.iter().find_map(|bits| {
        let largest = u64::MAX >> (64 - bits);
        let quarter = largest / 4;
        let is_wrap = before <= largest && before > largest - quarter && after < quarter;
        is_wrap.then(|| (after.wrapping_sub(before) & largest, *bits))
    })
}
