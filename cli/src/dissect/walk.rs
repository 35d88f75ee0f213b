//! Decodes one packet: the position of each header, the protocol, and the first error.

use std::borrow::Cow;
use std::net::IpAddr;

use roce_packet::fields::{self, Header, Value};
use roce_packet::mad::{CM_CLASS, CmReq, MAD_LEN, MadHeader, ServiceId};
use roce_packet::pause::PauseFrame;
use roce_packet::{
    Bth, BthView, Dissection, Encapsulation, EtherType, EthernetHeader, Frame, IcrcCheck, NetworkView,
    Opcode, OpcodeInfo, ParseError, ParseErrorKind, Qpn, Transport, VlanHeader, ip_protocol_name,
};

use roce_capture::{CapturedPacket, LinkType};

/// A header or another part of a frame, and its position.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    pub(crate) header: &'static Header,
    /// In bytes from the start of the frame.
    pub(crate) start: usize,
    /// Number of bytes that are present.
    pub(crate) len: usize,
}

/// The protocol of a packet.
#[derive(Debug)]
pub(crate) enum Protocol<'a> {
    /// RoCE, possibly malformed; `None` if the BTH cannot be found.
    Roce(Option<Packet<'a>>),
    /// An 802.3x or PFC frame.
    Pause,
    /// Another protocol: its name, and a detail such as the ports.
    Other(String, String),
}

/// The packet from BTH to ICRC, as far as it can be parsed.
#[derive(Debug)]
pub(crate) struct Packet<'a> {
    pub(crate) bth: &'a BthView,
    /// `None` when the opcode is not assigned.
    pub(crate) info: Option<&'static OpcodeInfo>,
    /// Payload bytes on the wire without padding, computed from the lengths in the headers.
    pub(crate) payload_len: Option<usize>,
    pub(crate) icrc: Icrc,
}

/// The result of the ICRC check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Icrc {
    Checked(IcrcCheck),
    /// The check was not possible, with the reason.
    Unchecked(&'static str),
}

impl Icrc {
    pub(crate) fn is_bad(self) -> bool {
        matches!(self, Self::Checked(check) if !check.is_good())
    }
}

/// A packet that starts with an Ethernet header, which is added if the link type does not have one.
#[derive(Debug)]
pub(crate) struct Framed<'a> {
    frame: Cow<'a, [u8]>,
    /// Bytes at the start of `frame` that were added.
    synthetic: usize,
    /// Bytes at the start of the packet that were removed.
    dropped: usize,
    /// Whether the capture truncated the packet.
    snapped: bool,
}

impl<'a> Framed<'a> {
    /// A packet of a capture file; `None` if its link cannot carry RoCE.
    pub(crate) fn captured(packet: &CapturedPacket<'a>) -> Option<Self> {
        let bytes = packet.bytes;
        let snapped = packet.is_snapped();
        let (dropped, ether_type) = match packet.link_type {
            LinkType::ETHERNET => {
                return Some(Self { frame: Cow::Borrowed(bytes), synthetic: 0, dropped: 0, snapped });
            }
            // 12 and 14 are RAW on some systems.
            LinkType::RAW_IP | LinkType::IPV4 | LinkType::IPV6 | LinkType(12 | 14) => (0, None),
            LinkType::NULL | LinkType::LOOP => (4, None),
            LinkType::LINUX_SLL => (16, bytes.get(14..16)),
            LinkType::LINUX_SLL2 => (20, bytes.get(..2)),
            _ => return None,
        };
        let packet = bytes.get(dropped..).unwrap_or_default();
        let ether_type = match ether_type {
            Some(&[high, low]) => EtherType(u16::from_be_bytes([high, low])),
            _ => ip_ether_type(packet),
        };
        Some(Self { dropped, snapped, ..Self::on_ethernet(ether_type, packet) })
    }

    /// A complete Ethernet frame.
    pub(crate) fn ethernet(frame: &'a [u8]) -> Self {
        Self { frame: Cow::Borrowed(frame), synthetic: 0, dropped: 0, snapped: false }
    }

    /// A packet that starts with its IP header or GRH.
    pub(crate) fn ip(packet: &'a [u8]) -> Self {
        Self::on_ethernet(ip_ether_type(packet), packet)
    }

    /// Adds an Ethernet header, which is never shown, because the parsers expect Ethernet frames.
    fn on_ethernet(ether_type: EtherType, packet: &[u8]) -> Self {
        let mut frame = vec![0; EthernetHeader::LEN];
        if let Some(header) = frame.first_chunk_mut() {
            let none = roce_packet::MacAddr::ZERO;
            EthernetHeader { destination: none, source: none, ether_type }.emit(header);
        }
        frame.extend_from_slice(packet);
        Self { frame: Cow::Owned(frame), synthetic: EthernetHeader::LEN, dropped: 0, snapped: false }
    }

    /// The frame, which begins with an Ethernet header.
    pub(crate) fn frame(&self) -> &[u8] {
        &self.frame
    }

    /// Whether the Ethernet header is that of the packet, and not one that was added.
    pub(crate) const fn has_ethernet(&self) -> bool {
        self.synthetic == 0
    }

    /// Converts an offset in the frame to an offset in the packet.
    pub(crate) const fn shown_offset(&self, offset: usize) -> usize {
        (offset + self.dropped).saturating_sub(self.synthetic)
    }
}

fn ip_ether_type(packet: &[u8]) -> EtherType {
    const NEXT_HEADER_BTH: u8 = roce_packet::Grh::NEXT_HEADER;
    match packet {
        [first, ..] if first >> 4 == 4 => EtherType::IPV4,
        [_, _, _, _, _, _, NEXT_HEADER_BTH, ..] => EtherType::ROCE_V1,
        _ => EtherType::IPV6,
    }
}

/// A decoded packet.
#[derive(Debug)]
pub(crate) struct Walk<'a> {
    /// The frame (from the Ethernet header) or the datagram (from the BTH).
    pub(crate) bytes: &'a [u8],
    /// The parts in order, without gaps unless the packet is malformed.
    pub(crate) parts: Vec<Part>,
    pub(crate) protocol: Protocol<'a>,
    /// The outer headers; empty for a datagram that starts with its BTH.
    pub(crate) outer: Dissection<'a>,
    /// The parse error, with offsets from the start of `bytes`. Truncation by the capture is not an error.
    pub(crate) error: Option<ParseError>,
    /// The connection management message that the packet carries.
    pub(crate) cm: Option<&'static Header>,
}

impl<'a> Walk<'a> {
    /// Decodes a frame. `port` is the UDP port of RoCE v2.
    pub(crate) fn new(framed: &'a Framed<'_>, port: u16) -> Self {
        let bytes = &framed.frame[..];
        let outer = Dissection::on_port(bytes, port);
        let mut walk = Self::empty(bytes, outer);
        walk.outer_parts(framed.synthetic);
        if outer.is_not_roce() {
            walk.other();
            return walk;
        }
        let frame = outer.into_frame();
        let cut = framed.snapped && matches!(frame, Err(error) if error.kind == ParseErrorKind::Truncated);
        if cut && outer.transport.is_none() {
            walk.protocol = Protocol::Other("cut".to_owned(), "too short to identify".to_owned());
            return walk;
        }
        // In-band telemetry follows the ICRC.
        let bare = frame.as_ref().ok().and_then(Frame::split_telemetry).map(|(bare, _)| bare);
        let trailer = bare.map_or(0, |_| fields::TELEMETRY.len_bytes());
        let frame = bare.map_or(frame, Ok);
        let icrc = match &frame {
            Ok(frame) => {
                walk.error = frame.datagram().err().filter(|error| !is_vendor_specific(error));
                match frame.verify_icrc() {
                    Ok(check) => Icrc::Checked(check),
                    Err(_) => Icrc::Unchecked("too short"),
                }
            }
            Err(_) if cut => Icrc::Unchecked("cut"),
            Err(error) => {
                walk.error = Some(*error);
                icrc_behind_bad_checksum(bytes, port, error).map_or(Icrc::Unchecked("broken"), Icrc::Checked)
            }
        };
        if let Some(transport) = outer.transport {
            let announced = announced_len(&outer).unwrap_or(transport.len()).saturating_sub(trailer);
            let start = outer.transport_offset;
            walk.transport_parts(start, bare.map_or(transport, |bare| bare.transport), announced, icrc);
            walk.push(&fields::TELEMETRY, start + announced, trailer);
            walk.push(&fields::ETHERNET_TRAILER, bytes.len() - outer.trailer.len(), outer.trailer.len());
        }
        walk
    }

    /// Decodes a datagram that starts with its BTH.
    pub(crate) fn datagram(bytes: &'a [u8]) -> Self {
        let mut walk = Self::empty(bytes, Dissection::default());
        walk.error = roce_packet::Datagram::parse(bytes, &[]).err();
        let icrc = Icrc::Unchecked("the IP header, which it covers, is missing");
        walk.transport_parts(0, bytes, bytes.len(), icrc);
        walk
    }

    /// A packet of an unsupported link type.
    pub(crate) fn unread_link(link_type: LinkType) -> Self {
        let mut walk = Self::empty(&[], Dissection::default());
        walk.protocol = Protocol::Other(format!("link type {link_type}"), "not supported".to_owned());
        walk
    }

    fn empty(bytes: &'a [u8], outer: Dissection<'a>) -> Self {
        Self {
            bytes,
            parts: Vec::with_capacity(8),
            protocol: Protocol::Roce(None),
            outer,
            error: None,
            cm: None,
        }
    }

    /// The bytes of a part.
    pub(crate) fn part_bytes(&self, part: &Part) -> &'a [u8] {
        self.bytes.get(part.start..part.start + part.len).unwrap_or_default()
    }

    /// The value of the field with this JSON key, if it is a number.
    pub(crate) fn number(&self, key: &str) -> Option<u64> {
        let field_in = |header: &'static Header| header.fields.iter().find(|field| field.key == key);
        let (part, field) = self.parts.iter().find_map(|part| Some((part, field_in(part.header)?)))?;
        match field.value(self.part_bytes(part))? {
            Value::Number(number) => Some(number),
            Value::Bytes(_) => None,
        }
    }

    /// The transport part, if there is one.
    pub(crate) const fn packet(&self) -> Option<&Packet<'a>> {
        match &self.protocol {
            Protocol::Roce(Some(packet)) => Some(packet),
            Protocol::Roce(None) | Protocol::Pause | Protocol::Other(..) => None,
        }
    }

    /// The addresses of layer 3.
    pub(crate) fn addresses(&self) -> Option<(IpAddr, IpAddr)> {
        Some(match self.outer.network? {
            NetworkView::Ipv4(ip) => (ip.source().into(), ip.destination().into()),
            NetworkView::Ipv6(ip) => (ip.source().into(), ip.destination().into()),
            NetworkView::Grh(grh) => (grh.source().to_ip(), grh.destination().to_ip()),
        })
    }

    /// DSCP and ECN.
    pub(crate) fn traffic_class(&self) -> Option<u8> {
        Some(match self.outer.network? {
            NetworkView::Ipv4(ip) => ip.traffic_class(),
            NetworkView::Ipv6(ip) => ip.traffic_class(),
            NetworkView::Grh(grh) => grh.traffic_class(),
        })
    }

    pub(crate) fn encapsulation(&self) -> Option<Encapsulation> {
        Some(match self.outer.network? {
            NetworkView::Ipv4(_) | NetworkView::Ipv6(_) => Encapsulation::RoceV2,
            NetworkView::Grh(_) => Encapsulation::RoceV1,
        })
    }

    /// Adds a part, limited to the bytes that are present.
    fn push(&mut self, header: &'static Header, start: usize, len: usize) {
        let len = len.min(self.bytes.len().saturating_sub(start));
        if len > 0 {
            self.parts.push(Part { header, start, len });
        }
    }

    fn outer_parts(&mut self, synthetic: usize) {
        let outer = self.outer;
        if outer.ethernet.is_some() && synthetic == 0 {
            self.push(&fields::ETHERNET, 0, EthernetHeader::LEN);
        }
        if outer.vlan.is_some() {
            self.push(&fields::VLAN, EthernetHeader::LEN, VlanHeader::LEN);
        }
        let at = outer.network_offset;
        match outer.network {
            Some(NetworkView::Ipv4(ip)) => {
                let len = fields::IPV4.len_bytes();
                self.push(&fields::IPV4, at, len);
                self.push(&fields::IPV4_OPTIONS, at + len, ip.header_len().saturating_sub(len));
            }
            Some(NetworkView::Ipv6(_)) => self.push(&fields::IPV6, at, fields::IPV6.len_bytes()),
            Some(NetworkView::Grh(_)) => self.push(&fields::GRH, at, fields::GRH.len_bytes()),
            None => {}
        }
        if outer.udp.is_some() {
            self.push(&fields::UDP, outer.udp_offset, fields::UDP.len_bytes());
        }
    }

    /// Adds the parts from BTH to ICRC. `announced` is their length on the wire.
    fn transport_parts(&mut self, base: usize, transport: &'a [u8], announced: usize, icrc: Icrc) {
        let Ok((bth, _)) = BthView::from_prefix(transport) else { return };
        let info = bth.opcode().info();
        self.push(&fields::BTH, base, Bth::LEN);
        for (flag, header) in fields::EXTENDED {
            if let Some(offset) = info.and_then(|info| info.offset_of(flag)) {
                self.push(header, base + offset, header.len_bytes());
            }
        }
        let header_len = info.map_or(Bth::LEN, |info| info.header_len);
        let pad_len = usize::from(bth.pad_count());
        let payload_len = announced.checked_sub(header_len + pad_len + ICRC_LEN);
        let payload = base + header_len;
        match payload_len {
            Some(len) => {
                self.payload_parts(bth, info, payload, len);
                self.push(&fields::PADDING, payload + len, pad_len);
                self.push(&fields::ICRC, payload + len + pad_len, ICRC_LEN);
            }
            None => self.push(&fields::PAYLOAD, payload, transport.len().saturating_sub(header_len)),
        }
        // No part extends past the end of the transport part, even if the lengths in its headers are larger.
        let end = base + transport.len();
        self.parts.retain_mut(|part| {
            part.len = part.len.min(end.saturating_sub(part.start));
            part.len > 0
        });
        self.protocol = Protocol::Roce(Some(Packet { bth, info, payload_len, icrc }));
    }

    /// Adds the parts of the payload, as far as its format is known.
    fn payload_parts(&mut self, bth: &BthView, info: Option<&OpcodeInfo>, start: usize, len: usize) {
        let is_datagram = info.is_some_and(|info| info.transport == Transport::Ud);
        if bth.opcode() == Opcode::CNP && len == fields::CNP.len_bytes() {
            self.push(&fields::CNP, start, len);
        } else if is_datagram && bth.dest_qp() == Qpn::GSI && len >= fields::MAD.len_bytes() {
            self.management_parts(start, len);
        } else {
            self.push(&fields::PAYLOAD, start, len);
        }
    }

    fn management_parts(&mut self, start: usize, len: usize) {
        let mad_len = fields::MAD.len_bytes();
        self.push(&fields::MAD, start, mad_len);
        let (data, len) = (start + mad_len, len - mad_len);
        let attribute = self.number("infiniband.mad.attributeid").unwrap_or(0) as u16;
        let is_cm = self.number("infiniband.mad.mgmtclass") == Some(CM_CLASS.into());
        self.cm = fields::cm_message(attribute).filter(|_| is_cm);
        let Some(message) = self.cm else { return self.push(&fields::MAD_DATA, data, len) };
        let private = MAD_LEN - MadHeader::LEN - CmReq::PRIVATE_DATA;
        if std::ptr::eq(message, &fields::REQ) && len >= private && self.is_rdma_cm(data) {
            self.push(message, data, private);
            self.push(&fields::IP_CM, data + private, len - private);
        } else {
            self.push(message, data, len);
        }
    }

    /// Whether the request at `start` comes from rdma_cm, whose private data begins with a header.
    fn is_rdma_cm(&self, start: usize) -> bool {
        let id = self.bytes.get(start + 8..).and_then(<[u8]>::first_chunk);
        id.is_some_and(|id| ServiceId(u64::from_be_bytes(*id)).port().is_some())
    }

    /// Sets the protocol of a packet that is not RoCE.
    fn other(&mut self) {
        let outer = self.outer;
        let ether_type = match (outer.vlan, outer.ethernet) {
            (Some(vlan), _) => vlan.ether_type(),
            (None, Some(ethernet)) => ethernet.ether_type(),
            (None, None) => EtherType(0),
        };
        if ether_type == EtherType::MAC_CONTROL {
            return self.pause();
        }
        let (name, number) = match outer.network {
            Some(NetworkView::Ipv4(ip)) => {
                (ip_protocol_name(ip.protocol()), format!("IP protocol {}", ip.protocol()))
            }
            Some(NetworkView::Ipv6(ip)) => {
                (ip_protocol_name(ip.next_header()), format!("IP protocol {}", ip.next_header()))
            }
            Some(NetworkView::Grh(_)) | None => (ether_type.name(), format!("EtherType {ether_type}")),
        };
        let name = name.map_or(number, str::to_owned);
        self.protocol = Protocol::Other(name, self.ports().unwrap_or_default());
    }

    /// The UDP or TCP ports.
    fn ports(&self) -> Option<String> {
        let (protocol, offset) = match self.outer.network? {
            NetworkView::Ipv4(ip) if ip.fragment_offset() != 0 => return Some("fragment".to_owned()),
            NetworkView::Ipv4(ip) => (ip.protocol(), ip.header_len()),
            NetworkView::Ipv6(ip) => (ip.next_header(), fields::IPV6.len_bytes()),
            NetworkView::Grh(_) => return None,
        };
        let (6 | 17, Some(&[a, b, c, d])) =
            (protocol, self.bytes.get(self.outer.network_offset + offset..)?.first_chunk())
        else {
            return None;
        };
        Some(format!("port {} > {}", u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d])))
    }

    fn pause(&mut self) {
        self.protocol = Protocol::Pause;
        self.error = PauseFrame::parse(self.bytes).err();
        let at = EthernetHeader::LEN;
        let header = match self.bytes.get(at..at + 2) {
            Some([0x01, 0x01]) => &fields::PFC,
            _ => &fields::PAUSE,
        };
        self.push(header, at, header.len_bytes());
        let end = at + header.len_bytes();
        self.push(&fields::ETHERNET_TRAILER, end, self.bytes.len().saturating_sub(end));
    }
}

/// Whether the opcode is manufacturer-specific: the packet is valid, but the headers after the BTH are
/// not known.
fn is_vendor_specific(error: &ParseError) -> bool {
    error.kind == ParseErrorKind::UnknownOpcode && Opcode(error.have as u8).is_vendor_specific()
}

/// Checks the ICRC of a frame with a wrong IPv4 header checksum. The ICRC does not cover the checksum, and
/// shows whether the rest of the packet is intact, for example if only the TTL was edited.
fn icrc_behind_bad_checksum(bytes: &[u8], port: u16, error: &ParseError) -> Option<IcrcCheck> {
    if error.kind != ParseErrorKind::BadChecksum {
        return None;
    }
    let mut repaired = bytes.to_vec();
    let checksum = u16::try_from(error.need).ok()?;
    repaired.get_mut(error.offset..error.offset + 2)?.copy_from_slice(&checksum.to_be_bytes());
    Frame::parse_on_port(&repaired, port).ok()?.verify_icrc().ok()
}

/// The length from BTH to ICRC on the wire.
fn announced_len(outer: &Dissection<'_>) -> Option<usize> {
    match (outer.udp, outer.network) {
        (Some(udp), _) => usize::from(udp.length()).checked_sub(fields::UDP.len_bytes()),
        (None, Some(NetworkView::Grh(grh))) => Some(grh.payload_length().into()),
        (None, _) => None,
    }
}

const ICRC_LEN: usize = 4;
