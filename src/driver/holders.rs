//! What a device has once for all queue pairs: taken with the first that needs it and given up with the last, for the device
//! keeps no count.

use std::collections::{BTreeMap, BTreeSet};

use roce_packet::Qpn;

/// Which queue pairs need which of such things.
#[derive(Debug)]
pub(super) struct Holders<K> {
    of: BTreeMap<Qpn, BTreeSet<K>>,
    counts: BTreeMap<K, usize>,
}

impl<K> Default for Holders<K> {
    fn default() -> Self {
        Self { of: BTreeMap::new(), counts: BTreeMap::new() }
    }
}

impl<K: Copy + Ord> Holders<K> {
    /// Whether this queue pair needs it.
    pub(super) fn has(&self, qpn: Qpn, thing: K) -> bool {
        self.of.get(&qpn).is_some_and(|things| things.contains(&thing))
    }

    /// Whether any does.
    pub(super) fn has_any(&self, thing: K) -> bool {
        self.counts.contains_key(&thing)
    }

    /// All that this queue pair needs.
    pub(super) fn all_of(&self, qpn: Qpn) -> Vec<K> {
        self.of.get(&qpn).into_iter().flatten().copied().collect()
    }

    /// A queue pair needs it; twice is as good as once.
    pub(super) fn add(&mut self, qpn: Qpn, thing: K) {
        if self.of.entry(qpn).or_default().insert(thing) {
            *self.counts.entry(thing).or_default() += 1;
        }
    }

    /// A queue pair needs it no more. Whether it was the last one that did.
    pub(super) fn remove(&mut self, qpn: Qpn, thing: K) -> bool {
        let Some(things) = self.of.get_mut(&qpn) else { return false };
        if !things.remove(&thing) {
            return false;
        }
        if things.is_empty() {
            self.of.remove(&qpn);
        }
        let Some(count) = self.counts.get_mut(&thing) else { return false };
        *count -= 1;
        let is_last = *count == 0;
        if is_last {
            self.counts.remove(&thing);
        }
        is_last
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thing_is_given_up_with_the_last_queue_pair() {
        let (mut ports, [one, two]) = (Holders::default(), [17, 18].map(Qpn::new));
        ports.add(one, 50_000);
        ports.add(one, 50_000);
        ports.add(two, 50_000);
        ports.add(two, 50_001);
        assert!(ports.has(one, 50_000) && !ports.has(one, 50_001) && ports.has_any(50_001));
        assert!(!ports.remove(one, 50_000) && !ports.remove(one, 50_000));
        assert_eq!(ports.all_of(two), [50_000, 50_001]);
        assert!(ports.remove(two, 50_000) && ports.remove(two, 50_001));
        assert!(ports.of.is_empty() && ports.counts.is_empty());
    }
}
