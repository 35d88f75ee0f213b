//! Identifiers of the objects that an engine holds.

use core::fmt;

macro_rules! object_id {
    ($(#[$meta:meta])* $name:ident, $label:literal) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub(crate) u32);

        impl $name {
            /// The position in the engine's table: stable while the object lives, used again later.
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

object_id!(
    /// A protection domain: queue pairs cannot use the memory of another domain.
    PdId, "protection domain"
);
object_id!(
    /// A completion queue.
    CqId, "completion queue"
);
object_id!(
    /// A shared receive queue.
    SrqId, "shared receive queue"
);

object_id!(
    /// An XRC domain: its target queue pairs and its shared receive queues go together.
    XrcdId, "XRC domain"
);

macro_rules! memory_key {
    ($(#[$meta:meta])* $name:ident) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(pub u32);

        impl $name {
            /// The same table entry with the next variant: what `ibv_inc_rkey` makes for a type 2
            /// window before it is bound again. The low 8 bits belong to the owner of the key.
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
    /// The key that work requests use for local memory: 24 bits of entry, 8 bits of variant.
    LKey
);
memory_key!(
    /// The key that a peer presents for remote access: 24 bits of entry, 8 bits of variant.
    RKey
);
