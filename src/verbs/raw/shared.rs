//! Objects that exist in every engine of a context under one identifier: protection domains, memory regions
//! and memory windows. Queue pairs of any engine can use them.
//!
//! Engine 0 draws the identifier, and all engines stay locked until each has the object.

use std::sync::Arc;

use roce_transport::{
    Access, ChangeError, DestroyError, Engine, KeyError, LKey, Memory, PdError, PdId, RKey, RegionAttributes,
    RegionChange, RegisterError, WindowBinding, WindowType,
};

use super::Raw;
use crate::runtime::AllLocked;
use crate::verbs::VerbsError;

/// Maximum number of draws of a key that another engine may already use. One draw suffices in all but one of
/// some thousand cases.
const MOST_DRAWS: usize = 64;

/// Performs an operation in all engines. They have the same objects and thus return the same result: if the
/// first engine refuses, nothing has changed.
fn in_each<T, E>(
    engines: impl Iterator<Item = T>,
    mut work: impl FnMut(T) -> Result<(), E>,
) -> Result<(), E> {
    for (index, engine) in engines.enumerate() {
        let done = work(engine);
        debug_assert!(index == 0 || done.is_ok(), "engine {index} lacks what engine 0 has");
        if index == 0 {
            done?;
        }
    }
    Ok(())
}

/// Creates an object under a new key in the first engine, and under that key in the others.
fn draw_and_copy<'a, T, K: Copy>(
    mut engines: impl Iterator<Item = &'a mut Engine>,
    draw: impl Fn(&mut Engine) -> Result<(T, K), RegisterError>,
    copy: impl Fn(&mut Engine, K) -> Result<(), RegisterError>,
    remove: impl Fn(&mut Engine, K) -> Result<(), DestroyError>,
) -> Result<T, RegisterError> {
    let Some(first) = engines.next() else { return Err(RegisterError::KeyInUse) };
    let mut others: Vec<_> = engines.collect();
    for _ in 0..MOST_DRAWS {
        let (made, key) = draw(first)?;
        let refused = |(index, engine): (usize, &mut &'a mut Engine)| {
            copy(engine, key).err().map(|error| (index, error))
        };
        let Some((refusing, error)) = others.iter_mut().enumerate().find_map(refused) else {
            return Ok(made);
        };
        for engine in std::iter::once(&mut *first).chain(others.iter_mut().take(refusing).map(|it| &mut **it))
        {
            let removed = remove(engine, key);
            debug_assert!(removed.is_ok(), "it was made just now: {removed:?}");
        }
        if error != RegisterError::KeyInUse {
            return Err(error);
        }
    }
    Err(RegisterError::KeyInUse)
}

/// Returns the number of windows that are bound over a region, in all engines together.
fn windows_over<'a>(engines: impl Iterator<Item = &'a mut Engine>, lkey: LKey) -> u32 {
    engines.filter_map(|engine| engine.windows_over(lkey).ok()).sum()
}

/// Binds a type 1 window in all engines.
pub(in crate::verbs) fn bind_window(
    all: &mut AllLocked<'_>,
    pd: PdId,
    window: RKey,
    binding: &WindowBinding,
) -> Result<RKey, VerbsError> {
    // A work request binds the window in one engine alone; then the current key is that engine's.
    if !all.engines().any(|engine| engine.window_key(window) == Ok(window)) {
        return Err(KeyError::Unknown.into());
    }
    let mut bound = window;
    in_each(all.engines(), |engine| {
        engine.align_window(window)?;
        bound = engine.bind_window(pd, window, binding)?;
        Ok::<_, KeyError>(())
    })?;
    Ok(bound)
}

impl Raw<'_> {
    /// Allocates a protection domain.
    ///
    /// # Errors
    ///
    /// Fails if the configured number of protection domains is in use.
    pub fn allocate_pd(self) -> Result<PdId, VerbsError> {
        let mut all = self.context.0.lock_all();
        let mut pd = None;
        in_each(all.engines(), |engine| match pd {
            None => {
                pd = Some(engine.allocate_pd()?);
                Ok(())
            }
            Some(pd) => engine.allocate_pd_as(pd),
        })?;
        Ok(pd.ok_or(PdError::Unknown)?)
    }

    /// Deallocates a protection domain.
    ///
    /// # Errors
    ///
    /// Fails while regions, windows, queue pairs or shared receive queues belong to it.
    pub fn deallocate_pd(self, pd: PdId) -> Result<(), VerbsError> {
        let mut all = self.context.0.lock_all();
        // A region is a member in each engine, but counts once.
        let members = all.engines().filter_map(|engine| engine.pd_members(pd)).max().unwrap_or(0);
        if members > 0 {
            return Err(PdError::InUse { members }.into());
        }
        Ok(in_each(all.engines(), |engine| engine.deallocate_pd(pd))?)
    }

    /// Registers memory at a virtual address, which peers and work requests use.
    ///
    /// # Errors
    ///
    /// Fails if the flags contradict each other, the memory is empty, the range wraps around, or all keys are
    /// in use.
    pub fn register(
        self,
        pd: PdId,
        addr: u64,
        memory: Arc<dyn Memory>,
        access: Access,
    ) -> Result<RegionAttributes, VerbsError> {
        let mut all = self.context.0.lock_all();
        let draw = |engine: &mut Engine| {
            let region = engine.register(pd, addr, memory.clone(), access)?;
            Ok((region, region.lkey))
        };
        let copy = |engine: &mut Engine, key| engine.register_as(key, pd, addr, memory.clone(), access);
        let remove = |engine: &mut Engine, key| engine.deregister(key);
        Ok(draw_and_copy(all.engines(), draw, copy, remove)?)
    }

    /// Changes the protection domain, the memory or the rights of a region, which keeps its keys. After this
    /// returns, the engines do not touch memory that the region has lost.
    ///
    /// # Errors
    ///
    /// Fails like [`register`](Self::register), or while windows are bound over the region, which is
    /// unchanged then.
    pub fn change_region(self, lkey: LKey, change: RegionChange) -> Result<RegionAttributes, VerbsError> {
        let mut all = self.context.0.lock_all();
        let windows = windows_over(all.engines(), lkey);
        if windows > 0 {
            return Err(ChangeError::WindowsBound { windows }.into());
        }
        in_each(all.engines(), |engine| engine.change_region(lkey, change.clone()).map(drop))?;
        drop(all);
        self.query_region(lkey)
    }

    /// Revokes a region. After this returns, the engines do not touch its memory any more.
    ///
    /// # Errors
    ///
    /// Fails while windows are bound over the region.
    pub fn deregister(self, lkey: LKey) -> Result<(), VerbsError> {
        let mut all = self.context.0.lock_all();
        let windows = windows_over(all.engines(), lkey);
        if windows > 0 {
            return Err(DestroyError::WindowsBound { windows }.into());
        }
        Ok(in_each(all.engines(), |engine| engine.deregister(lkey))?)
    }

    /// Revokes a region even while windows are bound over it, which keep the memory.
    pub(in crate::verbs) fn release_region(self, lkey: LKey) -> Result<(), VerbsError> {
        let mut all = self.context.0.lock_all();
        Ok(in_each(all.engines(), |engine| engine.release_region(lkey))?)
    }

    /// Returns the attributes of a region.
    ///
    /// # Errors
    ///
    /// Fails if the key does not belong to a region.
    pub fn query_region(self, lkey: LKey) -> Result<RegionAttributes, VerbsError> {
        Ok(self.runtime().lock().nic.engine.query_region(lkey)?)
    }

    /// Allocates an unbound memory window.
    ///
    /// # Errors
    ///
    /// Fails if all keys are in use.
    pub fn allocate_window(self, pd: PdId, window_type: WindowType) -> Result<RKey, VerbsError> {
        let mut all = self.context.0.lock_all();
        let draw = |engine: &mut Engine| engine.allocate_window(pd, window_type).map(|key| (key, key));
        let copy = |engine: &mut Engine, key| engine.allocate_window_as(key, pd, window_type);
        let remove = |engine: &mut Engine, key| engine.deallocate_window(key);
        Ok(draw_and_copy(all.engines(), draw, copy, remove)?)
    }

    /// Binds a type 1 window and returns its new key; a length of 0 unbinds it.
    ///
    /// # Errors
    ///
    /// Fails if the region lacks a permission or belongs to another protection domain, or the window is of
    /// type 2.
    pub fn bind_window(self, pd: PdId, window: RKey, binding: &WindowBinding) -> Result<RKey, VerbsError> {
        bind_window(&mut self.context.0.lock_all(), pd, window, binding)
    }

    /// Deallocates a window, bound or not, by its key. The variant (the low 8 bits) of the key does not
    /// matter, because an application does not know the current variant after a failed bind.
    ///
    /// # Errors
    ///
    /// Fails if the key does not belong to a window.
    pub fn deallocate_window(self, window: RKey) -> Result<(), VerbsError> {
        let mut all = self.context.0.lock_all();
        Ok(in_each(all.engines(), |engine| {
            let window = engine.window_key(window).map_err(DestroyError::Key)?;
            engine.deallocate_window(window)
        })?)
    }
}
