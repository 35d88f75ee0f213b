//! Resources that a device has only once, such as a source port or a group membership. The first holder
//! acquires the resource and the last one releases it, because the device itself does not count.

use std::collections::{BTreeMap, BTreeSet};

use roce_packet::Qpn;

/// The holder of a source port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum PortHolder {
    /// A queue pair, until it is destroyed or moved to RESET.
    QueuePair(Qpn),
    /// The address handle with this number, until it is dropped.
    AddressHandle(u64),
}

/// Keys of each holder, and the number of holders of each key.
#[derive(Debug)]
pub(super) struct Holders<H, K> {
    of: BTreeMap<H, BTreeSet<K>>,
    counts: BTreeMap<K, usize>,
}

impl<H, K> Default for Holders<H, K> {
    fn default() -> Self {
        Self { of: BTreeMap::new(), counts: BTreeMap::new() }
    }
}

impl<H: Copy + Ord, K: Copy + Ord> Holders<H, K> {
    /// Returns whether this holder has the key.
    pub(super) fn has(&self, holder: H, key: K) -> bool {
        self.of.get(&holder).is_some_and(|keys| keys.contains(&key))
    }

    /// Returns whether any holder has the key.
    pub(super) fn has_any(&self, key: K) -> bool {
        self.counts.contains_key(&key)
    }

    /// Returns whether this holder is the only one that has the key.
    pub(super) fn is_last(&self, holder: H, key: K) -> bool {
        self.has(holder, key) && self.counts.get(&key) == Some(&1)
    }

    /// Returns all keys of this holder.
    pub(super) fn all_of(&self, holder: H) -> Vec<K> {
        self.of.get(&holder).into_iter().flatten().copied().collect()
    }

    /// Records that a holder has the key. Idempotent.
    pub(super) fn add(&mut self, holder: H, key: K) {
        if self.of.entry(holder).or_default().insert(key) {
            *self.counts.entry(key).or_default() += 1;
        }
    }

    /// Records that a holder no longer has the key. Returns whether no other holder has it.
    pub(super) fn remove(&mut self, holder: H, key: K) -> bool {
        let Some(keys) = self.of.get_mut(&holder) else { return false };
        if !keys.remove(&key) {
            return false;
        }
        if keys.is_empty() {
            self.of.remove(&holder);
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
    fn a_thing_is_given_up_with_the_last_holder() {
        let (mut ports, [one, two]) = (Holders::default(), [17, 18]);
        ports.add(one, 50_000);
        ports.add(one, 50_000);
        ports.add(two, 50_000);
        ports.add(two, 50_001);
        assert!(ports.has(one, 50_000) && !ports.has(one, 50_001) && ports.has_any(50_001));
        assert!(!ports.is_last(one, 50_000) && ports.is_last(two, 50_001) && !ports.is_last(one, 50_001));
        assert!(!ports.remove(one, 50_000) && !ports.remove(one, 50_000));
        assert!(ports.is_last(two, 50_000));
        assert_eq!(ports.all_of(two), [50_000, 50_001]);
        assert!(ports.remove(two, 50_000) && ports.remove(two, 50_001));
        assert!(ports.of.is_empty() && ports.counts.is_empty());
    }
}
