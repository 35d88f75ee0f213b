//! The waits of paused ports for each other, and the deadlocks of pauses.
//!
//! A port paused by its neighbour waits for the neighbour's ingress port, which resumes it when enough of its
//! frames have left. If those frames are in the queue of another paused port, the first port waits for the
//! second. A cycle of such waits is a deadlock: none of the ports in an existing cycle sends.
//!
//! Each switch tracks its own state in [`SwitchWaits`]: the ingress ports that it pauses, its paused egress
//! ports, and whether frames of the former are in the queues of the latter. Each switch logs the changes, and
//! [`WaitGraph`] merges the logs of all switches in the order of time.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::port::PauseStep;
use super::settings::PRIORITIES;
use super::time::Time;

/// The largest number of deadlocks that a run describes.
pub(super) const MOST_DEADLOCKS: usize = 1_000;

/// A cycle of paused ports, in which each port waits for the next one and the last port for the first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Deadlock {
    /// The time at which the last wait of the cycle began.
    pub begin: Time,
    /// The paused priority.
    pub priority: u8,
    /// The ports in the order of their waits, as indices into [`Results::ports`](super::Results::ports). The
    /// port with the smallest index comes first.
    pub ports: Vec<u32>,
    /// The time and cause of the end of a wait that left no cycle, or `None` if the deadlock lasted until the
    /// end of the run.
    pub end: Option<(Time, WaitEnd)>,
}

/// The cause that ended a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitEnd {
    /// A port was resumed.
    Resume,
    /// The duration of a pause ended.
    Expiry,
    /// The watchdog emptied a queue.
    Watchdog,
}

impl WaitEnd {
    /// Returns the name of the cause in results.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Resume => "resume",
            Self::Expiry => "expiry",
            Self::Watchdog => "watchdog",
        }
    }
}

impl From<PauseStep> for WaitEnd {
    fn from(step: PauseStep) -> Self {
        match step {
            PauseStep::Expired => Self::Expiry,
            PauseStep::Watchdog => Self::Watchdog,
            _ => Self::Resume,
        }
    }
}

/// A wait inside a switch: frames that arrived at a paused ingress port are in the queue of a paused egress
/// port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Wait {
    pub(super) ingress: u32,
    pub(super) egress: u32,
    pub(super) priority: u8,
}

/// The begin of a wait, or its end with the cause.
#[derive(Clone, Copy, Debug)]
pub(super) struct WaitChange {
    pub(super) time: Time,
    pub(super) wait: Wait,
    pub(super) end: Option<WaitEnd>,
}

/// The waits inside one switch.
#[derive(Debug, Default)]
pub(super) struct SwitchWaits {
    /// Egress ports and priorities that neighbours pause.
    pub(super) paused: Vec<(u32, u8)>,
    /// Ingress ports and priorities that the switch pauses.
    pub(super) pausing: Vec<(u32, u8)>,
    waits: Vec<Wait>,
    /// Changes that have not been passed to the graph.
    log: Vec<WaitChange>,
}

impl SwitchWaits {
    pub(super) fn begin(&mut self, time: Time, wait: Wait) {
        if !self.waits.contains(&wait) {
            self.waits.push(wait);
            self.log.push(WaitChange { time, wait, end: None });
        }
    }

    /// Ends the waits for which `is_over` returns true.
    pub(super) fn end(&mut self, time: Time, end: WaitEnd, is_over: impl Fn(&Wait) -> bool) {
        let log = &mut self.log;
        self.waits.retain(|wait| {
            let over = is_over(wait);
            if over {
                log.push(WaitChange { time, wait: *wait, end: Some(end) });
            }
            !over
        });
    }

    pub(super) fn take_log(&mut self) -> Vec<WaitChange> {
        std::mem::take(&mut self.log)
    }
}

/// The waits of all switches, and the deadlocks so far.
#[derive(Debug, Default)]
pub(super) struct WaitGraph {
    /// For each priority and paused port, the ports that it waits for.
    waits: [BTreeMap<u32, BTreeSet<u32>>; PRIORITIES],
    deadlocks: Vec<Deadlock>,
    /// Existing deadlocks: the index of the description, and the current cycle.
    open: Vec<(usize, Vec<u32>)>,
    /// The number of deadlocks that are not described.
    left_out: u64,
}

impl WaitGraph {
    /// Applies changes of all switches, which must be in the order of time, also across calls.
    pub(super) fn apply(&mut self, changes: &[WaitChange]) {
        for change in changes {
            let Wait { ingress, egress, priority } = change.wait;
            // The port at the other end of the link waits.
            let from = super::route::other_end(ingress);
            match change.end {
                None => self.begin(change.time, priority, from, egress),
                Some(end) => self.end(change.time, end, priority, (from, egress)),
            }
        }
    }

    fn begin(&mut self, time: Time, priority: u8, from: u32, to: u32) {
        let Some(waits) = self.waits.get_mut(usize::from(priority)) else { return };
        waits.entry(from).or_default().insert(to);
        let Some(cycle) = path(waits, to, from) else { return };
        let is_known = |(place, known): &(usize, Vec<u32>)| {
            self.deadlocks.get(*place).is_some_and(|deadlock| deadlock.priority == priority)
                && known.iter().any(|port| cycle.contains(port))
        };
        if self.open.iter().any(is_known) {
            // An existing deadlock grows.
            return;
        }
        if self.deadlocks.len() >= MOST_DEADLOCKS {
            self.left_out += 1;
            return;
        }
        let mut ports = cycle.clone();
        let first = ports.iter().enumerate().min_by_key(|(_, port)| **port).map_or(0, |(place, _)| place);
        ports.rotate_left(first);
        self.open.push((self.deadlocks.len(), cycle));
        self.deadlocks.push(Deadlock { begin: time, priority, ports, end: None });
    }

    fn end(&mut self, time: Time, end: WaitEnd, priority: u8, (from, to): (u32, u32)) {
        let Some(waits) = self.waits.get_mut(usize::from(priority)) else { return };
        if let Some(others) = waits.get_mut(&from) {
            others.remove(&to);
            if others.is_empty() {
                waits.remove(&from);
            }
        }
        let deadlocks = &mut self.deadlocks;
        self.open.retain_mut(|(place, cycle)| {
            let Some(deadlock) = deadlocks.get_mut(*place) else { return false };
            let is_part = || cycle.iter().zip(cycle.iter().cycle().skip(1)).any(|wait| wait == (&from, &to));
            if deadlock.priority != priority || !is_part() {
                return true;
            }
            // The ports can also wait for each other in another cycle.
            let other = cycle
                .iter()
                .find_map(|port| waits.get(port)?.iter().find_map(|next| path(waits, *next, *port)));
            let holds = other.is_some();
            match other {
                Some(other) => *cycle = other,
                None => deadlock.end = Some((time, end)),
            }
            holds
        });
    }

    /// Returns the deadlocks of the run, and the number of deadlocks that are not described.
    pub(super) fn into_deadlocks(self) -> (Vec<Deadlock>, u64) {
        (self.deadlocks, self.left_out)
    }
}

/// Returns the cycle that the wait of `to` for `from` closes: the ports of the shortest path from `from` to
/// `to`, in the order `to`, `from` and the ports between them.
fn path(waits: &BTreeMap<u32, BTreeSet<u32>>, from: u32, to: u32) -> Option<Vec<u32>> {
    let mut before: BTreeMap<u32, u32> = BTreeMap::new();
    let mut next = VecDeque::from([from]);
    while let Some(port) = next.pop_front() {
        if port == to {
            let mut cycle = vec![to];
            let mut at = to;
            while at != from {
                at = *before.get(&at)?;
                cycle.push(at);
            }
            // The remaining ports in the order from start to end.
            if let Some(rest) = cycle.get_mut(1..) {
                rest.reverse();
            }
            return Some(cycle);
        }
        for other in waits.get(&port).into_iter().flatten() {
            if *other != from && !before.contains_key(other) {
                before.insert(*other, port);
                next.push_back(*other);
            }
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Creates a change at this microsecond: the port `from` begins or ends to wait for `to`.
    fn change(us: u64, from: u32, to: u32, end: Option<WaitEnd>) -> WaitChange {
        let wait = Wait { ingress: super::super::route::other_end(from), egress: to, priority: 3 };
        WaitChange { time: Time::from_us(us), wait, end }
    }

    fn deadlocks(changes: &[WaitChange]) -> Vec<Deadlock> {
        let mut graph = WaitGraph::default();
        graph.apply(changes);
        graph.into_deadlocks().0
    }

    #[test]
    fn the_wait_that_closes_a_cycle_of_four_makes_a_deadlock() {
        let begin = |us, from, to| change(us, from, to, None);
        let open = [begin(1, 4, 6), begin(2, 6, 8), begin(3, 2, 4), begin(3, 4, 12)];
        assert_eq!(deadlocks(&open), []);
        let closed = [&open[..], &[begin(4, 8, 2)]].concat();
        let expected = Deadlock { begin: Time::from_us(4), priority: 3, ports: vec![2, 4, 6, 8], end: None };
        let only = std::slice::from_ref(&expected);
        assert_eq!(deadlocks(&closed)[..], *only);
        // The waits of other ports for ports of the cycle are no further deadlocks.
        let more = [&closed[..], &[begin(5, 14, 2), begin(6, 8, 14)]].concat();
        assert_eq!(deadlocks(&more)[..], *only);
        // One cycle opens, and the ports still wait for each other in the other cycle.
        let end = |us, from, to| change(us, from, to, Some(WaitEnd::Watchdog));
        let half = [&more[..], &[end(7, 8, 2)]].concat();
        assert_eq!(deadlocks(&half)[..], *only);
        let opened = [&half[..], &[end(9, 14, 2)]].concat();
        let end = Some((Time::from_us(9), WaitEnd::Watchdog));
        assert_eq!(deadlocks(&opened), [Deadlock { end, ..expected.clone() }]);
        // The cycle can close again.
        let again = [&opened[..], &[begin(10, 8, 2)]].concat();
        assert_eq!(deadlocks(&again).len(), 2);
    }

    #[test]
    fn priorities_do_not_wait_for_each_other() {
        let mut other = change(2, 4, 2, None);
        other.wait.priority = 5;
        assert_eq!(deadlocks(&[change(1, 2, 4, None), other]), []);
        assert_eq!(deadlocks(&[change(1, 2, 4, None), change(2, 4, 2, None)])[0].ports, [2, 4]);
    }

    #[test]
    fn a_switch_logs_each_wait_once() {
        let mut waits = SwitchWaits::default();
        let wait = Wait { ingress: 1, egress: 2, priority: 3 };
        waits.begin(Time::from_us(1), wait);
        waits.begin(Time::from_us(2), wait);
        waits.end(Time::from_us(3), WaitEnd::Expiry, |wait| wait.egress == 4);
        waits.end(Time::from_us(4), WaitEnd::Resume, |wait| wait.egress == 2);
        waits.end(Time::from_us(5), WaitEnd::Resume, |wait| wait.egress == 2);
        let log = waits.take_log();
        let seen: Vec<_> = log.iter().map(|change| (change.time, change.end)).collect();
        assert_eq!(seen, [(Time::from_us(1), None), (Time::from_us(4), Some(WaitEnd::Resume))]);
    }
}
