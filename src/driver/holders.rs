//! What a device has once for all queue pairs, such as a source port or the membership in a group: acquired for the first
//! queue pair that needs it and released with the last. The device itself keeps no count.

use std::collections::{BTreeMap, BTreeSet};

use roce_packet::Qpn;

/// Which queue pairs hold which keys, and how many queue pairs hold each key.
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
    /// Whether this queue pair holds the key.
    pub(super) fn has(&self, qpn: Qpn, key: K) -> bool {
        self.of.get(&qpn).is_some_and(|keys| keys.contains(&key))
    }

    /// Whether any queue pair holds the key.
    pub(super) fn has_any(&self, key: K) -> bool {
        self.counts.contains_key(&key)
    }

    /// All keys of this queue pair.
    pub(super) fn all_of(&self, qpn: Qpn) -> Vec<K> {
        self.of.get(&qpn).into_iter().flatten().copied().collect()
    }

    /// Notes that a queue pair holds the key. Idempotent.
    pub(super) fn add(&mut self, qpn: Qpn, key: K) {
        if self.of.entry(qpn).or_default().insert(key) {
            *self.counts.entry(key).or_default() += 1;
        }
    }

    /// Notes that a queue pair no longer holds the key. Returns whether no other queue pair holds it.
    pub(super) fn remove(&mut self, qpn: Qpn, key: K) -> bool {
        let Some(keys) = self.of.get_mut(&qpn) else { return false };
        if !keys.remove(&key) {
            return false;
        }
        if keys.is_empty() {
            self.of.remove(&qpn);
        }
        let Some(count) = self.counts.get_mut(&key) else { return false };
        *count -= 1;
        let is_last = *count == 0;
        if is_last {
            self.counts.remove(&key);
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
