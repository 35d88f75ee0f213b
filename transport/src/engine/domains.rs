//! The protection domains of an engine.

use alloc::collections::BTreeSet;
use alloc::vec::Vec;

use crate::ids::PdId;

/// A protection domain, with the number of its members so that it is not removed while it has any.
#[derive(Debug, Default)]
pub(super) struct ProtectionDomain {
    pub(super) members: usize,
}

/// A table of protection domains whose index can be chosen: engines of one context have the same domain at
/// the same index.
#[derive(Debug, Default)]
pub(super) struct Domains {
    places: Vec<Option<ProtectionDomain>>,
    /// Indices of the free places.
    free: BTreeSet<usize>,
}

impl Domains {
    pub(super) fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }

    /// Creates a domain at the first free index.
    pub(super) fn insert(&mut self) -> PdId {
        let place = self.free.first().copied().unwrap_or(self.places.len());
        let inserted = self.insert_at(PdId::from_index(place));
        debug_assert!(inserted, "the place is free");
        PdId::from_index(place)
    }

    /// Creates a domain at the given index. Returns `false` if the index is in use.
    pub(super) fn insert_at(&mut self, pd: PdId) -> bool {
        let place = pd.index();
        while self.places.len() <= place {
            self.free.insert(self.places.len());
            self.places.push(None);
        }
        if !self.free.remove(&place) {
            return false;
        }
        self.places[place] = Some(ProtectionDomain::default());
        true
    }

    pub(super) fn remove(&mut self, pd: PdId) {
        if self.places.get_mut(pd.index()).and_then(Option::take).is_some() {
            self.free.insert(pd.index());
        }
    }

    pub(super) fn contains(&self, pd: PdId) -> bool {
        self.get(pd).is_some()
    }

    pub(super) fn get(&self, pd: PdId) -> Option<&ProtectionDomain> {
        self.places.get(pd.index())?.as_ref()
    }

    pub(super) fn get_mut(&mut self, pd: PdId) -> Option<&mut ProtectionDomain> {
        self.places.get_mut(pd.index())?.as_mut()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_can_be_chosen_and_is_used_again() {
        let mut domains = Domains::default();
        let first = domains.insert();
        assert!(domains.insert_at(PdId::from_index(3)) && !domains.insert_at(PdId::from_index(3)));
        assert_eq!(domains.len(), 2);
        assert!(!domains.contains(PdId::from_index(2)));
        let others = [domains.insert(), domains.insert(), domains.insert()];
        assert_eq!(others.map(PdId::index), [1, 2, 4]);
        domains.remove(first);
        domains.remove(first);
        assert_eq!((domains.len(), domains.insert()), (4, first));
    }
}
