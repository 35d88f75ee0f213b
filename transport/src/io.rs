//! The interface between the engine and the device that moves its datagrams.
//!
//! A device passes [`Received`] datagrams to the engine, and a [`TxSlot`] for each datagram that leaves. The
//! engine does not depend on the kind of device: a socket, a ring shared with a kernel, or a link of a
//! simulator.

use roce_packet::{Path, Qpn};

use crate::slot::ProcessSlot;

/// The IPv4 Identification of a received datagram, as far as it is known. The ICRC covers it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Identification {
    /// The device saw the IP header.
    Known {
        /// The Identification field.
        identification: u16,
        /// The don't-fragment bit.
        dont_fragment: bool,
    },
    /// The device did not see the header (a UDP socket). `hint` is the likeliest value: the index of the
    /// segment in the received buffer, or 0 for a single datagram. The engine accepts any position in a
    /// superpacket, because a network may split it, and otherwise recovers the value from the ICRC itself.
    Unknown {
        /// The value to try first.
        hint: u16,
    },
    /// The sender wrote no ICRC ([`Batch::UNSEALED`]), and none is compared. Only for networks in memory that
    /// neither damage nor join datagrams.
    Unsealed,
}

impl Identification {
    /// The value for IPv6 and RoCE v1, which do not have this field.
    pub const ABSENT: Self = Self::Known { identification: 0, dont_fragment: true };
}

/// One datagram, BTH to ICRC, as a device received it.
#[derive(Clone, Copy, Debug)]
pub struct Received<'a> {
    /// The path as the sender wrote it (not reversed).
    pub path: Path,
    /// The IPv4 Identification, as far as it is known.
    pub identification: Identification,
    /// The first bytes, which contain all headers.
    pub head: &'a [u8],
    /// The remaining bytes, empty for most devices. AF_XDP splits frames over 3,840 bytes.
    pub tail: &'a [u8],
}

/// Payload, padding and ICRC of an implied datagram: the largest path MTU and 3 + 4 bytes.
static IMPLIED: [u8; 4096 + 8] = [0; 4096 + 8];

impl<'a> Received<'a> {
    /// Creates a datagram of which only the headers exist. `implied` further bytes, payload to ICRC, are
    /// taken as zeros, and no ICRC is compared. Bytes beyond the need of the largest path MTU are left out,
    /// and the engine refuses such a datagram because of its length.
    ///
    /// Together with [`Batch::UNSEALED`] and a [`Memory`](crate::Memory) that copies nothing, an engine
    /// transports datagrams without their payload. Everything else behaves as with a payload.
    #[must_use]
    pub fn implied(path: Path, headers: &'a [u8], implied: usize) -> Self {
        let tail = IMPLIED.get(..implied).unwrap_or(&IMPLIED);
        Self { path, identification: Identification::Unsealed, head: headers, tail }
    }
}

/// Returns the `len` bytes after the headers of an implied datagram.
pub(crate) fn implied_tail(len: usize) -> Option<&'static [u8]> {
    IMPLIED.get(..len)
}

/// Tells whether a datagram with this tail is an implied one.
pub(crate) fn is_implied_tail(tail: &[u8]) -> bool {
    !tail.is_empty() && core::ptr::eq(tail.as_ptr(), IMPLIED.as_ptr())
}

/// A datagram that the engine wrote into a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// The path on which the datagram leaves.
    pub path: Path,
    /// The queue pair that receives the datagram.
    pub remote_qpn: Qpn,
    /// Bytes from BTH to ICRC inclusive.
    pub len: usize,
    /// The IPv4 Identification for which the ICRC was computed.
    pub identification: u16,
}

/// The superpacket that a device is filling. It decides which datagrams may join.
///
/// Segmentation offload splits one buffer into datagrams of equal size, of which only the last may be
/// shorter. If it writes an IPv4 header for each datagram, it numbers their Identification from zero.
///
/// On the peer's host several processes may share an address, each with queue pair numbers of its own
/// [process slot](ProcessSlot). The kernel there passes a superpacket as a whole to the process of its first
/// datagram, so only datagrams of one slot are joined. Datagrams for queue pair 1 are never joined, because
/// their contents decide which process receives them.
#[derive(Clone, Copy, Debug, Default)]
pub struct Batch {
    open: Option<OpenBatch>,
    /// Whether the next datagram begins a superpacket if none is open.
    begins: bool,
    unsealed: bool,
}

#[derive(Clone, Copy, Debug)]
struct OpenBatch {
    path: Path,
    remote_qpn: Qpn,
    segment_len: usize,
    segments: u16,
    len: usize,
    max_segments: u16,
    max_len: usize,
}

impl Batch {
    /// No superpacket is open, and every datagram is separate.
    pub const NONE: Self = Self { open: None, begins: false, unsealed: false };
    /// No superpacket is open, and the next datagram may begin one.
    pub const EMPTY: Self = Self { open: None, begins: true, unsealed: false };
    /// Every datagram is separate, and its ICRC is not checked: the engine writes zero in its place.
    pub const UNSEALED: Self = Self { open: None, begins: false, unsealed: true };

    /// Tells whether the ICRC is left out.
    #[inline]
    pub(crate) const fn is_unsealed(&self) -> bool {
        self.unsealed
    }

    /// Returns the Identification of a datagram of `len` bytes for `remote_qpn` on `path`: its index if it
    /// may join, or 0.
    #[must_use]
    pub fn identification(&self, path: &Path, remote_qpn: Qpn, len: usize) -> u16 {
        match &self.open {
            Some(open) if open.accepts(path, remote_qpn, len) => open.segments,
            _ => 0,
        }
    }

    /// Tells whether `transmit` may join this superpacket. It must be sealed for its index as Identification.
    #[must_use]
    pub fn accepts(&self, transmit: &Transmit) -> bool {
        self.open.as_ref().is_some_and(|open| {
            open.accepts(&transmit.path, transmit.remote_qpn, transmit.len)
                && open.segments == transmit.identification
        })
    }

    /// Starts a superpacket with `transmit` as its first segment.
    #[must_use]
    pub fn start(transmit: &Transmit, max_segments: u16, max_len: usize) -> Self {
        if transmit.identification != 0 {
            return Self::NONE;
        }
        Self {
            begins: true,
            unsealed: false,
            open: Some(OpenBatch {
                path: transmit.path,
                remote_qpn: transmit.remote_qpn,
                segment_len: transmit.len,
                segments: 1,
                len: transmit.len,
                max_segments,
                max_len,
            }),
        }
    }

    /// Tells whether a short datagram, which closes a superpacket, can follow one more datagram and still be
    /// in this superpacket. Then both leave together, which the reverse order would prevent.
    #[must_use]
    pub(crate) fn leaves_room_behind_another(&self) -> bool {
        self.open.as_ref().map_or(self.begins, |open| {
            open.segments + 1 < open.max_segments
                && open.len.saturating_add(2 * open.segment_len) <= open.max_len
        })
    }

    /// Adds `transmit`, for which [`Self::accepts`] returned true. A shorter segment closes the superpacket.
    pub fn push(&mut self, transmit: &Transmit) {
        if let Some(open) = &mut self.open {
            open.segments = open.segments.saturating_add(1);
            open.len = open.len.saturating_add(transmit.len);
            if transmit.len < open.segment_len {
                self.open = None;
            }
        }
    }
}

impl OpenBatch {
    fn accepts(&self, path: &Path, remote_qpn: Qpn, len: usize) -> bool {
        len <= self.segment_len
            && self.segments < self.max_segments
            && self.len.saturating_add(len) <= self.max_len
            && is_one_process(self.remote_qpn, remote_qpn)
            && *path == self.path
    }
}

/// Tells whether datagrams for these two queue pairs of a host certainly go to the same process.
fn is_one_process(one: Qpn, other: Qpn) -> bool {
    let same_slot = ProcessSlot::of(one.get()) == ProcessSlot::of(other.get());
    same_slot && one != Qpn::GSI && other != Qpn::GSI
}

/// Buffer for one datagram, lent by a device.
#[derive(Debug)]
pub struct TxSlot<'a> {
    /// Space for BTH to ICRC. The device guarantees room for the largest datagram of its capability record.
    pub buffer: &'a mut [u8],
    /// The superpacket that the datagram may join.
    pub batch: &'a Batch,
}

impl<'a> TxSlot<'a> {
    /// Creates a slot outside any superpacket.
    #[must_use]
    pub fn new(buffer: &'a mut [u8]) -> Self {
        Self { buffer, batch: &Batch::NONE }
    }
}

/// Maximum number of segments in a superpacket (Linux, `UDP_MAX_SEGMENTS`), counted from 0. For a trusted
/// peer, at least 25 bits of the ICRC are therefore checked.
pub const MOST_SEGMENTS: u16 = 128;

#[cfg(test)]
mod tests {
    use core::net::{IpAddr, Ipv4Addr};

    use roce_packet::Encapsulation;

    use super::*;

    /// Tells which of these destinations join the superpacket that the first one opens: those with an
    /// Identification above 0.
    fn joined(destinations: &[u32]) -> alloc::vec::Vec<bool> {
        let address = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let path = Path {
            encapsulation: Encapsulation::RoceV2,
            source: address,
            destination: address,
            source_port: 49152,
            traffic_class: 0,
            hop_limit: 64,
            flow_label: 0,
            vlan: None,
        };
        let mut batch = Batch::NONE;
        let mut take = |number: &u32| {
            let remote_qpn = Qpn::new(*number);
            let identification = batch.identification(&path, remote_qpn, 300);
            let transmit = Transmit { path, remote_qpn, len: 300, identification };
            let accepted = batch.accepts(&transmit);
            assert_eq!(accepted, identification > 0);
            if accepted {
                batch.push(&transmit);
            } else {
                batch = Batch::start(&transmit, 64, 65_507);
            }
            accepted
        };
        destinations.iter().map(&mut take).collect()
    }

    #[test]
    fn datagrams_for_two_processes_of_a_host_never_share_a_superpacket() {
        let [one, two] = [0x01_0000, 0x02_0000];
        assert_eq!(joined(&[one | 5, one | 6, one | 5]), [false, true, true]);
        assert_eq!(joined(&[one | 5, two | 5, two | 6, one | 5]), [false, false, true, false]);
        // The process of a connection management datagram is in its message.
        assert_eq!(joined(&[1, 1, 2, 3, 1]), [false, false, false, true, false]);
    }
}
