//! The result of the check of an ICRC.

/// How well the ICRC agrees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Integrity {
    /// With everything known, or the device vouches for it: 32 bits are checked.
    Known,
    /// With an Identification of zero, which was not seen and our own peers send: 32 bits are checked.
    Zero,
    /// With an Identification that segments of our own peers' superpackets have: at least 25 bits are checked. Those of a peer
    /// that counts are accepted here as well, so this does not identify the sender.
    Segment,
    /// With one of the other values of an Identification that was not seen: 16 bits are checked.
    Recovered,
}
