//! One end of a pair: an engine with the objects that a test needs.

use std::net::IpAddr;
use std::sync::Arc;

use roce_transport::{
    Access, CqId, Engine, EngineConfig, Event, Memory, PdId, RegionAttributes, RegisterError, Sge,
    WordMemory, XrcdId,
};

/// The first address of a host's memory.
pub const MEMORY_BASE: u64 = 0x10_0000;
/// The default size of a host's memory in bytes.
pub const MEMORY_LEN: usize = 1 << 20;

/// One of the two hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Side {
    /// The first host, usually the requester.
    A,
    /// The second host.
    B,
}

impl Side {
    /// Returns the other side.
    #[must_use]
    pub const fn other(self) -> Self {
        match self {
            Self::A => Self::B,
            Self::B => Self::A,
        }
    }
}

/// An engine with one protection domain, one completion queue and one region.
#[derive(Debug)]
pub struct Host {
    /// The engine, for calls that have no shorthand here.
    pub engine: Engine,
    /// The address.
    pub address: IpAddr,
    /// The protection domain.
    pub pd: PdId,
    /// The completion queue for both directions of all queue pairs.
    pub cq: CqId,
    /// The region, which starts at [`MEMORY_BASE`] and grants all access rights.
    pub region: RegionAttributes,
    memory: Arc<WordMemory>,
    /// The domain of XRC targets, allocated for the first of them.
    xrcd: Option<XrcdId>,
    /// All events so far.
    pub events: Vec<Event>,
}

impl Host {
    pub(super) fn new(config: EngineConfig, address: IpAddr, memory_len: usize) -> Self {
        let mut engine = Engine::new(config);
        let pd = engine.allocate_pd().expect("a new engine has room for a protection domain");
        let cq = engine.create_cq(1 << 14).expect("a new engine has room for a completion queue");
        let memory = Arc::new(WordMemory::new(memory_len));
        let access = Access::LOCAL_WRITE | Access::REMOTE | Access::MW_BIND;
        let region = engine
            .register(pd, MEMORY_BASE, memory.clone(), access)
            .expect("a new engine has room for a region");
        Self { engine, address, pd, cq, region, memory, xrcd: None, events: Vec::new() }
    }

    /// Returns the XRC domain of the host's targets.
    ///
    /// # Panics
    ///
    /// Panics if the engine has no room for the domain.
    #[track_caller]
    pub fn xrcd(&mut self) -> XrcdId {
        let engine = &mut self.engine;
        *self.xrcd.get_or_insert_with(|| engine.allocate_xrcd().expect("there is room for an XRC domain"))
    }

    /// Returns the key that the peer uses to access the region.
    #[must_use]
    pub fn rkey(&self) -> roce_transport::RKey {
        self.region.rkey
    }

    /// Registers the memory of the region once more, with these access rights.
    ///
    /// # Errors
    ///
    /// Returns the error of the engine.
    pub fn register(&mut self, access: Access) -> Result<RegionAttributes, RegisterError> {
        self.engine.register(self.pd, MEMORY_BASE, self.memory.clone(), access)
    }

    /// Returns a range of the region as a scatter/gather element of a work request.
    #[must_use]
    pub fn memory_range(&self, offset: usize, len: usize) -> Sge {
        let length = u32::try_from(len).expect("test messages are below 4 GiB");
        Sge { addr: MEMORY_BASE + offset as u64, length, lkey: self.region.lkey }
    }

    /// Copies bytes out of the region.
    #[must_use]
    pub fn read_memory(&self, offset: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.memory.read(offset, &mut bytes).expect("inside the region");
        bytes
    }

    /// Copies bytes into the region.
    pub fn write_memory(&mut self, offset: usize, bytes: &[u8]) {
        self.memory.write(offset, bytes).expect("inside the region");
    }
}
