//! The bytes that the ICRC covers, and the bits of them that count as ones.

use roce_document::explain::Explanation;

/// The cover of an ICRC, in bytes from the start of the frame. Empty if it cannot be determined.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Cover {
    /// First byte and end of each range.
    pub(super) ranges: Vec<(usize, usize)>,
    /// Each byte with bits that count as ones, and these bits.
    pub(super) masked: Vec<(usize, u8)>,
}

impl Cover {
    pub(super) fn of(explanation: &Explanation<'_>) -> Self {
        let mut cover = Self::default();
        for (part, _) in explanation.covered() {
            let end = part.start.saturating_add(part.len);
            match cover.ranges.last_mut() {
                Some((_, last)) if *last == part.start => *last = end,
                _ => cover.ranges.push((part.start, end)),
            }
            let mut bits = vec![0; part.len];
            part.header.mask_variant_fields(&mut bits);
            cover.masked.extend((part.start..).zip(bits).filter(|(_, bits)| *bits != 0));
        }
        cover
    }
}
