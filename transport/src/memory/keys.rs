//! Memory keys: the table of L_Keys and R_Keys, and all checks made with it (IBTA 10.6).

use alloc::sync::Arc;

use rand_core::Rng;
use roce_packet::Qpn;
use slab::Slab;

use super::region::{ChangeError, KeyError, RegionAttributes, RegionChange, RegisterError, check_region};
use super::{Access, Memory};
use crate::ids::{LKey, PdId, RKey};
use crate::number_map::NumberMap;

/// The two kinds of memory windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WindowType {
    /// Bound by a verb and usable by each queue pair of the protection domain. The key changes at each bind.
    Type1,
    /// Bound by a work request to one queue pair (type 2B). The owner chooses the variant of the key, and
    /// either side can invalidate the window.
    Type2,
}

/// The memory and the rights of a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowBinding {
    /// The underlying region, which needs [`Access::MW_BIND`].
    pub region: LKey,
    /// First virtual address inside the region.
    pub addr: u64,
    /// Length in bytes; 0 unbinds a type 1 window.
    pub len: usize,
    /// Rights that the window grants. With [`Access::ZERO_BASED`] the window starts at address 0.
    pub access: Access,
}

/// The result of changing a region.
pub(crate) struct Changed {
    pub(crate) old_pd: PdId,
    pub(crate) attributes: RegionAttributes,
}

/// A range of memory to which a key gave access.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Resolved {
    entry: u32,
    key: u32,
    binding: u32,
    pub(crate) offset: usize,
}

impl Resolved {
    /// Returns the key that gave access.
    pub(crate) fn rkey(&self) -> RKey {
        RKey(self.key)
    }

    /// Returns the number of the key's binding. A key that is changed or bound again gets another one.
    pub(crate) fn binding(&self) -> u32 {
        self.binding
    }
}

#[derive(Debug)]
struct Entry {
    key: u32,
    /// Number of bindings of a window, or of changes of a region. A message that began under one binding does
    /// not continue under the next, which may have the same key.
    binding: u32,
    pd: PdId,
    /// First virtual address, and length in bytes.
    start: u64,
    len: u64,
    access: Access,
    /// The underlying memory; `None` for an unbound window.
    memory: Option<Arc<dyn Memory>>,
    /// Offset of `start` in `memory`.
    base: usize,
    kind: Kind,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    /// `windows` counts the windows bound over the region.
    Region {
        windows: u32,
    },
    Window {
        window_type: WindowType,
        under: Option<Under>,
        owner: Option<Qpn>,
    },
}

/// The memory of a bound window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Under {
    /// The region with this index in the table.
    Region(u32),
    /// A released region: only its windows still hold the memory.
    Released,
}

/// All keys of one engine.
#[derive(Debug)]
pub(crate) struct KeyTable {
    /// Index into `entries` by key number. A number exists as long as its entry, so the index is always
    /// valid.
    numbers: NumberMap,
    entries: Slab<Entry>,
    limit: usize,
    next_variant: u8,
}

impl KeyTable {
    pub(crate) fn new(limit: usize, first_variant: u8) -> Self {
        Self { numbers: NumberMap::new(), entries: Slab::new(), limit, next_variant: first_variant }
    }

    pub(crate) fn len(&self) -> usize {
        self.numbers.len()
    }

    pub(crate) fn register(
        &mut self,
        rng: &mut impl Rng,
        pd: PdId,
        addr: u64,
        memory: Arc<dyn Memory>,
        access: Access,
    ) -> Result<RegionAttributes, RegisterError> {
        let entry = Entry::region(pd, addr, memory, access)?;
        let (start, len) = (entry.start, entry.len as usize);
        let key = self.insert(rng, entry)?;
        Ok(RegionAttributes { lkey: LKey(key), rkey: RKey(key), addr: start, len, access })
    }

    /// Registers memory under a key that another engine of the context has drawn.
    pub(crate) fn register_as(
        &mut self,
        key: LKey,
        pd: PdId,
        addr: u64,
        memory: Arc<dyn Memory>,
        access: Access,
    ) -> Result<(), RegisterError> {
        self.insert_as(key.0, Entry::region(pd, addr, memory, access)?)
    }

    pub(crate) fn allocate_window(
        &mut self,
        rng: &mut impl Rng,
        pd: PdId,
        window_type: WindowType,
    ) -> Result<RKey, RegisterError> {
        self.insert(rng, Entry::window(pd, window_type)).map(RKey)
    }

    /// Creates a window under a key that another engine of the context has drawn.
    pub(crate) fn allocate_window_as(
        &mut self,
        key: RKey,
        pd: PdId,
        window_type: WindowType,
    ) -> Result<(), RegisterError> {
        self.insert_as(key.0, Entry::window(pd, window_type))
    }

    /// Gives a window the complete key that the same window has in another engine.
    pub(crate) fn align_window(&mut self, window: RKey) -> Result<(), KeyError> {
        let own = self.window_key(window)?;
        let (position, _) = self.find(own.0)?;
        self.rekey(position, window);
        Ok(())
    }

    fn insert_as(&mut self, key: u32, mut entry: Entry) -> Result<(), RegisterError> {
        if self.entries.len() >= self.limit {
            return Err(RegisterError::TooManyKeys { limit: self.limit });
        }
        if !self.numbers.insert(key >> 8, self.entries.vacant_key()) {
            return Err(RegisterError::KeyInUse);
        }
        entry.key = key;
        self.entries.insert(entry);
        Ok(())
    }

    /// Inserts `entry` with an unpredictable number and a variant other than those of the last 255 keys.
    fn insert(&mut self, rng: &mut impl Rng, mut entry: Entry) -> Result<u32, RegisterError> {
        if self.entries.len() >= self.limit {
            return Err(RegisterError::TooManyKeys { limit: self.limit });
        }
        self.next_variant = self.next_variant.wrapping_add(1);
        let position = self.entries.vacant_key();
        // The limit keeps the table far from full, so a few draws find a free number.
        let number = loop {
            let number = rng.next_u32() & 0x00ff_ffff;
            if number != 0 && self.numbers.insert(number, position) {
                break number;
            }
        };
        entry.key = number << 8 | u32::from(self.next_variant);
        let key = entry.key;
        self.entries.insert(entry);
        Ok(key)
    }

    fn find(&self, key: u32) -> Result<(usize, &Entry), KeyError> {
        let position = self.numbers.get(key >> 8).ok_or(KeyError::Unknown)?;
        let entry = self.entries.get(position).ok_or(KeyError::Unknown)?;
        if entry.key == key { Ok((position, entry)) } else { Err(KeyError::Unknown) }
    }

    /// Returns the current key of the window with the index of this key.
    pub(crate) fn window_key(&self, window: RKey) -> Result<RKey, KeyError> {
        let position = self.numbers.get(window.0 >> 8).ok_or(KeyError::Unknown)?;
        match self.entries.get(position) {
            Some(Entry { kind: Kind::Window { .. }, key, .. }) => Ok(RKey(*key)),
            _ => Err(KeyError::Unknown),
        }
    }

    /// Returns the attributes of a region.
    pub(crate) fn region(&self, lkey: LKey) -> Result<(PdId, RegionAttributes), KeyError> {
        let (_, entry) = self.find(lkey.0)?;
        if !matches!(entry.kind, Kind::Region { .. }) {
            return Err(KeyError::Unknown);
        }
        let len = usize::try_from(entry.len).unwrap_or(usize::MAX);
        let (addr, access) = (entry.start, entry.access);
        Ok((entry.pd, RegionAttributes { lkey, rkey: RKey(lkey.0), addr, len, access }))
    }

    /// Changes the attributes behind the keys of a region. Messages in progress do not continue with them.
    pub(crate) fn change(&mut self, lkey: LKey, change: RegionChange) -> Result<Changed, ChangeError> {
        let (position, entry) = self.find(lkey.0)?;
        let Kind::Region { windows } = entry.kind else { return Err(ChangeError::Key(KeyError::Unknown)) };
        if windows > 0 {
            return Err(ChangeError::WindowsBound { windows });
        }
        let access = change.access.unwrap_or(entry.access);
        let (addr, len) = match &change.memory {
            Some((addr, memory)) => (*addr, memory.len()),
            None => (entry.start, usize::try_from(entry.len).unwrap_or(usize::MAX)),
        };
        let start = check_region(addr, len, access)?;
        let old_pd = entry.pd;
        if let Some(entry) = self.entries.get_mut(position) {
            entry.start = start;
            entry.len = len as u64;
            entry.access = access;
            entry.pd = change.pd.unwrap_or(old_pd);
            if let Some((_, memory)) = change.memory {
                entry.memory = Some(memory);
            }
            entry.binding = entry.binding.wrapping_add(1);
        }
        let attributes = RegionAttributes { lkey, rkey: RKey(lkey.0), addr: start, len, access };
        Ok(Changed { old_pd, attributes })
    }

    /// Returns the number of windows that are bound over the region.
    pub(crate) fn windows_over(&self, lkey: LKey) -> Result<u32, KeyError> {
        match self.find(lkey.0)?.1.kind {
            Kind::Region { windows } => Ok(windows),
            Kind::Window { .. } => Err(KeyError::Unknown),
        }
    }

    /// Removes a key: a region, or a window whether or not it is bound.
    pub(crate) fn remove(&mut self, key: u32) -> Result<PdId, KeyError> {
        let (position, _) = self.find(key)?;
        self.unbind(position);
        self.numbers.remove(key >> 8);
        Ok(self.entries.remove(position).pd)
    }

    /// Removes the keys of a region. Windows over it stay bound, and hold the memory until they are unbound.
    pub(crate) fn release(&mut self, lkey: LKey) -> Result<PdId, KeyError> {
        let windows = self.windows_over(lkey)?;
        let (position, _) = self.find(lkey.0)?;
        if windows > 0 {
            let here = u32::try_from(position).ok().map(Under::Region);
            for (_, entry) in &mut self.entries {
                if let Kind::Window { under, .. } = &mut entry.kind
                    && *under == here
                {
                    *under = Some(Under::Released);
                }
            }
        }
        self.remove(lkey.0)
    }

    /// Checks that a peer may use `[va, va + len)` through `rkey` with all rights in `need`.
    #[inline]
    pub(crate) fn resolve_remote(
        &self,
        rkey: RKey,
        pd: PdId,
        qpn: Qpn,
        (va, len): (u64, u64),
        need: Access,
    ) -> Result<Resolved, KeyError> {
        let (position, entry) = self.find(rkey.0)?;
        if entry.pd != pd {
            return Err(KeyError::WrongProtectionDomain);
        }
        if let Kind::Window { owner, under, .. } = entry.kind {
            if under.is_none() {
                return Err(KeyError::Unbound);
            }
            if owner.is_some_and(|owner| owner != qpn) {
                return Err(KeyError::WrongQueuePair);
            }
        }
        entry.resolve(position, va, len, need)
    }

    /// Checks that a work request may use `[addr, addr + len)` through `lkey`. Returns the memory and the
    /// offset of `addr` in it.
    #[inline]
    pub(crate) fn local(
        &self,
        lkey: LKey,
        pd: PdId,
        (addr, len): (u64, u64),
        need: Access,
    ) -> Result<(&dyn Memory, usize), KeyError> {
        let (position, entry) = self.find(lkey.0)?;
        if entry.pd != pd {
            return Err(KeyError::WrongProtectionDomain);
        }
        if !matches!(entry.kind, Kind::Region { .. }) {
            return Err(KeyError::Unknown);
        }
        let resolved = entry.resolve(position, addr, len, need)?;
        Ok((entry.memory.as_deref().ok_or(KeyError::Unbound)?, resolved.offset))
    }

    /// Returns the memory of an earlier resolved range, if its key is still valid.
    #[inline]
    pub(crate) fn memory(&self, resolved: &Resolved) -> Result<&dyn Memory, KeyError> {
        let entry = self.entries.get(resolved.entry as usize).ok_or(KeyError::Unknown)?;
        if entry.key != resolved.key || entry.binding != resolved.binding {
            return Err(KeyError::Unknown);
        }
        entry.memory.as_deref().ok_or(KeyError::Unbound)
    }

    /// Flushes what a peer wrote: a range of an entry, or the whole entry.
    pub(crate) fn flush(
        &self,
        rkey: RKey,
        pd: PdId,
        qpn: Qpn,
        (va, len): (u64, u32),
        whole: bool,
        need: Access,
    ) -> Result<(), KeyError> {
        let range = if whole {
            let (_, entry) = self.find(rkey.0)?;
            (entry.start, entry.len)
        } else {
            (va, u64::from(len))
        };
        let resolved = self.resolve_remote(rkey, pd, qpn, range, need)?;
        let bytes = usize::try_from(range.1).map_err(|_| KeyError::OutOfRange)?;
        let persistent = need.contains(Access::FLUSH_PERSISTENT);
        self.memory(&resolved)?.flush(resolved.offset, bytes, persistent);
        Ok(())
    }

    /// Binds a window and returns its new key. `new_key` is the key of a type 2 window; a type 1 window gets
    /// the next variant, which a work request must name too. `owner` is the queue pair of a type 2 window.
    pub(crate) fn bind(
        &mut self,
        window: RKey,
        new_key: Option<RKey>,
        pd: PdId,
        owner: Option<Qpn>,
        binding: &WindowBinding,
    ) -> Result<RKey, KeyError> {
        let (position, entry) = self.find(window.0)?;
        let Kind::Window { window_type, under: bound, .. } = entry.kind else {
            return Err(KeyError::Unknown);
        };
        if entry.pd != pd {
            return Err(KeyError::WrongProtectionDomain);
        }
        let new_key = match (window_type, new_key) {
            (WindowType::Type1, None) => window.next_variant(),
            (WindowType::Type1, Some(key)) if key == window.next_variant() => key,
            // The owner may only choose the variant. A bound type 2 window must be invalidated first, and a
            // binding of length 0 does not do that (IBTA o10-37.2.40).
            (WindowType::Type2, Some(key))
                if key.0 >> 8 == window.0 >> 8 && bound.is_none() && binding.len > 0 =>
            {
                key
            }
            _ => return Err(KeyError::PermissionDenied),
        };
        if binding.len == 0 && window_type == WindowType::Type1 {
            self.unbind(position);
            self.rekey(position, new_key);
            return Ok(new_key);
        }
        let (start, base, region_position) = self.check_binding(pd, binding)?;
        let memory = self.entries.get(region_position).and_then(|region| region.memory.clone());
        self.unbind(position);
        self.rekey(position, new_key);
        if let Some(entry) = self.entries.get_mut(position) {
            entry.start = start;
            entry.len = binding.len as u64;
            entry.base = base;
            entry.access = binding.access;
            entry.memory = memory;
            let owner = owner.filter(|_| window_type == WindowType::Type2);
            let under = u32::try_from(region_position).ok().map(Under::Region);
            entry.kind = Kind::Window { window_type, under, owner };
        }
        self.count_windows(region_position, 1);
        Ok(new_key)
    }

    /// Makes the checks of a bind on its region. Returns first address, offset in memory, and region index.
    fn check_binding(&self, pd: PdId, binding: &WindowBinding) -> Result<(u64, usize, usize), KeyError> {
        let (position, region) = self.find(binding.region.0)?;
        if !matches!(region.kind, Kind::Region { .. }) {
            return Err(KeyError::Unknown);
        }
        if region.pd != pd {
            return Err(KeyError::WrongProtectionDomain);
        }
        let mut need = Access::MW_BIND;
        if binding.access.intersects(Access::REMOTE_WRITE | Access::REMOTE_ATOMIC) {
            need |= Access::LOCAL_WRITE;
        }
        let resolved = region.resolve(position, binding.addr, binding.len as u64, need)?;
        let start = if binding.access.contains(Access::ZERO_BASED) { 0 } else { binding.addr };
        Ok((start, resolved.offset, position))
    }

    /// Invalidates a bound type 2 window, for a work request of the owner or a SEND of a peer.
    pub(crate) fn invalidate(&mut self, rkey: RKey, pd: PdId, qpn: Qpn) -> Result<(), KeyError> {
        let (position, entry) = self.find(rkey.0)?;
        if entry.pd != pd {
            return Err(KeyError::WrongProtectionDomain);
        }
        match entry.kind {
            Kind::Window { window_type: WindowType::Type2, under, owner } => {
                if under.is_none() {
                    return Err(KeyError::Unbound);
                }
                if owner.is_some_and(|owner| owner != qpn) {
                    return Err(KeyError::WrongQueuePair);
                }
                self.unbind(position);
                Ok(())
            }
            _ => Err(KeyError::PermissionDenied),
        }
    }

    /// Unbinds all type 2 windows of a queue pair that is destroyed or reset.
    pub(crate) fn release_owner(&mut self, qpn: Qpn) {
        let owned =
            |entry: &Entry| matches!(entry.kind, Kind::Window { owner: Some(owner), .. } if owner == qpn);
        while let Some(position) = self.entries.iter().find(|(_, entry)| owned(entry)).map(|(at, _)| at) {
            self.unbind(position);
        }
    }

    fn rekey(&mut self, position: usize, key: RKey) {
        if let Some(entry) = self.entries.get_mut(position) {
            entry.key = key.0;
        }
    }

    fn unbind(&mut self, position: usize) {
        let Some(entry) = self.entries.get_mut(position) else { return };
        if let Kind::Window { under, owner, .. } = &mut entry.kind {
            *owner = None;
            let under = under.take();
            entry.memory = None;
            entry.binding = entry.binding.wrapping_add(1);
            if let Some(Under::Region(region)) = under {
                self.count_windows(region as usize, -1);
            }
        }
    }

    fn count_windows(&mut self, position: usize, change: i32) {
        if let Some(Entry { kind: Kind::Region { windows }, .. }) = self.entries.get_mut(position) {
            *windows = windows.saturating_add_signed(change);
        }
    }
}

impl Entry {
    fn region(pd: PdId, addr: u64, memory: Arc<dyn Memory>, access: Access) -> Result<Self, RegisterError> {
        let len = memory.len();
        let start = check_region(addr, len, access)?;
        let (memory, kind) = (Some(memory), Kind::Region { windows: 0 });
        Ok(Self { key: 0, binding: 0, pd, start, len: len as u64, access, memory, base: 0, kind })
    }

    fn window(pd: PdId, window_type: WindowType) -> Self {
        let kind = Kind::Window { window_type, under: None, owner: None };
        let access = Access::empty();
        Self { key: 0, binding: 0, pd, start: 0, len: 0, access, memory: None, base: 0, kind }
    }

    #[inline]
    fn resolve(&self, position: usize, va: u64, len: u64, need: Access) -> Result<Resolved, KeyError> {
        if !self.access.contains(need) {
            return Err(KeyError::PermissionDenied);
        }
        // Compare differences, because va + len wraps for a hostile RETH near the end of the address space.
        let inside = va.checked_sub(self.start).ok_or(KeyError::OutOfRange)?;
        if len > self.len || inside > self.len - len {
            return Err(KeyError::OutOfRange);
        }
        let inside = usize::try_from(inside).map_err(|_| KeyError::OutOfRange)?;
        let offset = self.base.checked_add(inside).ok_or(KeyError::OutOfRange)?;
        let entry = u32::try_from(position).map_err(|_| KeyError::Unknown)?;
        Ok(Resolved { entry, key: self.key, binding: self.binding, offset })
    }
}
