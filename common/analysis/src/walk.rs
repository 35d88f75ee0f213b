//! Decodes one packet: the position of each header, the protocol, and the first error.
//!
//! ```
//! use hex_literal::hex;
//! use roce_analysis::walk::{Framed, Walk};
//!
//! let frame = hex!(
//!     "e41d2dab2bc27cfe90643b320800"
//!     "45c2003c718c4000401191610a0011010a001201"
//!     "000012b700280000"
//!     "8100ffff4000011800000000"
//!     "00000000000000000000000000000000"
//!     "82fd002a"
//! );
//! let walk = Walk::new(Framed::ethernet(&frame), 4791);
//! let names: Vec<&str> = walk.parts.iter().map(|part| part.header.name).collect();
//! assert_eq!(names, ["Ethernet", "IPv4", "UDP", "BTH", "CNP", "ICRC"]);
//! ```

use std::fmt;

use roce_packet::fields::{self, Header, Value};
use roce_packet::mad::{CM_CLASS, CmReq, MAD_LEN, MadHeader, ServiceId};
use roce_packet::outer::{Foreign, IcrcForm, Link, Outer, OuterIcrc, OuterLayer};
use roce_packet::pause::PauseFrame;
use roce_packet::{
    Bth, BthView, Datagram, Encapsulation, EtherType, EthernetHeader, IcrcCheck, MacAddr, NetworkView,
    Opcode, OpcodeInfo, ParseError, ParseErrorKind, Qpn, Transport, ip_protocol_name,
};

/// A header or another part of a packet, and its position.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    /// Name and fields.
    pub header: &'static Header,
    /// The position, in bytes from the start of the packet.
    pub start: usize,
    /// Number of bytes that are present.
    pub len: usize,
    /// Whether it is a header of a tunnel that carries the packet.
    pub is_outer: bool,
}

/// The protocol of a packet.
#[derive(Debug)]
pub enum Protocol<'a> {
    /// RoCE, possibly malformed; `None` if the BTH cannot be found.
    Roce(Option<Packet<'a>>),
    /// An 802.3x or PFC frame.
    Pause,
    /// Another protocol: its name, and a detail such as the ports.
    Other(String, String),
}

/// The packet from BTH to ICRC, as far as it can be parsed.
#[derive(Debug)]
pub struct Packet<'a> {
    /// The first header.
    pub bth: &'a BthView,
    /// The opcode's properties; `None` if the opcode is not assigned.
    pub info: Option<&'static OpcodeInfo>,
    /// Payload bytes on the wire without padding, computed from the lengths in the headers.
    pub payload_len: Option<usize>,
    /// The result of the ICRC check.
    pub icrc: Icrc,
}

/// The result of the ICRC check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Icrc {
    /// The result, and the headers that it covers.
    Checked(IcrcCheck, IcrcForm),
    /// The check was not possible, with the reason.
    Unchecked(&'static str),
}

impl Icrc {
    /// Returns whether the ICRC was checked and is wrong.
    #[must_use]
    pub fn is_bad(self) -> bool {
        matches!(self, Self::Checked(check, _) if !check.is_good())
    }
}

/// A packet and the type of its first header.
#[derive(Clone, Copy, Debug)]
pub struct Framed<'a> {
    bytes: &'a [u8],
    link: Link,
    /// Bytes of the packet when it was captured.
    wire_len: usize,
}

impl<'a> Framed<'a> {
    /// Takes the captured bytes of a packet that had `wire_len` bytes on the wire.
    #[must_use]
    pub const fn new(bytes: &'a [u8], link: Link, wire_len: usize) -> Self {
        Self { bytes, link, wire_len }
    }

    /// Takes a complete Ethernet frame.
    #[must_use]
    pub const fn ethernet(bytes: &'a [u8]) -> Self {
        Self { bytes, link: Link::Ethernet, wire_len: bytes.len() }
    }

    /// Takes a packet that starts with its IP header or GRH.
    #[must_use]
    pub const fn ip(bytes: &'a [u8]) -> Self {
        Self { bytes, link: Link::Ip, wire_len: bytes.len() }
    }

    /// Returns the protocol at the start of the packet.
    #[must_use]
    pub const fn link(&self) -> Link {
        self.link
    }

    /// Returns whether no byte is present.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Returns the number of bytes that are present.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.bytes.len()
    }

    /// Decodes the headers. `port` is the UDP port of RoCE v2.
    #[must_use]
    pub fn decode(&self, port: u16) -> Outer<'a> {
        Outer::decode(self.bytes, self.link, self.wire_len, port)
    }

    /// Returns whether the packet has an Ethernet header, possibly behind that of an ERF record.
    #[must_use]
    pub fn has_ethernet(&self) -> bool {
        let in_record = || self.decode(roce_packet::ROCE_UDP_PORT).ethernet.is_some();
        self.link == Link::Ethernet || (self.link == Link::Erf && in_record())
    }

    /// Returns whether the packet is native InfiniBand or an ERF record without an Ethernet frame, so that it
    /// cannot become an Ethernet frame.
    #[must_use]
    pub fn is_never_ethernet(&self) -> bool {
        self.link == Link::InfiniBand || (self.link == Link::Erf && !self.has_ethernet())
    }

    /// Writes the packet as an Ethernet frame. A packet with another link header gets an Ethernet header
    /// without addresses.
    pub fn to_frame(self, frame: &mut Vec<u8>) {
        frame.clear();
        if self.link == Link::Ethernet {
            frame.extend_from_slice(self.bytes);
            return;
        }
        let outer = self.decode(roce_packet::ROCE_UDP_PORT);
        if self.link == Link::Erf {
            frame.extend_from_slice(self.bytes.get(outer.link_end..).unwrap_or_default());
            return;
        }
        let mut header = [0; EthernetHeader::LEN];
        let none = MacAddr::ZERO;
        EthernetHeader { destination: none, source: none, ether_type: outer.link_type }.emit(&mut header);
        frame.extend_from_slice(&header);
        frame.extend_from_slice(self.bytes.get(outer.link_end..).unwrap_or_default());
    }
}

/// A decoded packet.
#[derive(Debug)]
pub struct Walk<'a> {
    /// The captured packet, or the datagram (from the BTH).
    pub bytes: &'a [u8],
    /// The parts in order, without gaps unless the packet is malformed.
    pub parts: Vec<Part>,
    /// The protocol.
    pub protocol: Protocol<'a>,
    /// The headers in front of the BTH; empty for a datagram that starts with its BTH.
    pub outer: Outer<'a>,
    /// The parse error, with offsets from the start of `bytes`. A missing end is not an error.
    pub error: Option<ParseError>,
    /// The connection management message that the packet carries.
    pub cm: Option<&'static Header>,
}

impl<'a> Walk<'a> {
    /// Decodes a packet. `port` is the UDP port of RoCE v2.
    #[must_use]
    pub fn new(framed: Framed<'a>, port: u16) -> Self {
        let outer = framed.decode(port);
        let mut walk = Self::empty(framed.bytes, outer);
        if framed.link == Link::Erf {
            let len = fields::ERF.len_bytes();
            walk.push(&fields::ERF, 0, len);
            walk.push(&fields::ERF_EXTENSIONS, len, outer.link_end.saturating_sub(len));
        }
        for (is_outer, layers) in [(true, outer.tunnel_layers()), (false, outer.inner_layers())] {
            for layer in layers {
                let OuterLayer { header, offset, len } = *layer;
                walk.parts.push(Part { header, start: offset, len, is_outer });
            }
        }
        if outer.foreign.is_some() || outer.is_answer_of_service() {
            walk.other();
            return walk;
        }
        walk.error = outer.error;
        let Some(transport) = outer.transport else { return walk };
        let checked = outer.check_icrc();
        let telemetry_len = checked.map_or(0, |icrc| icrc.telemetry_len);
        let icrc = match (checked, outer.cut) {
            (Some(OuterIcrc { check, form, .. }), _) => Icrc::Checked(check, form),
            (None, Some(cut)) => Icrc::Unchecked(cut.reason()),
            (None, None) if outer.error.is_some() => Icrc::Unchecked("broken"),
            (None, None) => Icrc::Unchecked("too short"),
        };
        let start = outer.transport_offset;
        let announced = outer.transport_len.saturating_sub(telemetry_len);
        let datagram = transport.get(..announced).unwrap_or(transport);
        if outer.cut.is_none() && walk.error.is_none() {
            let error = Datagram::parse(datagram, &[]).err().map(|error| error.moved_by(start));
            walk.error = error.filter(|error| !is_vendor_specific(error));
        }
        walk.transport_parts(start, datagram, announced, icrc);
        walk.push(&fields::TELEMETRY, start + announced, telemetry_len);
        let end = framed.bytes.len() - outer.trailer.len();
        let vcrc_len = if outer.is_native_infiniband() { fields::VCRC.len_bytes() } else { 0 };
        walk.push(&fields::VCRC, end, vcrc_len);
        walk.push(&fields::ETHERNET_TRAILER, end + vcrc_len, outer.trailer.len().saturating_sub(vcrc_len));
        walk
    }

    /// Decodes a datagram that starts with its BTH.
    #[must_use]
    pub fn datagram(bytes: &'a [u8]) -> Self {
        let mut walk = Self::empty(bytes, Self::nothing());
        walk.error = Datagram::parse(bytes, &[]).err();
        let icrc = Icrc::Unchecked("the IP header, which it covers, is missing");
        walk.transport_parts(0, bytes, bytes.len(), icrc);
        walk
    }

    /// Returns the headers of an empty packet.
    fn nothing() -> Outer<'a> {
        Outer::decode(&[], Link::Ethernet, 0, roce_packet::ROCE_UDP_PORT)
    }

    /// Creates the result for a packet of a link type that cannot be decoded. `link_type` is its name.
    #[must_use]
    pub fn unread_link(link_type: &dyn fmt::Display) -> Self {
        let mut walk = Self::empty(&[], Self::nothing());
        walk.protocol = Protocol::Other(format!("link type {link_type}"), "not supported".to_owned());
        walk
    }

    fn empty(bytes: &'a [u8], outer: Outer<'a>) -> Self {
        Self {
            bytes,
            parts: Vec::with_capacity(12),
            protocol: Protocol::Roce(None),
            outer,
            error: None,
            cm: None,
        }
    }

    /// Returns the bytes of a part.
    #[must_use]
    pub fn part_bytes(&self, part: &Part) -> &'a [u8] {
        self.bytes.get(part.start..part.start + part.len).unwrap_or_default()
    }

    /// Returns the value of the field with this JSON key, if it is a number.
    #[must_use]
    pub fn number(&self, key: &str) -> Option<u64> {
        let field_in = |header: &'static Header| header.fields.iter().find(|field| field.key == key);
        let mut inner = self.parts.iter().filter(|part| !part.is_outer);
        let (part, field) = inner.find_map(|part| Some((part, field_in(part.header)?)))?;
        match field.value(self.part_bytes(part))? {
            Value::Number(number) => Some(number),
            Value::Bytes(_) => None,
        }
    }

    /// Returns the transport part, if there is one.
    #[must_use]
    pub const fn packet(&self) -> Option<&Packet<'a>> {
        match &self.protocol {
            Protocol::Roce(Some(packet)) => Some(packet),
            Protocol::Roce(None) | Protocol::Pause | Protocol::Other(..) => None,
        }
    }

    /// Returns how the packet is carried, or `None` if it is native InfiniBand or has no network header.
    #[must_use]
    pub fn encapsulation(&self) -> Option<Encapsulation> {
        match self.outer.network? {
            NetworkView::Ipv4(_) | NetworkView::Ipv6(_) => Some(Encapsulation::RoceV2),
            NetworkView::Grh(_) if self.outer.is_native_infiniband() => None,
            NetworkView::Grh(_) => Some(Encapsulation::RoceV1),
        }
    }

    /// Returns the name of the protocol of a packet with a BTH.
    #[must_use]
    pub fn roce_name(&self) -> &'static str {
        match self.encapsulation() {
            Some(encapsulation) => encapsulation.name(),
            None if self.outer.is_native_infiniband() => "InfiniBand",
            None => "RoCE",
        }
    }

    /// Adds a part, limited to the bytes that are present.
    fn push(&mut self, header: &'static Header, start: usize, len: usize) {
        let len = len.min(self.bytes.len().saturating_sub(start));
        if len > 0 {
            self.parts.push(Part { header, start, len, is_outer: false });
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

    /// Returns whether the request at `start` comes from rdma_cm, whose private data begins with a header.
    fn is_rdma_cm(&self, start: usize) -> bool {
        let id = self.bytes.get(start + 8..).and_then(<[u8]>::first_chunk);
        id.is_some_and(|id| ServiceId(u64::from_be_bytes(*id)).port().is_some())
    }

    /// Sets the protocol of a packet that is not RoCE.
    fn other(&mut self) {
        let in_tunnel = self.outer.tunnel_layers().last().is_some();
        let (name, detail) = match self.outer.foreign {
            Some(Foreign::EtherType(EtherType::MAC_CONTROL)) if !in_tunnel => return self.pause(),
            Some(Foreign::EtherType(ether_type)) => {
                (named(ether_type.name(), format!("EtherType {ether_type}")), String::new())
            }
            Some(Foreign::Protocol(protocol)) => {
                (ip_protocol(protocol), self.tcp_ports(protocol).unwrap_or_default())
            }
            Some(Foreign::Port { source, destination }) => {
                ("UDP".to_owned(), format!("port {source} > {destination}"))
            }
            Some(Foreign::Fragment) => (ip_protocol(self.fragment_protocol()), "fragment".to_owned()),
            Some(Foreign::Tunnel(header)) => (header.name.to_owned(), "unknown contents".to_owned()),
            Some(Foreign::TooDeep) => ("too deep".to_owned(), "more headers than are decoded".to_owned()),
            Some(Foreign::Short) => ("cut".to_owned(), "too short to identify".to_owned()),
            Some(_) => ("unknown".to_owned(), String::new()),
            // The packet is an answer of a well-known service to the port of RoCE.
            None => {
                let ports = self.outer.udp.map(|udp| (udp.source_port(), udp.destination_port()));
                let (source, destination) = ports.unwrap_or_default();
                ("UDP".to_owned(), format!("port {source} > {destination}, but not RoCE"))
            }
        };
        self.protocol = Protocol::Other(name, detail);
    }

    /// Returns the TCP ports, if the protocol is TCP.
    fn tcp_ports(&self, protocol: u8) -> Option<String> {
        const TCP: u8 = 6;

        let last = self.outer.layers().last()?;
        let behind = self.bytes.get(last.offset + last.len..)?;
        let (TCP, Some(&[a, b, c, d])) = (protocol, behind.first_chunk()) else { return None };
        Some(format!("port {} > {}", u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d])))
    }

    /// Returns the protocol of a fragment.
    fn fragment_protocol(&self) -> u8 {
        match self.outer.network {
            Some(NetworkView::Ipv4(ip)) => ip.protocol(),
            _ => self.number("ipv6.fraghdr.nxt").unwrap_or(0) as u8,
        }
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

/// Returns whether the opcode is manufacturer-specific. Such a packet is valid, but the headers after the BTH
/// are unknown.
fn is_vendor_specific(error: &ParseError) -> bool {
    error.kind == ParseErrorKind::UnknownOpcode && Opcode(error.have as u8).is_vendor_specific()
}

fn named(name: Option<&str>, number: String) -> String {
    name.map_or(number, str::to_owned)
}

fn ip_protocol(protocol: u8) -> String {
    named(ip_protocol_name(protocol), format!("IP protocol {protocol}"))
}

const ICRC_LEN: usize = 4;
