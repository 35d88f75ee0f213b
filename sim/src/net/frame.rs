//! Frames in the network: built once by the sender, then forwarded by handle.
//!
//! [`Frame`] fills one cache line and contains the fields that switches read and change. Only sender and
//! receiver access the datagram. Short datagrams, and the headers of implied ones, are part of the frame;
//! long datagrams have a slot of their own.

use std::net::{IpAddr, Ipv4Addr};

use roce_packet::{
    Ecn, Encapsulation, EthernetHeader, Ipv4Header, Opcode, OpcodeInfo, Operation, PREAMBLE_AND_GAP_LEN,
    Path, PauseFrame, Telemetry, TelemetryHop, UdpHeader,
};

use super::rules::FrameView;
use super::settings::{Trimming, priority_of};

/// The handle of a frame in [`Frames`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FrameId(u32);

impl FrameId {
    pub(super) const NONE: Self = Self(u32::MAX);

    pub(super) fn is_some(self) -> bool {
        self != Self::NONE
    }
}

/// Capacity in bytes for a datagram inside [`Frame`]: BTH, RETH and immediate data, or a whole
/// acknowledgement.
pub(super) const HEAD: usize = 32;
/// Length of Ethernet, IPv4 and UDP headers.
const AROUND_DATAGRAM: usize = EthernetHeader::LEN + Ipv4Header::LEN + UdpHeader::LEN;
/// Length of the ICRC.
const ICRC: usize = 4;
/// Length of BTH and ICRC.
pub(super) const DATAGRAM_OVERHEAD: u32 = 12 + ICRC as u32;
/// Length of preamble and inter-frame gap, which take no buffer space.
const GAP: u32 = PREAMBLE_AND_GAP_LEN as u32;
/// Length of a pause frame on the wire, which is the shortest Ethernet frame.
const PAUSE_LEN: usize = roce_packet::wire_len(PauseFrame::LEN);

/// Returns the bytes that a datagram takes on a link: preamble, Ethernet, IPv4 and UDP headers, BTH to ICRC,
/// frame check sequence and gap.
#[must_use]
pub const fn wire_len(datagram_len: usize) -> u32 {
    roce_packet::wire_len(AROUND_DATAGRAM + datagram_len) as u32
}

/// Returns the bytes that a frame takes in buffers: its length on the wire without preamble and gap.
pub(super) const fn buffered(wire_len: u32) -> u32 {
    wire_len.saturating_sub(GAP)
}

/// The kind of a frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Kind {
    /// A RoCE datagram.
    #[default]
    Datagram,
    /// The headers of a datagram whose payload was removed by a switch.
    Trimmed,
    /// A datagram with flipped bits, which fails the ICRC check of its receiver.
    Damaged,
    /// A pause frame for one priority: XOFF with the maximum duration, or XON.
    Pause,
}

/// The fields of a frame that the network uses, in one cache line.
#[derive(Clone, Copy, Debug)]
#[repr(align(64))]
pub(super) struct Frame {
    /// The next free frame, if this one is free.
    next: FrameId,
    /// Source and destination host by number.
    pub(super) source: u32,
    pub(super) destination: u32,
    /// The ingress port at the current switch.
    pub(super) entered: u32,
    slot: u32,
    pub(super) wire_len: u16,
    /// Length of the datagram in bytes, from BTH to ICRC.
    pub(super) len: u16,
    pub(super) source_port: u16,
    pub(super) head_len: u8,
    pub(super) priority: u8,
    pub(super) traffic_class: u8,
    pub(super) hop_limit: u8,
    pub(super) kind: Kind,
    /// Whether the frame has a trailer of in-band telemetry, which counts for `wire_len` but not for `len`.
    pub(super) has_telemetry: bool,
    pub(super) head: [u8; HEAD],
}

impl Frame {
    /// Returns the opcode of a datagram that has more than headers.
    fn opcode_of_payload(&self) -> Option<&'static OpcodeInfo> {
        let info = Opcode(self.head[0]).info().filter(|_| self.kind == Kind::Datagram)?;
        (usize::from(self.len) > info.header_len + ICRC).then_some(info)
    }

    /// Returns what the rules of a switch see.
    pub(super) fn view(&self) -> FrameView {
        FrameView {
            source: self.source,
            destination: self.destination,
            source_port: self.source_port,
            priority: self.priority,
            wire_bytes: self.wire_len.into(),
            queue_bytes: self.buffered_len(),
            // The bytes of a CNP behind its headers are reserved.
            has_payload: self.opcode_of_payload().is_some_and(|info| info.operation != Operation::Cnp),
            is_trimmed: self.kind == Kind::Trimmed,
        }
    }

    pub(super) fn datagram(path: &Path, len: usize) -> Option<Self> {
        Some(Self {
            next: FrameId::NONE,
            source: host_number(path.source)?,
            destination: host_number(path.destination)?,
            entered: 0,
            slot: NO_SLOT,
            wire_len: u16::try_from(wire_len(len)).ok()?,
            len: u16::try_from(len).ok()?,
            source_port: path.source_port,
            head_len: 0,
            priority: 0,
            traffic_class: path.traffic_class,
            hop_limit: path.hop_limit,
            kind: Kind::Datagram,
            has_telemetry: false,
            head: [0; HEAD],
        })
    }

    /// Creates a pause frame for `priority`: XOFF, or XON if `quanta` is 0.
    pub(super) fn pause(priority: u8, quanta: u16) -> Self {
        let mut head = [0; HEAD];
        head[..2].copy_from_slice(&quanta.to_be_bytes());
        Self {
            next: FrameId::NONE,
            source: 0,
            destination: 0,
            entered: 0,
            slot: NO_SLOT,
            wire_len: PAUSE_LEN as u16,
            len: 0,
            source_port: 0,
            head_len: 2,
            priority,
            traffic_class: 0,
            hop_limit: 0,
            kind: Kind::Pause,
            has_telemetry: false,
            head,
        }
    }

    /// Returns the quanta of a pause frame.
    pub(super) fn quanta(&self) -> u16 {
        u16::from_be_bytes([self.head[0], self.head[1]])
    }

    /// Returns the bytes that the frame takes in buffers: its length without preamble and gap.
    pub(super) fn buffered_len(&self) -> u32 {
        buffered(self.wire_len.into())
    }

    pub(super) fn ecn(&self) -> Ecn {
        Ecn::from_bits(self.traffic_class)
    }

    /// Sets DSCP and ECN, and derives the priority from the DSCP.
    pub(super) fn set_traffic_class(&mut self, traffic_class: u8) {
        self.traffic_class = traffic_class;
        self.priority = priority_of(traffic_class >> 2);
    }

    pub(super) fn mark(&mut self) {
        self.traffic_class |= Ecn::CongestionExperienced.bits();
    }

    /// Returns the path as the receiver sees it.
    pub(super) fn path(&self) -> Path {
        Path {
            encapsulation: Encapsulation::RoceV2,
            source: host_address(self.source),
            destination: host_address(self.destination),
            source_port: self.source_port,
            traffic_class: self.traffic_class,
            hop_limit: self.hop_limit,
            flow_label: 0,
            vlan: None,
        }
    }
}

/// The address of the first host. Hosts have consecutive addresses in 198.18.0.0/15 (RFC 2544), from .1 on.
const FIRST_ADDRESS: u32 = u32::from_be_bytes([198, 18, 0, 1]);

/// Returns the address of host number `host`.
#[must_use]
pub const fn host_address(host: u32) -> IpAddr {
    IpAddr::V4(Ipv4Addr::from_bits(FIRST_ADDRESS.wrapping_add(host)))
}

fn host_number(address: IpAddr) -> Option<u32> {
    let IpAddr::V4(address) = address else { return None };
    address.to_bits().checked_sub(FIRST_ADDRESS)
}

const NO_SLOT: u32 = u32::MAX;

/// All frames in the network, and the slots of long datagrams.
#[derive(Debug)]
pub(super) struct Frames {
    frames: Vec<Frame>,
    free: FrameId,
    live: usize,
    /// Slots of equal size, in sequence.
    bytes: Vec<u8>,
    slot_len: usize,
    free_slots: Vec<u32>,
    /// The trailers, by the handle of their frame. Empty until a frame has a trailer.
    trailers: Vec<[u8; Telemetry::LEN]>,
}

impl Frames {
    /// Creates the arena for datagrams of at most `slot_len` bytes.
    pub(super) fn new(slot_len: usize) -> Self {
        Self {
            frames: Vec::new(),
            free: FrameId::NONE,
            live: 0,
            bytes: Vec::new(),
            slot_len,
            free_slots: Vec::new(),
            trailers: Vec::new(),
        }
    }

    pub(super) fn get(&self, id: FrameId) -> &Frame {
        &self.frames[id.0 as usize]
    }

    /// Reads the frame with this handle to load it into the cache. An invalid handle reads the last frame.
    #[inline]
    pub(super) fn fetch(&self, id: FrameId) -> u64 {
        let last = self.frames.len().wrapping_sub(1);
        self.frames.get((id.0 as usize).min(last)).map_or(0, |frame| u64::from(frame.source))
    }

    pub(super) fn get_mut(&mut self, id: FrameId) -> &mut Frame {
        &mut self.frames[id.0 as usize]
    }

    /// Returns the number of frames in the network.
    pub(super) fn live(&self) -> usize {
        self.live
    }

    #[inline]
    pub(super) fn insert(&mut self, frame: Frame) -> FrameId {
        self.live += 1;
        if self.free.is_some() {
            let id = self.free;
            let place = &mut self.frames[id.0 as usize];
            self.free = place.next;
            *place = frame;
            return id;
        }
        self.frames.push(frame);
        FrameId((self.frames.len() - 1) as u32)
    }

    #[inline]
    pub(super) fn remove(&mut self, id: FrameId) {
        self.live -= 1;
        let frame = &mut self.frames[id.0 as usize];
        if frame.slot != NO_SLOT {
            self.free_slots.push(frame.slot);
            frame.slot = NO_SLOT;
        }
        frame.next = self.free;
        self.free = id;
    }

    /// Stores the bytes of a datagram in the frame if they fit, otherwise in a slot.
    pub(super) fn store(&mut self, id: FrameId, bytes: &[u8]) {
        let frame = &mut self.frames[id.0 as usize];
        if let Some(place) = frame.head.get_mut(..bytes.len()) {
            place.copy_from_slice(bytes);
            frame.head_len = bytes.len() as u8;
            return;
        }
        let slot = self.free_slots.pop().unwrap_or_else(|| {
            let slot = self.bytes.len() / self.slot_len;
            self.bytes.resize(self.bytes.len() + self.slot_len, 0);
            slot as u32
        });
        frame.slot = slot;
        let start = slot as usize * self.slot_len;
        let kept = bytes.len().min(self.slot_len);
        self.bytes[start..start + kept].copy_from_slice(&bytes[..kept]);
        let head = &bytes[..HEAD];
        frame.head.copy_from_slice(head);
        frame.head_len = HEAD as u8;
    }

    /// Returns the stored bytes of a datagram: all of them, or the headers.
    #[inline]
    pub(super) fn bytes(&self, id: FrameId) -> &[u8] {
        let frame = self.get(id);
        if frame.slot == NO_SLOT {
            return &frame.head[..usize::from(frame.head_len)];
        }
        let start = frame.slot as usize * self.slot_len;
        &self.bytes[start..start + usize::from(frame.len)]
    }

    pub(super) fn bytes_mut(&mut self, id: FrameId) -> &mut [u8] {
        let frame = &mut self.frames[id.0 as usize];
        if frame.slot == NO_SLOT {
            return &mut frame.head[..usize::from(frame.head_len)];
        }
        let start = frame.slot as usize * self.slot_len;
        &mut self.bytes[start..start + usize::from(frame.len)]
    }

    /// Adds a trailer of in-band telemetry to a datagram.
    pub(super) fn add_telemetry(&mut self, id: FrameId, telemetry: &Telemetry) {
        let frame = &mut self.frames[id.0 as usize];
        frame.has_telemetry = true;
        frame.wire_len = wire_len(usize::from(frame.len) + Telemetry::LEN) as u16;
        self.set_trailer(id, telemetry);
    }

    fn set_trailer(&mut self, id: FrameId, telemetry: &Telemetry) {
        *self.trailer_mut(id) = telemetry.emit();
    }

    fn trailer_mut(&mut self, id: FrameId) -> &mut [u8; Telemetry::LEN] {
        let index = id.0 as usize;
        if index >= self.trailers.len() {
            self.trailers.resize(self.frames.len(), [0; Telemetry::LEN]);
        }
        &mut self.trailers[index]
    }

    /// Returns the trailer of a frame, if it has one.
    pub(super) fn telemetry(&self, id: FrameId) -> Option<Telemetry> {
        let has = self.get(id).has_telemetry;
        has.then(|| self.trailers.get(id.0 as usize)).flatten().and_then(Telemetry::parse)
    }

    /// Adds the hop of a switch port to the trailer of a frame, if it has one.
    pub(super) fn stamp(&mut self, id: FrameId, hop: TelemetryHop, port: u32) {
        if let Some(mut telemetry) = self.telemetry(id) {
            telemetry.push(hop, port);
            self.set_trailer(id, &telemetry);
        }
    }

    /// Removes the payload, ICRC and telemetry of a datagram. Returns `false` without any change if it has no
    /// payload, or if the frame would not become shorter.
    pub(super) fn trim(&mut self, id: FrameId, trimming: &Trimming) -> bool {
        let frame = &mut self.frames[id.0 as usize];
        let Some(info) = frame.opcode_of_payload() else { return false };
        let wire_len = wire_len(info.header_len).max(trimming.frame_bytes + GAP);
        if info.header_len > HEAD || wire_len >= u32::from(frame.wire_len) {
            return false;
        }
        if frame.slot != NO_SLOT {
            self.free_slots.push(frame.slot);
            frame.slot = NO_SLOT;
        }
        (frame.kind, frame.has_telemetry) = (Kind::Trimmed, false);
        // This cast cannot truncate, because the new length is smaller.
        frame.wire_len = wire_len as u16;
        (frame.len, frame.head_len) = (info.header_len as u16, info.header_len as u8);
        frame.set_traffic_class(trimming.dscp << 2 | frame.ecn().bits());
        true
    }

    /// Removes a frame that leaves this part of the network.
    pub(super) fn take_out(&mut self, id: FrameId) -> Parcel {
        let frame = *self.get(id);
        let bytes = if frame.slot == NO_SLOT { Vec::new() } else { self.bytes(id).to_vec() };
        let trailer = if frame.has_telemetry { self.trailers.get(id.0 as usize).copied() } else { None };
        self.remove(id);
        Parcel { frame: Frame { slot: NO_SLOT, next: FrameId::NONE, ..frame }, bytes, trailer }
    }

    /// Inserts a frame that comes from another part of the network.
    pub(super) fn take_in(&mut self, parcel: &Parcel) -> FrameId {
        let id = self.insert(parcel.frame);
        if !parcel.bytes.is_empty() {
            self.store(id, &parcel.bytes);
        }
        if let Some(trailer) = parcel.trailer {
            *self.trailer_mut(id) = trailer;
        }
        id
    }

    /// Inserts a copy of a frame.
    pub(super) fn duplicate(&mut self, id: FrameId) -> FrameId {
        let mut copy = *self.get(id);
        let bytes = (copy.slot != NO_SLOT).then(|| self.bytes(id).to_vec());
        copy.slot = NO_SLOT;
        copy.next = FrameId::NONE;
        let telemetry = self.telemetry(id);
        let copy = self.insert(copy);
        if let Some(telemetry) = telemetry {
            self.set_trailer(copy, &telemetry);
        }
        if let Some(bytes) = bytes {
            self.store(copy, &bytes);
        }
        copy
    }
}

/// A frame that moves between two parts of the network, with its datagram and trailer.
#[derive(Clone, Debug)]
pub(super) struct Parcel {
    frame: Frame,
    /// The datagram, if it has a slot.
    bytes: Vec<u8>,
    trailer: Option<[u8; Telemetry::LEN]>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(len: usize) -> Frame {
        let mut path = Frame::pause(0, 0).path();
        path.destination = host_address(5);
        Frame::datagram(&path, len).unwrap()
    }

    #[test]
    fn a_frame_is_a_cache_line() {
        assert_eq!(size_of::<Frame>(), 64);
    }

    #[test]
    fn lengths_on_the_wire() {
        // A middle packet at path MTU 1024: 12 + 1024 + 4 bytes of datagram.
        assert_eq!(wire_len(1040), 1106);
        assert_eq!(wire_len(20), 86, "an acknowledgement is longer than the shortest frame");
        assert_eq!(wire_len(16), 84);
        assert_eq!(Frame::pause(3, 1).buffered_len(), 64);
    }

    #[test]
    fn a_trimmed_frame_has_its_headers_and_no_slot() {
        let mut frames = Frames::new(1100);
        // A WRITE First with RETH, payload and an ECN mark, which trimming keeps.
        let mut bytes = vec![0xaa; 12 + 16 + 1024 + 4];
        bytes[0] = Opcode::RC_RDMA_WRITE_FIRST.0;
        let mut first = frame(bytes.len());
        first.set_traffic_class(26 << 2 | 0b11);
        let id = frames.insert(first);
        frames.store(id, &bytes);
        assert!(frames.trim(id, &Trimming::default()));
        let trimmed = *frames.get(id);
        assert_eq!((trimmed.kind, trimmed.len, trimmed.wire_len), (Kind::Trimmed, 28, 94));
        assert_eq!((trimmed.priority, trimmed.traffic_class), (5, 44 << 2 | 0b11));
        assert_eq!(frames.bytes(id), &bytes[..28]);
        assert!(!frames.trim(id, &Trimming::default()), "there is nothing left to cut away");
        let other = frames.insert(frame(bytes.len()));
        frames.store(other, &bytes);
        assert_eq!(frames.get(other).slot, 0, "the slot is free again");
        // Regression: READ requests lost their ICRC, and only a timeout repeated them.
        bytes[0] = Opcode::RC_RDMA_READ_REQUEST.0;
        let request = frames.insert(frame(12 + 16 + 4));
        frames.store(request, &bytes[..32]);
        assert!(!frames.trim(request, &Trimming::default()), "it has no payload");
        // Frames that would not become shorter are not trimmed.
        bytes[0] = Opcode::RC_RDMA_WRITE_MIDDLE.0;
        for (len, to, cut) in [(12 + 4, 64, false), (12 + 64 + 4, 128, false), (12 + 128 + 4, 128, true)] {
            let id = frames.insert(frame(len));
            frames.store(id, &bytes[..len]);
            assert_eq!(
                frames.trim(id, &Trimming { frame_bytes: to, ..Trimming::default() }),
                cut,
                "{len} {to}"
            );
            assert_eq!(frames.get(id).buffered_len(), if cut { to } else { wire_len(len) - GAP });
        }
    }

    #[test]
    fn bytes_stay_with_their_frame() {
        let mut frames = Frames::new(1100);
        let long: Vec<u8> = (0..1040).map(|i| i as u8).collect();
        let a = frames.insert(frame(1040));
        frames.store(a, &long);
        let b = frames.insert(frame(20));
        frames.store(b, &[7; 20]);
        let c = frames.duplicate(a);
        assert_eq!((frames.bytes(a), frames.bytes(b), frames.bytes(c)), (&long[..], &[7; 20][..], &long[..]));
        assert_eq!(frames.get(a).head[..], long[..HEAD]);
        frames.remove(a);
        frames.remove(b);
        let again = frames.insert(frame(1040));
        frames.store(again, &[1; 1040]);
        assert_eq!(frames.bytes(c), long);
        assert_eq!(frames.live(), 2);
        let parcel = frames.take_out(c);
        let mut elsewhere = Frames::new(1100);
        let there = elsewhere.take_in(&parcel);
        assert_eq!((frames.live(), elsewhere.live(), elsewhere.bytes(there)), (1, 1, &long[..]));
    }
}
