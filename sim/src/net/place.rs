//! The location of an element in the parts of a network.

/// The location of an element: its part of the network, and its number in that part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) part: u32,
    pub(super) index: u32,
}
