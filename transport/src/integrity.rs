//! The result of the ICRC check.

/// The confidence in a correct ICRC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Integrity {
    /// All inputs were known, or the device vouches for the packet: 32 bits are checked.
    Known,
    /// The Identification was not seen, and is assumed to be zero, as in our own peers: 32 bits are checked.
    Zero,
    /// The Identification is one that segments of our own peers' superpackets have: at least 25 bits are
    /// checked. A peer that counts also sends such values, so this does not identify the sender.
    Segment,
    /// The Identification was not seen, and was recovered from the ICRC: 16 bits are checked.
    Recovered,
}
