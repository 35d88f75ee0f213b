//! Objects with the same name in each engine of a context: protection domains, memory regions and windows.
//!
//! One engine draws the name, and the others create the same object under that name. The caller must have
//! exclusive access to all engines during this.

use alloc::sync::Arc;

use super::Engine;
use super::PdError;
use crate::ids::{LKey, PdId, RKey};
use crate::memory::{Access, KeyError, Memory, RegisterError, WindowType};

impl Engine {
    /// Creates the protection domain that another engine has under this name.
    ///
    /// # Errors
    ///
    /// Returns an error if the configured number of domains is in use, or if the name is. In the second case
    /// the caller draws another name.
    pub fn allocate_pd_as(&mut self, pd: PdId) -> Result<(), PdError> {
        let limit = self.shared.config.max_pd;
        // A name beyond the limit would make the table longer than allowed.
        if self.pds.len() >= limit || pd.index() >= limit {
            return Err(PdError::TooMany { limit });
        }
        if self.pds.insert_at(pd) { Ok(()) } else { Err(PdError::InUse { members: 0 }) }
    }

    /// Registers memory under the key that another engine has drawn for it.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`register`](Self::register), or [`RegisterError::KeyInUse`]. In the latter case
    /// the caller draws another key.
    pub fn register_as(
        &mut self,
        key: LKey,
        pd: PdId,
        addr: u64,
        memory: Arc<dyn Memory>,
        access: Access,
    ) -> Result<(), RegisterError> {
        if !self.pds.contains(pd) {
            return Err(RegisterError::UnknownProtectionDomain);
        }
        self.shared.keys.register_as(key, pd, addr, memory, access)?;
        self.join_pd(pd);
        Ok(())
    }

    /// Creates an unbound window under the key that another engine has drawn for it.
    ///
    /// # Errors
    ///
    /// Returns the errors of [`allocate_window`](Self::allocate_window), or [`RegisterError::KeyInUse`]. In
    /// the latter case the caller draws another key.
    pub fn allocate_window_as(
        &mut self,
        key: RKey,
        pd: PdId,
        window_type: WindowType,
    ) -> Result<(), RegisterError> {
        if !self.pds.contains(pd) {
            return Err(RegisterError::UnknownProtectionDomain);
        }
        self.shared.keys.allocate_window_as(key, pd, window_type)?;
        self.join_pd(pd);
        Ok(())
    }

    /// Gives a window the key that it has in another engine. This is needed if only one of the engines made a
    /// binding, which changed the variant of the key there.
    ///
    /// # Errors
    ///
    /// Returns an error if no window has this index.
    pub fn align_window(&mut self, window: RKey) -> Result<(), KeyError> {
        self.shared.keys.align_window(window)
    }

    /// Returns the number of objects in a protection domain, or `None` if the domain does not exist.
    #[must_use]
    pub fn pd_members(&self, pd: PdId) -> Option<usize> {
        self.pds.get(pd).map(|domain| domain.members)
    }

    /// Returns the number of windows that are bound over a region in this engine.
    ///
    /// # Errors
    ///
    /// Returns an error if the key is unknown or names a window.
    pub fn windows_over(&self, lkey: LKey) -> Result<u32, KeyError> {
        self.shared.keys.windows_over(lkey)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::EngineConfig;
    use crate::memory::WordMemory;

    fn engines() -> [Engine; 2] {
        [1, 2].map(|number| Engine::new(EngineConfig::from_number(number)))
    }

    #[test]
    fn a_region_has_the_same_key_in_two_engines() {
        let [mut first, mut second] = engines();
        // The second engine has an additional domain.
        let (pd, own) = (first.allocate_pd().unwrap(), PdId::from_index(7));
        second.allocate_pd_as(own).unwrap();
        second.allocate_pd_as(pd).unwrap();
        assert_eq!(second.allocate_pd_as(pd), Err(PdError::InUse { members: 0 }));
        let memory = Arc::new(WordMemory::new(64));
        let region = first.register(pd, 0x1000, memory.clone(), Access::LOCAL_WRITE).unwrap();
        let mut twin = |key, pd| second.register_as(key, pd, 0x1000, memory.clone(), Access::LOCAL_WRITE);
        assert_eq!(twin(region.lkey, PdId::from_index(3)), Err(RegisterError::UnknownProtectionDomain));
        assert_eq!(twin(region.lkey, pd), Ok(()));
        // A key with another variant names the same entry.
        assert_eq!(twin(LKey(region.lkey.0 ^ 1), pd), Err(RegisterError::KeyInUse));
        assert_eq!(second.query_region(region.lkey), first.query_region(region.lkey));
        assert_eq!(second.deallocate_pd(pd), Err(PdError::InUse { members: 1 }));
        second.deregister(region.lkey).unwrap();
        second.deallocate_pd(pd).unwrap();
    }

    #[test]
    fn a_window_that_one_engine_bound_gets_the_key_of_the_other_again() {
        use crate::memory::WindowBinding;
        let [mut first, mut second] = engines();
        let pd = first.allocate_pd().unwrap();
        second.allocate_pd_as(pd).unwrap();
        let access = Access::LOCAL_WRITE | Access::MW_BIND;
        let memory = Arc::new(WordMemory::new(64));
        let region = first.register(pd, 0, memory.clone(), access).unwrap();
        second.register_as(region.lkey, pd, 0, memory, access).unwrap();
        let window = first.allocate_window(pd, WindowType::Type1).unwrap();
        second.allocate_window_as(window, pd, WindowType::Type1).unwrap();
        let binding = WindowBinding { region: region.lkey, addr: 0, len: 8, access: Access::REMOTE_READ };
        let bound = second.bind_window(pd, window, &binding).unwrap();
        assert_ne!(bound, window);
        second.align_window(window).unwrap();
        let both = [&mut first, &mut second].map(|engine| engine.bind_window(pd, window, &binding));
        assert_eq!(both[0], both[1]);
        assert_eq!([first.windows_over(region.lkey), second.windows_over(region.lkey)], [Ok(1), Ok(1)]);
        assert_eq!(second.align_window(RKey(region.rkey.0)), Err(KeyError::Unknown));
    }
}
