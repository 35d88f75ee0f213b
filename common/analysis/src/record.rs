//! One captured packet, reduced to what the analysis needs.

use std::fmt;
use std::net::IpAddr;

use bitflags::bitflags;
use roce_packet::mad::{CmMad, CmMessage, MAD_LEN};
use roce_packet::outer::{Cut, Link, Outer, OuterIcrc};
use roce_packet::pause::{PauseFrame, PauseRequest};
use roce_packet::{
    Aeth, AtomicAckEth, AtomicEth, BthView, Datagram, Deth, Encapsulation, HeaderSet, Layer, MacAddr, Msn,
    NetworkView, Opcode, OpcodeInfo, Operation, ParseErrorKind, Psn, Qpn, Reth, Syndrome, Transport,
};

/// A packet as a capture contains it.
#[derive(Clone, Copy, Debug)]
pub struct Packet<'a> {
    /// Index of the capture file, from 0.
    pub capture: u16,
    /// Number of the interface in the file. Together with the file, it says where the packet was captured.
    pub interface: u16,
    /// Number of the packet in the file, from 1.
    pub number: u64,
    /// Time of the capture in nanoseconds; `None` if the file contains no time.
    pub time_ns: Option<u64>,
    /// Protocol at the start of the packet.
    pub link: Link,
    /// Length on the wire in bytes.
    pub wire_len: usize,
    /// Whether a remark in the capture says that the packet was dropped behind this place.
    pub is_dropped: bool,
    /// The captured bytes.
    pub bytes: &'a [u8],
}

/// A packet of a capture, as reports name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Place {
    /// Index of the capture file, from 0.
    pub capture: u16,
    /// Number of the packet in the file, from 1.
    pub number: u64,
}

impl fmt::Display for Place {
    /// Writes the number, after the index of the file unless it is the first one: `17`, or `2:17`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.capture {
            0 => write!(f, "{}", self.number),
            capture => write!(f, "{}:{}", capture + 1, self.number),
        }
    }
}

bitflags! {
    /// Single bits of a packet, and what is known about its whole.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct Bits: u16 {
        /// The requester asks for an acknowledgement.
        const ACK_REQ = 1;
        /// Solicited event.
        const SOLICITED = 1 << 1;
        /// Migration request.
        const MIG_REQ = 1 << 2;
        /// Forward congestion.
        const FECN = 1 << 3;
        /// Backward congestion.
        const BECN = 1 << 4;
        /// One of the reserved bits of the BTH is set.
        const RESERVED = 1 << 5;
        /// The ICRC was checked and is correct.
        const GOOD_ICRC = 1 << 6;
        /// The ICRC was checked and is wrong.
        const BAD_ICRC = 1 << 7;
        /// The capture or a mirror removed the end of the packet.
        const CUT = 1 << 8;
        /// The headers contradict each other, so a receiver drops the packet.
        const BROKEN = 1 << 9;
        /// The packet is the first fragment of an IP datagram.
        const FRAGMENT = 1 << 10;
        /// The UDP checksum is not zero.
        const UDP_CHECKSUM = 1 << 11;
        /// The packet was captured more than once, and this is not the first copy.
        const COPY = 1 << 12;
        /// A byte of the padding is not zero.
        const NONZERO_PADDING = 1 << 13;
        /// The IPv4 header allows routers to fragment the packet: DF is clear.
        const MAY_FRAGMENT = 1 << 14;
        /// A remark in the capture says that the packet was dropped behind this place.
        const DROPPED = 1 << 15;
    }
}

/// The extended header that decides what a packet means.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Extension {
    /// The packet has none, or its end is missing.
    #[default]
    None,
    /// Remote memory of a WRITE or a READ.
    Reth(Reth),
    /// An answer.
    Aeth(Syndrome, Msn),
    /// The answer to an atomic operation, with the value before it.
    AtomicAck(Syndrome, Msn, u64),
    /// An atomic operation.
    Atomic(AtomicEth),
    /// The sender of a datagram.
    Deth(Deth),
}

/// Number of a stream in the table of [`crate::stream::Streams`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StreamId(pub u32);

/// A RoCE packet, as far as it was captured.
#[derive(Clone, Copy, Debug)]
pub struct Record {
    /// Where it is.
    pub place: Place,
    /// Interface of the file.
    pub interface: u16,
    /// Time of the capture in nanoseconds, 0 if unknown.
    pub time_ns: u64,
    /// The sender, the receiver and the receiving queue pair.
    pub stream: StreamId,
    /// The operation.
    pub opcode: Opcode,
    /// Packet sequence number.
    pub psn: Psn,
    /// Single bits.
    pub bits: Bits,
    /// Transport version of the BTH.
    pub version: u8,
    /// Pad count of the BTH.
    pub pad: u8,
    /// Partition key.
    pub p_key: u16,
    /// DSCP and ECN.
    pub traffic_class: u8,
    /// Priority of the VLAN tag.
    pub pcp: Option<u8>,
    /// UDP source port; 0 for RoCE v1.
    pub source_port: u16,
    /// IPv4 Identification; 0 for other headers.
    pub identification: u16,
    /// Payload on the wire, without padding, in bytes.
    pub payload_len: u32,
    /// Length on the wire in bytes.
    pub wire_len: u32,
    /// The extended header.
    pub extension: Extension,
    /// ICRC of the packet; 0 if it is missing.
    pub icrc: u32,
    /// CRC of the payload of a READ response; 0 for other packets and if the end is missing.
    pub payload_crc: u32,
    /// The first contradiction in the headers, if [`Bits::BROKEN`] is set.
    pub problem: Option<(Layer, ParseErrorKind)>,
}

impl Record {
    /// Returns the row of the opcode.
    #[must_use]
    pub const fn info(&self) -> Option<&'static OpcodeInfo> {
        self.opcode.info()
    }

    /// Returns whether the ICRC is wrong, so the headers may not be those that the sender wrote.
    #[must_use]
    pub const fn is_damaged(&self) -> bool {
        self.bits.contains(Bits::BAD_ICRC)
    }

    /// Returns whether a receiver accepts the packet, as far as one can see: it is complete and its ICRC is
    /// not wrong.
    #[must_use]
    pub const fn is_sound(&self) -> bool {
        !self.bits.intersects(Bits::BAD_ICRC.union(Bits::BROKEN))
    }

    /// Returns the ECN field, 0 to 3. 3 is a mark.
    #[must_use]
    pub const fn ecn(&self) -> u8 {
        self.traffic_class & 0b11
    }

    /// Returns the DSCP, 0 to 63.
    #[must_use]
    pub const fn dscp(&self) -> u8 {
        self.traffic_class >> 2
    }

    /// Returns whether the packet was sent before another one of its sender, as the Identifications of a
    /// sender that counts its packets show it. `None` without numbers, or with equal ones.
    #[must_use]
    pub const fn was_sent_before(&self, other: &Self) -> Option<bool> {
        const HALF: u16 = 0x8000;
        if self.identification == 0 || other.identification == 0 {
            return None;
        }
        match other.identification.wrapping_sub(self.identification) {
            0 => None,
            distance => Some(distance < HALF),
        }
    }

    /// Returns the syndrome and MSN of an answer.
    #[must_use]
    pub const fn answer(&self) -> Option<(Syndrome, Msn)> {
        match self.extension {
            Extension::Aeth(syndrome, msn) | Extension::AtomicAck(syndrome, msn, _) => Some((syndrome, msn)),
            _ => None,
        }
    }
}

/// Sender, receiver and receiving queue pair of packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StreamKey {
    /// Address of the sender.
    pub source: IpAddr,
    /// Address of the receiver.
    pub destination: IpAddr,
    /// Version of RoCE.
    pub encapsulation: Encapsulation,
    /// Receiving queue pair.
    pub qpn: Qpn,
}

/// A message of connection management.
#[derive(Clone, Debug)]
pub struct CmRecord {
    /// Where it is.
    pub place: Place,
    /// Interface of the file.
    pub interface: u16,
    /// Time in nanoseconds, 0 if unknown.
    pub time_ns: u64,
    /// Address of the sender.
    pub source: IpAddr,
    /// Address of the receiver.
    pub destination: IpAddr,
    /// Number that answers repeat.
    pub transaction_id: u64,
    /// The message.
    pub message: Box<CmMessage>,
}

/// A pause frame.
#[derive(Clone, Copy, Debug)]
pub struct PauseRecord {
    /// Where it is.
    pub place: Place,
    /// Interface of the file.
    pub interface: u16,
    /// Time in nanoseconds, 0 if unknown.
    pub time_ns: u64,
    /// The port that asks for a pause.
    pub source: MacAddr,
    /// What it asks for.
    pub request: PauseRequest,
}

/// What one captured packet is.
#[derive(Clone, Debug)]
pub enum Decoded {
    /// RoCE; the record has no stream yet.
    Roce(Record, StreamKey),
    /// RoCE with a message of connection management.
    Cm(Record, StreamKey, CmRecord),
    /// A pause frame.
    Pause(PauseRecord),
    /// RoCE whose BTH or addresses are missing.
    Unreadable,
    /// Another protocol.
    Foreign,
}

/// Decodes a packet. `port` is the UDP port of RoCE v2.
#[must_use]
pub fn decode(packet: &Packet<'_>, port: u16) -> Decoded {
    let outer = Outer::decode(packet.bytes, packet.link, packet.wire_len, port);
    let place = Place { capture: packet.capture, number: packet.number };
    let time_ns = packet.time_ns.unwrap_or(0);
    if outer.foreign.is_some() {
        return match PauseFrame::parse(packet.bytes) {
            Ok(frame) if matches!(packet.link, Link::Ethernet) => {
                let (PauseFrame { source, request }, interface) = (frame, packet.interface);
                Decoded::Pause(PauseRecord { place, interface, time_ns, source, request })
            }
            _ => Decoded::Foreign,
        };
    }
    if outer.is_answer_of_service() {
        return Decoded::Foreign;
    }
    let (Some(transport), Some((source, destination))) = (outer.transport, outer.addresses()) else {
        return Decoded::Unreadable;
    };
    let Ok((bth, _)) = BthView::from_prefix(transport) else { return Decoded::Unreadable };
    let encapsulation = match outer.network {
        Some(NetworkView::Grh(_)) => Encapsulation::RoceV1,
        _ => Encapsulation::RoceV2,
    };
    let key = StreamKey { source, destination, encapsulation, qpn: bth.dest_qp() };
    let record = record(packet, &outer, transport, bth);
    let is_mad = bth.dest_qp() == Qpn::GSI && record.payload_len as usize == MAD_LEN;
    let body = transport.get(bth.opcode().info().map_or(0, |info| info.header_len)..);
    match body.and_then(<[u8]>::first_chunk::<MAD_LEN>).filter(|_| is_mad).map(|mad| CmMad::parse(mad)) {
        Some(Ok(CmMad { transaction_id, message, .. })) => {
            let message = Box::new(message);
            let interface = packet.interface;
            let cm = CmRecord { place, interface, time_ns, source, destination, transaction_id, message };
            Decoded::Cm(record, key, cm)
        }
        _ => Decoded::Roce(record, key),
    }
}

fn record(packet: &Packet<'_>, outer: &Outer<'_>, transport: &[u8], bth: &BthView) -> Record {
    let info = bth.opcode().info();
    let checked = outer.check_icrc();
    let telemetry_len = checked.map_or(0, |icrc| icrc.telemetry_len);
    let announced = outer.transport_len.saturating_sub(telemetry_len);
    let header_len = info.map_or(12, |info| info.header_len);
    let pad = usize::from(bth.pad_count());
    let payload_len = announced.saturating_sub(header_len + pad + 4);
    let payload = transport.get(header_len..header_len + payload_len);
    let is_read_response = info.is_some_and(|info| info.operation == Operation::ReadResponse);
    let identification = match outer.network {
        Some(NetworkView::Ipv4(ip)) => ip.identification(),
        _ => 0,
    };
    let mut bits = bits(outer, bth, checked);
    let whole = transport.get(..announced).unwrap_or(transport);
    let problem = problem(outer, whole);
    bits.set(Bits::BROKEN, problem.is_some());
    let padding = whole.get(header_len + payload_len..).and_then(|rest| rest.get(..pad));
    let has_padding = problem.is_none() && padding.is_some_and(|bytes| bytes.iter().any(|byte| *byte != 0));
    bits.set(Bits::NONZERO_PADDING, has_padding);
    bits.set(Bits::DROPPED, packet.is_dropped);
    Record {
        place: Place { capture: packet.capture, number: packet.number },
        interface: packet.interface,
        time_ns: packet.time_ns.unwrap_or(0),
        stream: StreamId(u32::MAX),
        opcode: bth.opcode(),
        psn: bth.psn(),
        bits,
        version: bth.version(),
        pad: bth.pad_count(),
        p_key: bth.p_key(),
        traffic_class: outer.traffic_class().unwrap_or(0),
        pcp: outer.vlan.map(|tag| tag.pcp),
        source_port: outer.udp.map_or(0, |udp| udp.source_port()),
        identification,
        payload_len: u32::try_from(payload_len).unwrap_or(u32::MAX),
        wire_len: u32::try_from(packet.wire_len).unwrap_or(u32::MAX),
        extension: info.map_or(Extension::None, |info| extension(info, transport)),
        icrc: checked.map_or(0, |icrc| icrc.check.found),
        payload_crc: payload.filter(|_| is_read_response).map_or(0, crc32fast::hash),
        problem,
    }
}

/// Returns the first contradiction in the headers. `transport` is the datagram from BTH to ICRC.
fn problem(outer: &Outer<'_>, transport: &[u8]) -> Option<(Layer, ParseErrorKind)> {
    let of_datagram = || Datagram::parse(transport, &[]).err().filter(|_| outer.cut.is_none());
    outer.error.or_else(of_datagram).map(|error| (error.layer, error.kind))
}

fn bits(outer: &Outer<'_>, bth: &BthView, checked: Option<OuterIcrc>) -> Bits {
    let mut bits = Bits::empty();
    bits.set(Bits::ACK_REQ, bth.ack_req());
    bits.set(Bits::SOLICITED, bth.solicited());
    bits.set(Bits::MIG_REQ, bth.mig_req());
    bits.set(Bits::FECN, bth.fecn());
    bits.set(Bits::BECN, bth.becn());
    bits.set(Bits::RESERVED, bth.reserved6() != 0 || bth.reserved7() != 0);
    bits.set(Bits::CUT, outer.cut.is_some());
    bits.set(Bits::FRAGMENT, outer.cut == Some(Cut::Fragment));
    bits.set(Bits::UDP_CHECKSUM, outer.udp.is_some_and(|udp| udp.checksum() != 0));
    if let Some(icrc) = checked {
        bits.set(Bits::GOOD_ICRC, icrc.check.is_good());
        bits.set(Bits::BAD_ICRC, !icrc.check.is_good());
    }
    let may_fragment = matches!(outer.network, Some(NetworkView::Ipv4(ip)) if !ip.dont_fragment());
    bits.set(Bits::MAY_FRAGMENT, may_fragment);
    bits
}

fn extension(info: &OpcodeInfo, transport: &[u8]) -> Extension {
    let header = |flag| info.offset_of(flag).and_then(|offset| transport.get(offset..));
    if let Some(bytes) = header(HeaderSet::ATOMIC_ACK_ETH)
        && let (Ok((value, _)), Some(Ok((aeth, _)))) =
            (AtomicAckEth::parse(bytes), header(HeaderSet::AETH).map(Aeth::parse))
    {
        return Extension::AtomicAck(aeth.syndrome, aeth.msn, value.original);
    }
    let aeth = header(HeaderSet::AETH).and_then(|bytes| Aeth::parse(bytes).ok());
    if let Some((aeth, _)) = aeth {
        return Extension::Aeth(aeth.syndrome, aeth.msn);
    }
    let reth = header(HeaderSet::RETH).and_then(|bytes| Reth::parse(bytes).ok());
    let atomic = header(HeaderSet::ATOMIC_ETH).and_then(|bytes| AtomicEth::parse(bytes).ok());
    let deth = header(HeaderSet::DETH).and_then(|bytes| Deth::parse(bytes).ok());
    match (reth, atomic, deth) {
        (Some((reth, _)), ..) => Extension::Reth(reth),
        (_, Some((atomic, _)), _) => Extension::Atomic(atomic),
        (.., Some((deth, _))) => Extension::Deth(deth),
        (None, None, None) => Extension::None,
    }
}

/// Returns whether a transport numbers its packets for one receiver.
#[must_use]
pub const fn is_connected(transport: Transport) -> bool {
    matches!(transport, Transport::Rc | Transport::Uc | Transport::Xrc)
}
