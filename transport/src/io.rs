//! The interface between the engine and the device that moves its datagrams.
//!
//! A device hands in [`Received`] datagrams and lends a [`TxSlot`] for each one that leaves. Neither
//! side knows what the other is: a socket, a ring shared with a kernel, or a link in a simulator.

use roce_packet::Path;

/// What is known about the IPv4 Identification of a received datagram. The ICRC covers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Identification {
    /// The device saw the IP header.
    Known {
        /// The Identification field.
        identification: u16,
        /// The don't-fragment bit.
        dont_fragment: bool,
    },
    /// The device did not see the header (a UDP socket). `hint` is the likeliest value: the index of the segment in what
    /// the device received as one, 0 for a single datagram. The engine accepts any position in a superpacket, since
    /// a network may split it, and otherwise recovers the value from the ICRC itself.
    Unknown {
        /// The value to try first.
        hint: u16,
    },
    /// The sender wrote no ICRC ([`Batch::UNSEALED`]), and none is compared. Only for networks that exist in
    /// memory and keep damage and datagrams apart themselves.
    Unsealed,
}

impl Identification {
    /// For IPv6 and RoCE v1, which have no such field.
    pub const ABSENT: Self = Self::Known { identification: 0, dont_fragment: true };
}

/// One datagram from BTH to ICRC as a device received it.
#[derive(Clone, Copy, Debug)]
pub struct Received<'a> {
    /// The path as the sender wrote it (not reversed).
    pub path: Path,
    /// What is known about the IPv4 Identification.
    pub identification: Identification,
    /// The first bytes. All headers lie in this slice.
    pub head: &'a [u8],
    /// The rest, empty for most devices. AF_XDP splits frames over 3,840 bytes.
    pub tail: &'a [u8],
}

/// What stands for the payload, padding and ICRC of an implied datagram: the largest path MTU and 3 + 4 bytes.
static IMPLIED: [u8; 4096 + 8] = [0; 4096 + 8];

impl<'a> Received<'a> {
    /// A datagram of which only the headers exist: `implied` further bytes, payload to ICRC, are taken for
    /// zeros, and nothing compares an ICRC. More than the largest path MTU can need are left out, so that such a datagram
    /// is refused for its length.
    ///
    /// Together with [`Batch::UNSEALED`] and a [`Memory`](crate::Memory) that copies nothing, an engine moves
    /// datagrams without their payload: everything else is as it is with all bytes.
    #[must_use]
    pub fn implied(path: Path, headers: &'a [u8], implied: usize) -> Self {
        let tail = IMPLIED.get(..implied).unwrap_or(&IMPLIED);
        Self { path, identification: Identification::Unsealed, head: headers, tail }
    }
}

/// A datagram that the engine wrote into a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// Where it goes.
    pub path: Path,
    /// Bytes from BTH to ICRC inclusive.
    pub len: usize,
    /// The IPv4 Identification that its ICRC was computed for.
    pub identification: u16,
}

/// The superpacket that a device is filling: decides which datagram may join it.
///
/// Segmentation offload splits one buffer into datagrams of equal size, of which only the last may
/// be shorter, and numbers their Identification from zero where a header is written for each.
#[derive(Clone, Copy, Debug, Default)]
pub struct Batch {
    open: Option<OpenBatch>,
    unsealed: bool,
}

#[derive(Clone, Copy, Debug)]
struct OpenBatch {
    path: Path,
    segment_len: usize,
    segments: u16,
    len: usize,
    max_segments: u16,
    max_len: usize,
}

impl Batch {
    /// No superpacket is open: every datagram stands alone.
    pub const NONE: Self = Self { open: None, unsealed: false };
    /// Every datagram is separate, and its ICRC is not checked: zero is written in its place.
    pub const UNSEALED: Self = Self { open: None, unsealed: true };

    /// Whether the ICRC is left out.
    #[inline]
    pub(crate) const fn is_unsealed(&self) -> bool {
        self.unsealed
    }

    /// The Identification that a datagram of `len` bytes on `path` gets: its index if it may join.
    #[must_use]
    pub fn identification(&self, path: &Path, len: usize) -> u16 {
        match &self.open {
            Some(open) if open.accepts(path, len) => open.segments,
            _ => 0,
        }
    }

    /// Whether `transmit` continues this superpacket. A datagram sealed for another Identification
    /// than its index never does.
    #[must_use]
    pub fn accepts(&self, transmit: &Transmit) -> bool {
        self.open.as_ref().is_some_and(|open| {
            open.accepts(&transmit.path, transmit.len) && open.segments == transmit.identification
        })
    }

    /// Starts a superpacket with `transmit` as its first segment.
    #[must_use]
    pub fn start(transmit: &Transmit, max_segments: u16, max_len: usize) -> Self {
        if transmit.identification != 0 {
            return Self::NONE;
        }
        Self {
            unsealed: false,
            open: Some(OpenBatch {
                path: transmit.path,
                segment_len: transmit.len,
                segments: 1,
                len: transmit.len,
                max_segments,
                max_len,
            }),
        }
    }

    /// Adds `transmit`, which [`Self::accepts`] accepted. A shorter segment closes the superpacket.
    pub fn push(&mut self, transmit: &Transmit) {
        if let Some(open) = &mut self.open {
            open.segments += 1;
            open.len += transmit.len;
            if transmit.len < open.segment_len {
                self.open = None;
            }
        }
    }
}

impl OpenBatch {
    fn accepts(&self, path: &Path, len: usize) -> bool {
        len <= self.segment_len
            && self.segments < self.max_segments
            && self.len + len <= self.max_len
            && *path == self.path
    }
}

/// Room for one datagram, lent by a device.
#[derive(Debug)]
pub struct TxSlot<'a> {
    /// Where BTH to ICRC go. The device guarantees at least the largest datagram of its capability
    /// record.
    pub buffer: &'a mut [u8],
    /// The superpacket that this datagram would join.
    pub batch: Batch,
}

impl<'a> TxSlot<'a> {
    /// A slot outside any superpacket.
    #[must_use]
    pub fn new(buffer: &'a mut [u8]) -> Self {
        Self { buffer, batch: Batch::NONE }
    }
}
