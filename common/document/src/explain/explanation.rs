//! The packet to explain: its bytes, their origin, and the bytes that the ICRC covers.

use roce_analysis::icrc::{Hints, Verdict, Wrong, examine};
use roce_analysis::walk::{Icrc, Part, Walk};
use roce_capture::LinkType;
use roce_packet::IP_PROTOCOL_UDP;
use roce_packet::outer::IcrcForm;

use crate::first_header::FirstHeader;

/// A packet to explain, the input of the text and JSON output.
#[derive(Debug)]
pub struct Explanation<'a> {
    /// The bytes that were given or captured.
    pub bytes: &'a [u8],
    /// Where they come from.
    pub origin: Origin<'a>,
    /// Their headers.
    pub walk: Walk<'a>,
}

/// The origin of the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin<'a> {
    /// Hexadecimal digits.
    Digits {
        /// The header that they begin with.
        from: FirstHeader,
        /// Whether that header was detected from the bytes.
        was_guessed: bool,
    },
    /// A capture file, whose link type determines the first header.
    Capture {
        /// The name of the file.
        file: &'a str,
        /// The number of the packet in the file, from 1.
        number: u64,
        /// The link type of the packet.
        link_type: LinkType,
    },
}

impl Explanation<'_> {
    /// Returns the result of the ICRC check; `None` without a BTH.
    #[must_use]
    pub fn icrc(&self) -> Option<Icrc> {
        self.walk.packet().map(|packet| packet.icrc)
    }

    /// Returns a wrong ICRC with the mistakes that lead to it.
    #[must_use]
    pub fn wrong_icrc(&self) -> Option<Wrong> {
        if !self.icrc()?.is_bad() {
            return None;
        }
        match examine(&self.walk.outer, &Hints::default()) {
            Verdict::Wrong(wrong) => Some(wrong),
            Verdict::Correct | Verdict::Unchecked(_) => None,
        }
    }

    /// Returns the bytes that the CRC covers before those of [`covered`](Self::covered): ones that replace
    /// the LRH. Native InfiniBand without a GRH has none, because the ICRC covers its LRH.
    #[must_use]
    pub fn ones(&self) -> &'static [u8] {
        let outer = &self.walk.outer;
        if outer.is_native_infiniband() && outer.network.is_none() { &[] } else { &[0xff; 8] }
    }

    /// Returns the parts that the ICRC covers, each with its masked bytes. Returns no parts if the ICRC
    /// cannot be computed.
    #[must_use]
    pub fn covered(&self) -> Vec<(&Part, Vec<u8>)> {
        let Some(Icrc::Checked(_, form)) = self.icrc() else { return Vec::new() };
        let outer = &self.walk.outer;
        let extensions = outer.udp_offset - outer.extensions_len.min(outer.udp_offset)..outer.udp_offset;
        let is_covered = |part: &&Part| {
            let is_extension = form == IcrcForm::Plain && extensions.contains(&part.start);
            !part.is_outer
                && part.start >= outer.network_offset
                && !is_extension
                && !matches!(part.header.name, "ICRC" | "VCRC" | "Telemetry" | "trailer")
        };
        let masked = |part| {
            let mut bytes = self.walk.part_bytes(part).to_vec();
            part.header.mask_variant_fields(&mut bytes);
            if form == IcrcForm::Plain && part.start == outer.network_offset {
                leave_out(outer.extensions_len, &mut bytes);
            }
            (part, bytes)
        };
        self.walk.parts.iter().filter(is_covered).map(masked).collect()
    }
}

/// Changes an IP header to that of a packet without these bytes of options and extension headers.
fn leave_out(extensions_len: usize, header: &mut [u8]) {
    let (lengths, next) = match header {
        _ if extensions_len == 0 => return,
        [first, ..] if *first >> 4 == 4 => {
            *first = 0x45;
            (2, 9)
        }
        _ => (4, 6),
    };
    if let Some([high, low]) = header.get_mut(lengths..lengths + 2) {
        let len = u16::from_be_bytes([*high, *low]).saturating_sub(extensions_len as u16);
        [*high, *low] = len.to_be_bytes();
    }
    if let Some(next) = header.get_mut(next) {
        *next = IP_PROTOCOL_UDP;
    }
}

/// Returns whether a byte of a part has bits that are masked for the ICRC.
#[must_use]
pub fn is_masked(part: &Part, index: usize) -> bool {
    part.header.fields.iter().any(|field| field.variant && field.byte_range().contains(&index))
}
