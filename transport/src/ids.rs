//! Identifiers of the objects that an engine holds.

use core::fmt;

use crate::slot::ProcessSlot;

macro_rules! object_id {
    ($(#[$meta:meta])* $name:ident, $label:literal) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub(crate) u32);

        impl $name {
            /// Returns the index in the engine's table. It is stable while the object exists, and then
            /// reused.
            #[must_use]
            pub const fn index(self) -> usize {
                self.0 as usize
            }

            pub(crate) fn from_index(index: usize) -> Self {
                Self(u32::try_from(index).unwrap_or(u32::MAX))
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(formatter, concat!($label, " {}"), self.0)
            }
        }
    };
}

/// Defines the identifier of a queue. Like a queue pair number it begins with the process slot of its engine
/// ([`EngineConfig::process_slot`](crate::EngineConfig::process_slot)), so identifiers of several engines
/// differ.
macro_rules! queue_id {
    ($(#[$meta:meta])* $name:ident, $label:literal) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(u32);

        impl $name {
            /// Returns the index in the engine's table. It is stable while the object exists, and then
            /// reused.
            #[inline]
            #[must_use]
            pub const fn index(self) -> usize {
                (self.0 & QUEUE_MASK) as usize
            }

            /// Returns the process slot of the engine that contains the queue.
            #[inline]
            #[must_use]
            pub const fn slot(self) -> ProcessSlot {
                match ProcessSlot::new((self.0 >> QUEUE_BITS) as u16) {
                    Some(slot) => slot,
                    // Unreachable: the identifier was made from a valid slot.
                    None => ProcessSlot::NONE,
                }
            }

            pub(crate) fn new(slot: ProcessSlot, index: usize) -> Self {
                debug_assert!(index <= QUEUE_MASK as usize, "the settings allow no more than MOST_QUEUES");
                Self(u32::from(slot.get()) << QUEUE_BITS | index as u32 & QUEUE_MASK)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(formatter, concat!($label, " {}"), self.0 & QUEUE_MASK)
            }
        }
    };
}

/// Bits of the index of a queue. The 10 bits above them are the slot.
const QUEUE_BITS: u32 = 22;
const _: () = assert!((ProcessSlot::MAX.get() as u32) < 1 << (u32::BITS - QUEUE_BITS));
const QUEUE_MASK: u32 = (1 << QUEUE_BITS) - 1;
/// Maximum number of queues of one kind in an engine.
pub(crate) const MOST_QUEUES: usize = 1 << QUEUE_BITS;

object_id!(
    /// A protection domain: a queue pair cannot use the memory of another domain.
    PdId, "protection domain"
);
queue_id!(
    /// A completion queue.
    CqId, "completion queue"
);
queue_id!(
    /// A shared receive queue.
    SrqId, "shared receive queue"
);

object_id!(
    /// An XRC domain: its targets receive into its shared receive queues.
    XrcdId, "XRC domain"
);

macro_rules! memory_key {
    ($(#[$meta:meta])* $name:ident) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u32);

        impl $name {
            /// Returns the key with the same table entry and the next variant, as `ibv_inc_rkey` does for a
            /// type 2 window before it is bound again. The low 8 bits belong to the owner of the key.
            #[must_use]
            pub const fn next_variant(self) -> Self {
                Self((self.0 & 0xffff_ff00) | (self.0.wrapping_add(1) & 0xff))
            }
        }

        impl From<u32> for $name {
            fn from(key: u32) -> Self {
                Self(key)
            }
        }

        impl From<$name> for u32 {
            fn from(key: $name) -> Self {
                key.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(formatter, "{:#010x}", self.0)
            }
        }
    };
}

memory_key!(
    /// The key for local memory in work requests: 24 bits of entry, 8 bits of variant.
    LKey
);
memory_key!(
    /// The key that a peer sends for remote access: 24 bits of entry, 8 bits of variant.
    RKey
);
