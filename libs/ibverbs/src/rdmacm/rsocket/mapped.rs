//! The memory that an rsocket has announced to its peer.

use std::collections::VecDeque;

use super::stream::Stream;
use super::wire::Mapping;
use crate::abi::ibv_mr;
use crate::answer::Errno;
use crate::context::Pointer;
use crate::memory::ibv_dereg_mr;

/// The mappings of an rsocket.
#[derive(Default)]
pub(super) struct Mappings {
    pub(super) mapped: Vec<Mapped>,
    /// Mappings that the peer does not know yet, by their indexes at the peer.
    pub(super) pending: VecDeque<(u16, Mapping)>,
}

pub(super) struct Mapped {
    pub(super) address: usize,
    pub(super) length: usize,
    pub(super) region: Pointer<ibv_mr>,
    /// The index of its entry at the peer; `None` if the peer may not write it.
    pub(super) index: Option<u16>,
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: the region was registered for this object alone.
        unsafe { ibv_dereg_mr(self.region.0) };
    }
}

impl Mappings {
    /// Returns whether the peer must be told about a mapping.
    pub(super) fn is_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    /// Announces mappings to the peer while credits last.
    pub(super) fn announce(&mut self, stream: &mut Stream) -> Result<(), Errno> {
        while stream.can_announce() {
            let Some((index, mapping)) = self.pending.pop_front() else { break };
            stream.announce(index, mapping)?;
        }
        Ok(())
    }

    pub(super) fn free_index(&self, most: u32) -> Option<u16> {
        let is_used = |index: &u16| self.mapped.iter().any(|known| known.index == Some(*index));
        (0..u16::try_from(most).unwrap_or(u16::MAX)).find(|index| !is_used(index))
    }
}
