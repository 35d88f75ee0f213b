//! Protection domains, memory regions and memory windows.

use std::ops::Range;
use std::sync::Arc;

use roce_transport::{
    Access, KeyError, LKey, Memory, OutOfBounds, PdId, PostError, RKey, RegionAttributes, Sge, WindowBinding,
    WindowType,
};

use super::raw::bind_window;
use super::{Context, RemoteMemory, SharedMemory, VerbsError};
use crate::device::fork::Mutex;

/// A protection domain. Queue pairs can only access memory of their own domain.
#[derive(Clone, Debug)]
pub struct ProtectionDomain(Arc<PdInner>);

#[derive(Debug)]
struct PdInner {
    context: Context,
    id: PdId,
}

impl Drop for PdInner {
    fn drop(&mut self) {
        let removed = self.context.raw().deallocate_pd(self.id);
        debug_assert!(removed.is_ok(), "members keep their protection domain alive: {removed:?}");
    }
}

impl Context {
    /// Allocates a protection domain.
    ///
    /// # Errors
    ///
    /// Fails if the configured number of protection domains is in use.
    pub fn alloc_pd(&self) -> Result<ProtectionDomain, VerbsError> {
        ProtectionDomain::new(self)
    }
}

impl ProtectionDomain {
    fn new(context: &Context) -> Result<Self, VerbsError> {
        let id = context.raw().allocate_pd()?;
        Ok(Self(Arc::new(PdInner { context: context.clone(), id })))
    }

    pub(crate) fn id(&self) -> PdId {
        self.0.id
    }

    /// Returns the context that it was created in.
    #[must_use]
    pub fn context(&self) -> &Context {
        &self.0.context
    }

    /// Allocates and registers `len` zero bytes.
    ///
    /// # Errors
    ///
    /// Fails if the flags contradict each other, `len` is 0 or more than the system provides, or all keys are
    /// in use.
    pub fn allocate(&self, len: usize, access: Access) -> Result<MemoryRegion, VerbsError> {
        self.register(Arc::new(SharedMemory::try_new(len)?), access)
    }

    /// Registers existing memory; the same memory may be registered several times. The virtual address of the
    /// region is random, so it reveals nothing about this process to peers.
    ///
    /// # Errors
    ///
    /// Fails if the flags contradict each other, the memory is empty, or all keys are in use.
    pub fn register(&self, memory: Arc<SharedMemory>, access: Access) -> Result<MemoryRegion, VerbsError> {
        let runtime = self.0.context.runtime();
        // A page in the lower half of the address space, like the addresses of a process.
        let addr = runtime.random_u64() >> 18 << 12 & 0x7fff_ffff_f000;
        let attributes = self.0.context.raw().register(self.0.id, addr, memory.clone(), access)?;
        let region = RegionInner { pd: self.clone(), memory, attributes };
        Ok(MemoryRegion(Arc::new(region)))
    }

    /// Allocates an unbound memory window.
    ///
    /// # Errors
    ///
    /// Fails if all keys are in use.
    pub fn alloc_window(&self, window_type: WindowType) -> Result<MemoryWindow, VerbsError> {
        let rkey = self.0.context.raw().allocate_window(self.0.id, window_type)?;
        Ok(MemoryWindow { pd: self.clone(), rkey: Mutex::new(rkey) })
    }
}

/// Registered memory. Dropping the last handle revokes the keys at once, even while memory windows are bound
/// over the region. Such windows keep the memory and permit access to their part of it until they are rebound
/// or dropped.
///
/// ```
/// # use roce::verbs::{example::ends, *};
/// # let (near, _far) = ends()?;
/// let pd = near.context.alloc_pd()?;
/// let region = pd.allocate(4096, Access::LOCAL_WRITE | Access::REMOTE_READ)?;
/// region.write(100, b"hello")?;
/// // What a peer needs for a READ of these bytes.
/// let hello = region.remote(100..105)?;
/// // The same memory under another key, without any right for peers.
/// let private = pd.register(region.memory().clone(), Access::LOCAL_WRITE)?;
/// let mut text = [0; 5];
/// private.read(100, &mut text)?;
/// assert_eq!(&text, b"hello");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct MemoryRegion(Arc<RegionInner>);

#[derive(Debug)]
struct RegionInner {
    pd: ProtectionDomain,
    memory: Arc<SharedMemory>,
    attributes: RegionAttributes,
}

impl Drop for RegionInner {
    fn drop(&mut self) {
        // Windows that are bound over the region keep the memory; nothing else permits access to it from now
        // on.
        let released = self.pd.0.context.raw().release_region(self.attributes.lkey);
        debug_assert!(released.is_ok(), "the key of a region is its own until it goes: {released:?}");
    }
}

impl MemoryRegion {
    /// Returns the key for local work requests.
    #[must_use]
    pub fn lkey(&self) -> LKey {
        self.0.attributes.lkey
    }

    /// Returns the key for peers.
    #[must_use]
    pub fn rkey(&self) -> RKey {
        self.0.attributes.rkey
    }

    /// Returns the first virtual address; 0 for a zero-based region.
    #[must_use]
    pub fn addr(&self) -> u64 {
        self.0.attributes.addr
    }

    /// Returns the length in bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.attributes.len
    }

    /// Always returns `false`: a region has at least one byte.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the registered memory.
    #[must_use]
    pub fn memory(&self) -> &Arc<SharedMemory> {
        &self.0.memory
    }

    /// Copies bytes out of the region. If a peer writes concurrently, the copy may contain old and new bytes.
    ///
    /// # Errors
    ///
    /// Fails if the range exceeds the region; `out` is unchanged then.
    pub fn read(&self, offset: usize, out: &mut [u8]) -> Result<(), OutOfBounds> {
        self.0.memory.read(offset, out)
    }

    /// Copies bytes into the region.
    ///
    /// # Errors
    ///
    /// Fails if the range exceeds the region; nothing is written then.
    pub fn write(&self, offset: usize, data: &[u8]) -> Result<(), OutOfBounds> {
        self.0.memory.write(offset, data)
    }

    /// Returns the data that a peer needs for READs and WRITEs of a part of the region. The application sends
    /// them by any means.
    ///
    /// # Errors
    ///
    /// Fails if the range exceeds the region.
    pub fn remote(&self, range: Range<usize>) -> Result<RemoteMemory, OutOfBounds> {
        let whole = RemoteMemory { addr: self.addr(), len: self.len() as u64, rkey: self.rkey().into() };
        whole.slice(range.start as u64..range.end as u64)
    }

    /// Returns a part of the region as an element of a work request.
    ///
    /// If the range exceeds the region, posting the request fails with [`PostError::OutsideRegion`]. Elements
    /// that come from elsewhere or were changed are checked when the request is executed, as with libibverbs:
    /// such a request is posted and completes with
    /// [`LocalProtectionError`](roce_transport::WcStatus::LocalProtectionError).
    #[must_use]
    pub fn element(&self, range: Range<usize>) -> Sge {
        if range.start.max(range.end) > self.len() {
            return Sge { lkey: self.lkey(), ..OUTSIDE };
        }
        let length = u32::try_from(range.len()).unwrap_or(u32::MAX);
        Sge { addr: self.addr().wrapping_add(range.start as u64), length, lkey: self.lkey() }
    }
}

/// The element for a range that exceeds its region. Its end is beyond the address space, so no region
/// contains it, and it is longer than any message. Posting recognizes it without a lookup of its key; the
/// address is one that an application does not write by itself.
const OUTSIDE: Sge = Sge { addr: 0xffff_ffff_aaaa_aaaa, length: u32::MAX, lkey: LKey(0) };

/// Refuses elements for ranges that exceed their region.
pub(super) fn check_elements(elements: &[Sge]) -> Result<(), PostError> {
    let is_outside = |element: &Sge| Sge { lkey: OUTSIDE.lkey, ..*element } == OUTSIDE;
    if elements.iter().any(is_outside) { Err(PostError::OutsideRegion) } else { Ok(()) }
}

/// A memory window: a part of a region with its own key.
///
/// ```
/// # use roce::verbs::{example::ends, *};
/// # let (near, _far) = ends()?;
/// let pd = near.context.alloc_pd()?;
/// let region = pd.allocate(4096, Access::LOCAL_WRITE | Access::MW_BIND)?;
/// let window = pd.alloc_window(WindowType::Type1)?;
/// // Peers may read these hundred bytes, until the window is bound anew or dropped.
/// let access = Access::REMOTE_READ;
/// let rkey = window.bind(&WindowBinding { region: region.lkey(), addr: region.addr(), len: 100, access })?;
/// assert_eq!(window.rkey(), rkey);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct MemoryWindow {
    pd: ProtectionDomain,
    rkey: Mutex<RKey>,
}

impl Drop for MemoryWindow {
    fn drop(&mut self) {
        // A work request may have changed the variant of the key without a call of `note_bound`; the variant
        // does not count.
        let removed = self.pd.0.context.raw().deallocate_window(self.rkey());
        debug_assert!(removed.is_ok(), "the number of a window is its own until it goes: {removed:?}");
    }
}

impl MemoryWindow {
    /// Returns the current key, which is valid once the window is bound.
    #[must_use]
    pub fn rkey(&self) -> RKey {
        *self.rkey.lock()
    }

    /// Binds a type 1 window and returns its new key; a length of 0 unbinds it.
    ///
    /// # Errors
    ///
    /// Fails if the region lacks a permission or the window is of type 2.
    pub fn bind(&self, binding: &WindowBinding) -> Result<RKey, VerbsError> {
        // The guard of the engines is dropped last, because the events that it delivers may use this window.
        let mut all = self.pd.0.context.0.lock_all();
        let mut rkey = self.rkey.lock();
        *rkey = bind_window(&mut all, self.pd.id(), *rkey, binding)?;
        Ok(*rkey)
    }

    /// Records the key that a bind work request ([`roce_transport::SendOp::BindWindow`]) gave a type 2
    /// window, so that it can be freed.
    ///
    /// # Errors
    ///
    /// Fails if the key does not belong to this window; the recorded key is unchanged then.
    pub fn note_bound(&self, new_rkey: RKey) -> Result<(), VerbsError> {
        let mut rkey = self.rkey.lock();
        // A bind changes only the variant, the low 8 bits.
        if new_rkey.0 >> 8 != rkey.0 >> 8 {
            return Err(VerbsError::Key(KeyError::Unknown));
        }
        *rkey = new_rkey;
        Ok(())
    }
}
