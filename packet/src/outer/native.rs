//! Native InfiniBand, which has a local route header instead of Ethernet, and the records of ERF files, which
//! contain Ethernet frames or native InfiniBand.

use super::tables::ERF;
use super::walk::{Next, Step, Walk};
use super::{Cut, Foreign, Outer};
use crate::error::{Layer, ParseError, ParseErrorKind};
use crate::grh::Grh;
use crate::lrh::{LRH, Lrh, LrhView};

/// Length of the header of a record, without extension headers.
const ERF_LEN: usize = 16;
const ERF_EXTENSION_LEN: usize = 8;

impl Walk<'_> {
    /// Passes the header of an ERF record, its extension headers and the padding before an Ethernet header.
    pub(super) fn erf(&mut self) -> Step {
        const MORE: u8 = 0x80;
        const INFINIBAND: u8 = 21;
        /// Bytes between the header and an Ethernet frame.
        const PADDING: usize = 2;

        let [.., kind, _, _, _, _, _, _, _] = *self.peek::<ERF_LEN>()?;
        self.at = ERF_LEN;
        let mut extends = kind & MORE != 0;
        while extends {
            let [first, ..] = *self.peek::<ERF_EXTENSION_LEN>()?;
            self.at = self.at.saturating_add(ERF_EXTENSION_LEN);
            extends = first & MORE != 0;
        }
        match kind & !MORE {
            // Ethernet, and the same with a color, a color and a channel, or a color and a hash.
            2 | 11 | 16 | 20 => {
                self.peek::<PADDING>()?;
                self.at = self.at.saturating_add(PADDING);
                self.outer.link_end = self.at;
                Some(Next::Ethernet)
            }
            INFINIBAND => {
                self.outer.link_end = self.at;
                self.lrh()
            }
            _ => {
                self.outer.link_end = self.at;
                self.foreign(Foreign::Tunnel(&ERF))
            }
        }
    }

    /// Decodes an LRH and, if it announces one, the GRH behind it.
    pub(super) fn lrh(&mut self) -> Step {
        let base = self.at;
        self.peek::<{ Lrh::LEN }>()?;
        let (view, _) = LrhView::from_prefix(self.rest()).ok()?;
        let len = view.packet_len();
        self.outer.lrh = Some(view);
        self.outer.network_offset = base;
        self.push(&LRH, Lrh::LEN)?;
        if let Err(error) = view.check() {
            self.note(Err(error), base);
            return None;
        }
        let next = view.next_header();
        if next != Lrh::NEXT_BTH && next != Lrh::NEXT_GRH {
            return self.foreign(Foreign::Tunnel(&LRH));
        }
        let headers = if next == Lrh::NEXT_GRH { Lrh::LEN.saturating_add(Grh::LEN) } else { Lrh::LEN };
        let Some(transport_len) = len.checked_sub(headers) else {
            self.note(Err(bad_length(Layer::Lrh, 4, headers, len)), base);
            return None;
        };
        self.claim(base, len);
        if next == Lrh::NEXT_BTH {
            self.finish(transport_len);
            return None;
        }
        if self.rest().len() < Grh::LEN {
            self.without_grh(base, len);
            return None;
        }
        let _ = self.grh();
        if self.outer.transport.is_some() && self.outer.transport_len != transport_len {
            let error = bad_length(Layer::Grh, 4, transport_len, self.outer.transport_len);
            self.note(Err(error), base.saturating_add(Lrh::LEN));
        }
        None
    }

    /// Ends the decoding before a GRH of which only the first bytes are present. The LRH says that the packet
    /// is native InfiniBand nevertheless.
    fn without_grh(&mut self, base: usize, len: usize) {
        let end = base.saturating_add(len);
        let outer = &mut self.outer;
        outer.transport_offset = self.at;
        outer.transport_len = end.saturating_sub(self.at);
        outer.transport = Some(&[]);
        outer.cut = Some(if self.wire_len <= outer.bytes.len() { Cut::Mirror } else { Cut::Capture });
    }
}

fn bad_length(layer: Layer, offset: usize, need: usize, have: usize) -> ParseError {
    ParseError { layer, kind: ParseErrorKind::BadLength, offset, need, have }
}

impl Outer<'_> {
    /// Returns whether this is native InfiniBand, which has an LRH instead of Ethernet.
    #[must_use]
    pub const fn is_native_infiniband(&self) -> bool {
        self.lrh.is_some()
    }
}
