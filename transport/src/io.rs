//! The interface between the engine and the device that moves its datagrams.
//!
//! A device hands in [`Received`] datagrams and lends a [`TxSlot`] for each one that leaves. Neither
//! side knows what the other is: a socket, a ring shared with a kernel, or a link in a simulator.

use roce_packet::{Path, Qpn};

use crate::slot::ProcessSlot;

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

/// The bytes behind the headers of an implied datagram with so many of them.
pub(crate) fn implied_tail(len: usize) -> Option<&'static [u8]> {
    IMPLIED.get(..len)
}

/// Whether a datagram with this tail is an implied one.
pub(crate) fn is_implied_tail(tail: &[u8]) -> bool {
    !tail.is_empty() && core::ptr::eq(tail.as_ptr(), IMPLIED.as_ptr())
}

/// A datagram that the engine wrote into a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Transmit {
    /// Where it goes.
    pub path: Path,
    /// The queue pair that it is for.
    pub remote_qpn: Qpn,
    /// Bytes from BTH to ICRC inclusive.
    pub len: usize,
    /// The IPv4 Identification that its ICRC was computed for.
    pub identification: u16,
}

/// The superpacket that a device is filling: decides which datagram may join it.
///
/// Segmentation offload splits one buffer into datagrams of equal size, of which only the last may
/// be shorter, and numbers their Identification from zero where a header is written for each.
///
/// The peer's host may be one where several processes share an address, each with queue pair numbers of its own
/// [process slot](ProcessSlot). Its kernel gives a superpacket to one of them as a whole, by the
/// first datagram, so that only datagrams of one slot are joined. Datagrams for queue pair 1 are never joined: which
/// process each one is for, its contents decide.
#[derive(Clone, Copy, Debug, Default)]
pub struct Batch {
    open: Option<OpenBatch>,
    /// Where none is open, the next datagram begins one.
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
    /// No superpacket is open: every datagram stands alone.
    pub const NONE: Self = Self { open: None, begins: false, unsealed: false };
    /// No superpacket is open: the next datagram may begin one.
    pub const EMPTY: Self = Self { open: None, begins: true, unsealed: false };
    /// Every datagram is separate, and its ICRC is not checked: zero is written in its place.
    pub const UNSEALED: Self = Self { open: None, begins: false, unsealed: true };

    /// Whether the ICRC is left out.
    #[inline]
    pub(crate) const fn is_unsealed(&self) -> bool {
        self.unsealed
    }

    /// The Identification that a datagram of `len` bytes for `remote_qpn` on `path` gets: its index if it may join.
    #[must_use]
    pub fn identification(&self, path: &Path, remote_qpn: Qpn, len: usize) -> u16 {
        match &self.open {
            Some(open) if open.accepts(path, remote_qpn, len) => open.segments,
            _ => 0,
        }
    }

    /// Whether `transmit` continues this superpacket. A datagram sealed for another Identification
    /// than its index never does.
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

    /// Whether a short datagram, which closes a superpacket, can come one datagram later and still be in the same superpacket as what
    /// goes before it. Then the two leave together, and in the other order they would not.
    #[must_use]
    pub(crate) fn leaves_room_behind_another(&self) -> bool {
        self.open.as_ref().map_or(self.begins, |open| {
            open.segments + 1 < open.max_segments
                && open.len.saturating_add(2 * open.segment_len) <= open.max_len
        })
    }

    /// Adds `transmit`, which [`Self::accepts`] accepted. A shorter segment closes the superpacket.
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

/// Whether what is for these two queue pairs of a host goes to the same process for certain.
fn is_one_process(one: Qpn, other: Qpn) -> bool {
    let same_slot = ProcessSlot::of(one.get()) == ProcessSlot::of(other.get());
    same_slot && one != Qpn::GSI && other != Qpn::GSI
}

/// Room for one datagram, lent by a device.
#[derive(Debug)]
pub struct TxSlot<'a> {
    /// Where BTH to ICRC go. The device guarantees at least the largest datagram of its capability
    /// record.
    pub buffer: &'a mut [u8],
    /// The superpacket that this datagram would join.
    pub batch: &'a Batch,
}

impl<'a> TxSlot<'a> {
    /// A slot outside any superpacket.
    #[must_use]
    pub fn new(buffer: &'a mut [u8]) -> Self {
        Self { buffer, batch: &Batch::NONE }
    }
}

/// No superpacket has more segments, and they are counted from 0 (Linux, `UDP_MAX_SEGMENTS`). So for a peer that is trusted
/// at least 25 bits of the ICRC are checked.
pub const MOST_SEGMENTS: u16 = 128;

#[cfg(test)]
mod tests {
    use core::net::{IpAddr, Ipv4Addr};

    use roce_packet::Encapsulation;

    use super::*;

    /// Which of these destinations join the superpacket that the first one opens: those with an Identification above 0.
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
        // Connection management: the process is in the message.
        assert_eq!(joined(&[1, 1, 2, 3, 1]), [false, false, false, true, false]);
    }
}
