//! The interface between the engine and the device that moves its datagrams.
//!
//! A device passes [`Received`] datagrams to the engine, and a [`TxSlot`] for each datagram that leaves. The
//! engine does not depend on the kind of device: a socket, a ring shared with a kernel, or a link of a
//! simulator.

use roce_packet::{Path, Qpn, Telemetry};

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

/// One datagram as a device received it: the input of [`Engine::handle`](crate::Engine::handle).
#[derive(Clone, Copy, Debug)]
pub struct Received<'a> {
    /// The path as the sender wrote it (not reversed).
    pub path: Path,
    /// The IPv4 Identification, as far as it is known. The engine ignores it for a trimmed datagram.
    pub identification: Identification,
    /// The bytes that arrived.
    pub body: Body<'a>,
    /// In-band telemetry that came with the datagram but is not part of `body`. A device without a separate
    /// place for telemetry leaves this `None`: the engine finds a trailer behind the ICRC itself, if
    /// [`EngineConfig::telemetry`](crate::EngineConfig::telemetry) is set.
    pub telemetry: Option<&'a Telemetry>,
}

/// The bytes of a received datagram.
#[derive(Clone, Copy, Debug)]
pub enum Body<'a> {
    /// BTH to ICRC.
    Whole {
        /// The first bytes, which contain all headers.
        head: &'a [u8],
        /// The remaining bytes, empty for most devices. AF_XDP splits frames over 3,840 bytes.
        tail: &'a [u8],
    },
    /// Only headers: a congested switch removed the payload and the ICRC.
    ///
    /// The engine recovers the packet at once, as `docs/reference/loss-recovery.md` explains. An RC requester
    /// sends a trimmed packet of a SEND or WRITE again alone if both ends use
    /// [`SelectiveRepeat`](crate::SelectiveRepeat), and otherwise goes back to it. It requests a trimmed READ
    /// response and those after it again. A trimmed packet never changes memory or completes a work request.
    ///
    /// **The ICRC cannot be checked**, because it covers the payload. All other checks are made: version,
    /// opcode, queue pair, state, partition key and addresses. A damaged or forged packet can only cause a
    /// retransmission. Only the simulator, and devices that know how their network marks such packets, may
    /// use this form.
    Trimmed {
        /// At least the headers that the opcode requires; the engine ignores any bytes after them.
        headers: &'a [u8],
    },
}

impl<'a> Body<'a> {
    /// Returns a whole datagram in one piece.
    #[inline]
    #[must_use]
    pub const fn whole(bytes: &'a [u8]) -> Self {
        Self::Whole { head: bytes, tail: &[] }
    }

    /// Returns the bytes that arrived in two pieces, of which the second one is usually empty.
    #[inline]
    #[must_use]
    pub const fn pieces(&self) -> [&'a [u8]; 2] {
        match *self {
            Self::Whole { head, tail } => [head, tail],
            Self::Trimmed { headers } => [headers, &[]],
        }
    }
}

/// Payload, padding and ICRC of an implied datagram: the largest path MTU and 3 + 4 bytes.
static IMPLIED: [u8; 4096 + 8] = [0; 4096 + 8];

impl<'a> Received<'a> {
    /// Creates a whole datagram in one piece, without telemetry.
    #[inline]
    #[must_use]
    pub const fn whole(path: Path, identification: Identification, bytes: &'a [u8]) -> Self {
        Self { path, identification, body: Body::whole(bytes), telemetry: None }
    }

    /// Creates a whole datagram in two pieces, without telemetry. The first piece contains all headers.
    #[inline]
    #[must_use]
    pub const fn in_pieces(path: Path, identification: Identification, [head, tail]: [&'a [u8]; 2]) -> Self {
        Self { path, identification, body: Body::Whole { head, tail }, telemetry: None }
    }

    /// Creates a datagram of which only the headers arrived; see [`Body::Trimmed`].
    #[inline]
    #[must_use]
    pub const fn trimmed(path: Path, headers: &'a [u8]) -> Self {
        let identification = Identification::Unsealed;
        Self { path, identification, body: Body::Trimmed { headers }, telemetry: None }
    }

    /// Creates a datagram of which only the headers exist. `implied` further bytes, payload to ICRC, are
    /// taken as zeros, and no ICRC is compared. Bytes beyond the need of the largest path MTU are left out,
    /// and the engine refuses such a datagram because of its length.
    ///
    /// Together with [`Batch::UNSEALED`] and a [`Memory`](crate::Memory) that copies nothing, an engine
    /// transports datagrams without their payload. Everything else behaves as with a payload.
    #[must_use]
    pub fn implied(path: Path, headers: &'a [u8], implied: usize) -> Self {
        let tail = IMPLIED.get(..implied).unwrap_or(&IMPLIED);
        let body = Body::Whole { head: headers, tail };
        Self { path, identification: Identification::Unsealed, body, telemetry: None }
    }

    /// Returns the first bytes, which contain all headers.
    #[inline]
    #[must_use]
    pub const fn head(&self) -> &'a [u8] {
        let [head, _] = self.body.pieces();
        head
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
    /// In-band telemetry that must accompany the datagram and is not part of it, for a device or a simulator
    /// with a separate place for telemetry. A device without one ignores it: congestion control that depends
    /// on telemetry then stays at its first window, and nothing else changes. With
    /// [`EngineConfig::telemetry`](crate::EngineConfig::telemetry), the datagram contains the telemetry and
    /// this is `None`.
    pub telemetry: Option<Telemetry>,
}

impl Transmit {
    /// Describes a datagram without telemetry.
    #[inline]
    #[must_use]
    pub const fn new(path: Path, remote_qpn: Qpn, len: usize, identification: u16) -> Self {
        Self { path, remote_qpn, len, identification, telemetry: None }
    }
}

/// The packets that a call of [`Engine::poll_transmit`](crate::Engine::poll_transmit) may send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allowed {
    /// All packets.
    All,
    /// Only requests, for a caller that delays acknowledgements a moment because the processor and the
    /// network are better used for newly posted work.
    Requests,
    /// Only congestion notifications and packets of responders, for a device whose priority of requests is
    /// paused while the priority of answers is not.
    Answers,
    /// Requests and READ responses only in these traffic classes. Acknowledgements, NAKs, results of atomics
    /// and congestion notifications are always sent. For a device that holds back some or all priorities of
    /// data.
    Data(TrafficClasses),
}

/// A set of traffic classes, by their DSCP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TrafficClasses(u64);

impl TrafficClasses {
    /// The empty set.
    pub const NONE: Self = Self(0);
    /// All traffic classes.
    pub const ALL: Self = Self(u64::MAX);

    /// Returns the set of the DSCPs whose bit is 1: bit 0 is DSCP 0, bit 63 is DSCP 63.
    #[must_use]
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// Tells whether the set contains the class of this path.
    #[inline]
    #[must_use]
    pub const fn contains(self, path: &Path) -> bool {
        self.0 >> path.dscp() & 1 == 1
    }
}

/// The packets that wait to be sent; see [`Engine::pending`](crate::Engine::pending).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pending {
    /// No packets: [`Engine::poll_transmit`](crate::Engine::poll_transmit) returns `None`.
    Nothing,
    /// A few queue pairs have a turn, but neither new requests nor acknowledgements, usually because an
    /// acknowledgement arrived for them.
    Turns,
    /// Only acknowledgements of a few queue pairs are pending. They can leave together with the next request
    /// of the application, which often answers the acknowledged message and needs a datagram anyway.
    Acknowledgements,
    /// Other packets are pending, or acknowledgements of many queue pairs.
    More,
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

    /// Returns the path of the open superpacket if a datagram and a short one still fit into it.
    pub(crate) fn path_with_room(&self) -> Option<&Path> {
        let open = self.open.as_ref()?;
        self.leaves_room_behind_another().then_some(&open.path)
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
            let transmit = Transmit::new(path, remote_qpn, 300, identification);
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
