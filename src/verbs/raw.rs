//! Verbs on identifiers, for callers that manage their objects themselves, such as a C library.
//!
//! The handles of [`verbs`](super) keep their dependencies alive, so no object is destroyed too early. The
//! verbs of this module do not. Destroying an object in use fails without an effect, as with libibverbs:
//! [`VerbsError::errno`](super::VerbsError::errno) is `EBUSY`. Identifiers are valid only in their own
//! context.
//!
//! ```
//! # use roce::verbs::example::ends;
//! # let (near, _far) = ends()?;
//! use roce::verbs::*;
//! let raw = near.context.raw();
//! let pd = raw.allocate_pd()?;
//! let srq = raw.create_srq(pd, 64, 1)?;
//! assert_eq!(raw.deallocate_pd(pd).unwrap_err().errno(), 16, "EBUSY");
//! raw.destroy_srq(srq)?;
//! raw.deallocate_pd(pd)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod connections;
pub mod listing;
mod shared;
mod xrc;

use roce_packet::Qpn;
use roce_transport::{CqId, SrqId};

use super::Context;
use crate::runtime::Runtime;

pub use connections::{RawConnect, RawRequest};
pub(super) use shared::bind_window;

/// The verbs of a context on identifiers, see the [module](self).
#[derive(Clone, Copy, Debug)]
pub struct Raw<'a> {
    pub(super) context: &'a Context,
}

impl Context {
    /// Returns the verbs on identifiers.
    #[must_use]
    pub const fn raw(&self) -> Raw<'_> {
        Raw { context: self }
    }
}

/// Engines.
impl<'a> Raw<'a> {
    /// Returns engine 0.
    fn runtime(self) -> &'a Runtime {
        self.context.runtime()
    }

    /// Returns the engine that has this completion queue.
    #[inline]
    pub(super) fn of_cq(self, cq: CqId) -> &'a Runtime {
        self.context.of_slot(cq.slot())
    }

    /// Returns the engine that has this shared receive queue.
    #[inline]
    pub(super) fn of_srq(self, srq: SrqId) -> &'a Runtime {
        self.context.of_slot(srq.slot())
    }

    /// Returns the engine that has this queue pair.
    #[inline]
    pub(super) fn of_qp(self, qpn: Qpn) -> &'a Runtime {
        self.context.of_qp(qpn)
    }
}
