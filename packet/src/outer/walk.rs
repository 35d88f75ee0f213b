//! Decoding of a captured packet, header by header.

use super::tables::{
    AUTHENTICATION, CONTROL_WORD, DESTINATION_OPTIONS, ERSPAN_II, ERSPAN_III, FRAGMENT, GENEVE, GRE,
    GRE_CHECKSUM, GRE_KEY, GRE_SEQUENCE, HOP_BY_HOP, MPLS, ROUTING, SERVICE_VLAN, VXLAN, VXLAN_GPE,
    tunnel_port,
};
use super::{Cut, Foreign, Link, MAX_LAYERS, Outer, OuterLayer};
use crate::error::{Layer, ParseError, ParseErrorKind};
use crate::ethernet::{ETHERNET, EtherType, EthernetHeader, EthernetView, VLAN, VlanHeader, VlanView};
use crate::fields::Header;
use crate::frame::NetworkView;
use crate::grh::{GRH, Grh, GrhView};
use crate::ipv4::{IPV4, IPV4_OPTIONS, Ipv4Header, Ipv4View};
use crate::ipv6::{IPV6, Ipv6Header, Ipv6View};
use crate::udp::{IP_PROTOCOL_UDP, UDP, UdpHeader, UdpView};

impl<'a> Outer<'a> {
    /// Decodes a packet of `wire_len` bytes on the captured wire, of which `bytes` are the first. `port` is
    /// the UDP port of RoCE v2.
    #[must_use]
    pub fn decode(bytes: &'a [u8], link: Link, wire_len: usize, port: u16) -> Self {
        Walk::new(bytes, wire_len, port).run(link)
    }
}

/// The header that comes next.
#[derive(Clone, Copy, Debug)]
pub(super) enum Next {
    Ethernet,
    /// IP of the version in its first byte, or the GRH.
    Ip,
    Type(EtherType),
    Protocol(u8),
    Gre,
    Mpls,
}

pub(super) struct Walk<'a> {
    pub(super) outer: Outer<'a>,
    port: u16,
    /// Offset of the next header.
    pub(super) at: usize,
    /// Offset at which the current packet ended on the captured wire: the end of the frame or of the
    /// enclosing packet, whichever is first.
    end: usize,
    /// Offset at which the current packet ends according to its own IP header.
    claimed_end: usize,
    /// Length of the frame on the captured wire, in bytes.
    pub(super) wire_len: usize,
    is_first_fragment: bool,
}

const CONTROL_WORD_LEN: usize = 4;

/// The next header. `None` ends the decoding; `outer` contains the reason.
pub(super) type Step = Option<Next>;

impl<'a> Walk<'a> {
    pub(super) fn new(bytes: &'a [u8], wire_len: usize, port: u16) -> Self {
        let wire_len = wire_len.max(bytes.len());
        let nothing = OuterLayer { header: &ETHERNET, offset: 0, len: 0 };
        let outer = Outer {
            bytes,
            layers: [nothing; MAX_LAYERS],
            count: 0,
            tunnel: 0,
            is_contradictory: false,
            link_end: 0,
            link_type: EtherType::BRIDGED_ETHERNET,
            ethernet: None,
            lrh: None,
            vlan: None,
            network: None,
            network_offset: 0,
            extensions_len: 0,
            udp: None,
            udp_offset: 0,
            transport: None,
            transport_offset: 0,
            transport_len: 0,
            trailer: &[],
            cut: None,
            error: None,
            foreign: None,
        };
        Self { outer, port, at: 0, end: wire_len, claimed_end: wire_len, wire_len, is_first_fragment: false }
    }

    pub(super) fn run(mut self, link: Link) -> Outer<'a> {
        let mut next = self.link(link);
        // The loop ends, because at least every second step adds a layer and the number of layers is limited.
        while let Some(step) = next {
            next = match step {
                Next::Ethernet => self.ethernet(),
                Next::Ip => Some(Next::Type(self.ip_version())),
                Next::Type(ether_type) => self.ether_type(ether_type),
                Next::Protocol(protocol) => self.protocol(protocol),
                Next::Gre => self.gre(),
                Next::Mpls => self.mpls(),
            };
        }
        self.outer
    }

    fn link(&mut self, link: Link) -> Step {
        let next = match link {
            Link::Ethernet => return Some(Next::Ethernet),
            Link::InfiniBand => return self.lrh(),
            Link::Erf => return self.erf(),
            Link::Ip => Next::Ip,
            Link::AddressFamily => {
                self.peek::<4>()?;
                self.at = 4;
                Next::Ip
            }
            Link::LinuxSll => {
                let [.., high, low] = *self.peek::<16>()?;
                self.at = 16;
                Next::Type(EtherType(u16::from_be_bytes([high, low])))
            }
            Link::LinuxSll2 => {
                let [high, low, ..] = *self.peek::<20>()?;
                self.at = 20;
                Next::Type(EtherType(u16::from_be_bytes([high, low])))
            }
        };
        self.outer.link_end = self.at;
        self.outer.link_type = match next {
            Next::Type(ether_type) => ether_type,
            _ => self.ip_version(),
        };
        Some(Next::Type(self.outer.link_type))
    }

    /// Returns the remaining bytes that are present.
    pub(super) fn rest(&self) -> &'a [u8] {
        self.outer.bytes.get(self.at..).unwrap_or_default()
    }

    /// Returns the next bytes, if they are present and belong to the current packet.
    pub(super) fn peek<const N: usize>(&mut self) -> Option<&'a [u8; N]> {
        let chunk = self.rest().first_chunk().filter(|_| self.at.saturating_add(N) <= self.end);
        if chunk.is_none() {
            self.end_is_missing();
        }
        chunk
    }

    fn end_is_missing(&mut self) {
        self.outer.foreign = Some(Foreign::Short);
        let is_whole = self.wire_len <= self.outer.bytes.len();
        self.outer.cut = Some(if is_whole { Cut::Mirror } else { Cut::Capture });
    }

    pub(super) fn foreign(&mut self, foreign: Foreign) -> Step {
        self.outer.foreign = Some(foreign);
        None
    }

    pub(super) fn note(&mut self, result: Result<(), ParseError>, base: usize) {
        let Err(error) = result else { return };
        self.outer.is_contradictory |= error.kind != ParseErrorKind::BadChecksum;
        if self.outer.error.is_none() {
            self.outer.error = Some(error.moved_by(base));
        }
    }

    /// Adds a layer of `len` bytes, which must be present, and moves to its end.
    pub(super) fn push(&mut self, header: &'static Header, len: usize) -> Option<()> {
        let end = self.at.saturating_add(len);
        if end > self.end.min(self.outer.bytes.len()) {
            self.end_is_missing();
            return None;
        }
        let Some(place) = self.outer.layers.get_mut(self.outer.count) else {
            self.outer.foreign = Some(Foreign::TooDeep);
            return None;
        };
        *place = OuterLayer { header, offset: self.at, len };
        self.outer.count = self.outer.count.saturating_add(1);
        self.at = end;
        Some(())
    }

    /// Starts an inner packet, which the headers so far carry.
    fn enter(&mut self) {
        let outer = &mut self.outer;
        outer.tunnel = outer.count;
        outer.ethernet = None;
        outer.vlan = None;
        outer.network = None;
        outer.udp = None;
        outer.extensions_len = 0;
        // The checksum of an outer header does not concern the inner packet.
        outer.error = None;
        outer.is_contradictory = false;
        self.claimed_end = self.end;
    }

    fn ethernet(&mut self) -> Step {
        self.peek::<{ EthernetHeader::LEN }>()?;
        let (view, _) = EthernetView::from_prefix(self.rest()).ok()?;
        self.outer.ethernet = Some(view);
        self.push(&ETHERNET, EthernetHeader::LEN)?;
        Some(Next::Type(view.ether_type()))
    }

    fn ip_version(&self) -> EtherType {
        const NEXT_HEADER_BTH: u8 = Grh::NEXT_HEADER;
        match self.rest() {
            [first, ..] if first >> 4 == 4 => EtherType::IPV4,
            [_, _, _, _, _, _, NEXT_HEADER_BTH, ..] => EtherType::ROCE_V1,
            _ => EtherType::IPV6,
        }
    }

    fn ether_type(&mut self, ether_type: EtherType) -> Step {
        match ether_type {
            EtherType::IPV4 => self.ipv4(),
            EtherType::IPV6 => self.ipv6(),
            EtherType::ROCE_V1 => self.grh(),
            EtherType::VLAN | EtherType::OLD_SERVICE_VLAN => self.vlan(&VLAN),
            EtherType::SERVICE_VLAN => self.vlan(&SERVICE_VLAN),
            EtherType::MPLS | EtherType::MPLS_UPSTREAM => Some(Next::Mpls),
            // Only tunnels and cooked links use this EtherType.
            EtherType::BRIDGED_ETHERNET => Some(Next::Ethernet),
            other => self.foreign(Foreign::EtherType(other)),
        }
    }

    fn vlan(&mut self, header: &'static Header) -> Step {
        self.peek::<{ VlanHeader::LEN }>()?;
        let (view, _) = VlanView::from_prefix(self.rest()).ok()?;
        self.outer.vlan = Some(view.tag());
        self.push(header, VlanHeader::LEN)?;
        Some(Next::Type(view.ether_type()))
    }

    fn network(&mut self, view: NetworkView<'a>) {
        self.outer.network = Some(view);
        self.outer.network_offset = self.at;
        self.outer.extensions_len = 0;
    }

    /// Records the length of the packet that begins at `base`.
    pub(super) fn claim(&mut self, base: usize, len: usize) {
        self.claimed_end = base.saturating_add(len);
        self.end = self.end.min(self.claimed_end);
    }

    fn ipv4(&mut self) -> Step {
        let base = self.at;
        self.peek::<{ Ipv4Header::LEN }>()?;
        let (view, _) = Ipv4View::from_prefix(self.rest()).ok()?;
        self.network(NetworkView::Ipv4(view));
        self.push(&IPV4, Ipv4Header::LEN)?;
        if let Err(error) = Ipv4Header::check_lengths(view) {
            if view.version() == 4 && view.protocol() != IP_PROTOCOL_UDP {
                return self.foreign(Foreign::Protocol(view.protocol()));
            }
            self.note(Err(error), base);
            return None;
        }
        self.claim(base, view.total_length().into());
        let options_len = view.header_len().saturating_sub(Ipv4Header::LEN);
        let options = self.rest().get(..options_len).unwrap_or_default();
        if options_len > 0 {
            self.push(&IPV4_OPTIONS, options_len)?;
            self.outer.extensions_len = options_len;
        }
        self.note(Ipv4Header::check_checksum(view, options), base);
        if view.fragment_offset() != 0 {
            return self.foreign(Foreign::Fragment);
        }
        self.is_first_fragment |= view.more_fragments();
        Some(Next::Protocol(view.protocol()))
    }

    fn ipv6(&mut self) -> Step {
        let base = self.at;
        self.peek::<{ Ipv6Header::LEN }>()?;
        let (view, _) = Ipv6View::from_prefix(self.rest()).ok()?;
        self.network(NetworkView::Ipv6(view));
        self.push(&IPV6, Ipv6Header::LEN)?;
        if let Err(error) = Ipv6Header::check(view) {
            self.note(Err(error), base);
            return None;
        }
        self.claim(base, Ipv6Header::LEN.saturating_add(view.payload_length().into()));
        Some(Next::Protocol(view.next_header()))
    }

    pub(super) fn grh(&mut self) -> Step {
        let base = self.at;
        self.peek::<{ Grh::LEN }>()?;
        let (view, _) = GrhView::from_prefix(self.rest()).ok()?;
        self.network(NetworkView::Grh(view));
        self.push(&GRH, Grh::LEN)?;
        if let Err(error) = Grh::check(view) {
            self.note(Err(error), base);
            return None;
        }
        let payload_len = usize::from(view.payload_length());
        self.claim(base, Grh::LEN.saturating_add(payload_len));
        self.finish(payload_len);
        None
    }

    fn protocol(&mut self, protocol: u8) -> Step {
        let is_ipv6 = matches!(self.outer.network, Some(NetworkView::Ipv6(_)));
        match protocol {
            IP_PROTOCOL_UDP => self.udp(),
            0 if is_ipv6 => self.extension(&HOP_BY_HOP),
            43 if is_ipv6 => self.extension(&ROUTING),
            44 if is_ipv6 => self.extension(&FRAGMENT),
            60 if is_ipv6 => self.extension(&DESTINATION_OPTIONS),
            51 => self.extension(&AUTHENTICATION),
            4 => self.carried(Next::Type(EtherType::IPV4)),
            41 => self.carried(Next::Type(EtherType::IPV6)),
            47 => Some(Next::Gre),
            137 => Some(Next::Mpls),
            other => self.foreign(Foreign::Protocol(other)),
        }
    }

    fn carried(&mut self, next: Next) -> Step {
        self.enter();
        Some(next)
    }

    /// Decodes an IPv6 extension header, or the authentication header of either IP version.
    fn extension(&mut self, header: &'static Header) -> Step {
        let [next, length, high, low, ..] = *self.peek::<8>()?;
        let units = usize::from(length);
        let len = if core::ptr::eq(header, &FRAGMENT) {
            8
        } else if core::ptr::eq(header, &AUTHENTICATION) {
            units.saturating_add(2).saturating_mul(4)
        } else {
            units.saturating_add(1).saturating_mul(8)
        };
        self.push(header, len)?;
        self.outer.extensions_len = self.outer.extensions_len.saturating_add(len);
        if core::ptr::eq(header, &FRAGMENT) {
            let word = u16::from_be_bytes([high, low]);
            // The offset is in the upper 13 bits. The last bit means that more fragments follow.
            if word >> 3 != 0 {
                return self.foreign(Foreign::Fragment);
            }
            self.is_first_fragment |= word & 1 != 0;
        }
        Some(Next::Protocol(next))
    }

    fn udp(&mut self) -> Step {
        let base = self.at;
        // The lengths in the headers leave no room for a UDP header. This is an error, not a cut.
        let room = self.claimed_end.saturating_sub(base);
        if room < UdpHeader::LEN {
            self.note(Err(ParseError::truncated(Layer::Udp, 0, UdpHeader::LEN, room)), base);
            return None;
        }
        self.peek::<{ UdpHeader::LEN }>()?;
        let (view, _) = UdpView::from_prefix(self.rest()).ok()?;
        self.outer.udp = Some(view);
        self.outer.udp_offset = base;
        self.push(&UDP, UdpHeader::LEN)?;
        let (source, destination) = (view.source_port(), view.destination_port());
        if destination != self.port {
            return match tunnel_port(destination) {
                Some(tunnel) => self.udp_tunnel(tunnel),
                None => self.foreign(Foreign::Port { source, destination }),
            };
        }
        let udp_len = usize::from(view.length());
        let len = if self.is_first_fragment { udp_len } else { udp_len.min(room) };
        if let Err(error) = UdpHeader::check(view) {
            self.note(Err(error), base);
        } else if udp_len != room && !self.is_first_fragment {
            let kind = ParseErrorKind::BadLength;
            let error = ParseError { layer: Layer::Udp, kind, offset: 4, need: room, have: udp_len };
            self.note(Err(error), base);
        }
        self.finish(len.saturating_sub(UdpHeader::LEN));
        None
    }

    /// Stores the datagram, which begins here.
    pub(super) fn finish(&mut self, len: usize) {
        let outer = &mut self.outer;
        outer.transport_offset = self.at;
        outer.transport_len = len;
        let end = self.at.saturating_add(len);
        let present = end.min(self.end).min(outer.bytes.len());
        outer.transport = Some(outer.bytes.get(self.at..present).unwrap_or_default());
        outer.trailer = outer.bytes.get(end..).unwrap_or_default();
        if present < end {
            outer.cut = Some(match (self.is_first_fragment, end > self.end) {
                (true, _) => Cut::Fragment,
                (false, true) => Cut::Mirror,
                (false, false) => Cut::Capture,
            });
        }
    }

    fn udp_tunnel(&mut self, header: &'static Header) -> Step {
        if core::ptr::eq(header, &GRE) {
            return Some(Next::Gre);
        }
        if core::ptr::eq(header, &MPLS) {
            return Some(Next::Mpls);
        }
        let [first, _, high, low, ..] = *self.peek::<8>()?;
        let mut len = 8_usize;
        let next = if core::ptr::eq(header, &VXLAN) {
            // The flag means that the network identifier is valid.
            if first & 0x08 == 0 {
                return self.foreign(Foreign::Tunnel(header));
            }
            Next::Ethernet
        } else if core::ptr::eq(header, &VXLAN_GPE) {
            match low {
                1 => Next::Type(EtherType::IPV4),
                2 => Next::Type(EtherType::IPV6),
                3 => Next::Ethernet,
                5 => Next::Mpls,
                _ => return self.foreign(Foreign::Tunnel(header)),
            }
        } else {
            if first & 0xc0 != 0 {
                return self.foreign(Foreign::Tunnel(header));
            }
            len = len.saturating_add(usize::from(first & 0x3f).saturating_mul(4));
            Next::Type(EtherType(u16::from_be_bytes([high, low])))
        };
        debug_assert!(core::ptr::eq(header, &GENEVE) || len == 8);
        self.push(header, len)?;
        self.carried(next)
    }

    fn gre(&mut self) -> Step {
        const CHECKSUM: u8 = 0x80;
        const ROUTING: u8 = 0x40;
        const KEY: u8 = 0x20;
        const SEQUENCE: u8 = 0x10;
        const ERSPAN: u16 = 0x88be;
        const ERSPAN_3: u16 = 0x22eb;

        let [flags, version, high, low] = *self.peek::<4>()?;
        if version & 0x07 != 0 || flags & ROUTING != 0 {
            return self.foreign(Foreign::Tunnel(&GRE));
        }
        self.push(&GRE, 4)?;
        for (flag, header) in [(CHECKSUM, &GRE_CHECKSUM), (KEY, &GRE_KEY), (SEQUENCE, &GRE_SEQUENCE)] {
            if flags & flag != 0 {
                self.push(header, 4)?;
            }
        }
        match u16::from_be_bytes([high, low]) {
            // Type I has neither a sequence number nor its own header.
            ERSPAN if flags & SEQUENCE == 0 => self.carried(Next::Ethernet),
            ERSPAN => {
                let [first, ..] = *self.peek::<8>()?;
                if first >> 4 != 1 {
                    return self.foreign(Foreign::Tunnel(&ERSPAN_II));
                }
                self.push(&ERSPAN_II, 8)?;
                self.carried(Next::Ethernet)
            }
            ERSPAN_3 => self.erspan_3(),
            other => self.carried(Next::Type(EtherType(other))),
        }
    }

    fn erspan_3(&mut self) -> Step {
        let [first, .., kind, last] = *self.peek::<12>()?;
        if first >> 4 != 2 {
            return self.foreign(Foreign::Tunnel(&ERSPAN_III));
        }
        // Eight bytes of platform data follow if the last bit is set.
        self.push(&ERSPAN_III, if last & 1 != 0 { 20 } else { 12 })?;
        match kind >> 2 & 0x1f {
            0 => self.carried(Next::Ethernet),
            2 => self.carried(Next::Ip),
            _ => self.foreign(Foreign::Tunnel(&ERSPAN_III)),
        }
    }

    fn mpls(&mut self) -> Step {
        loop {
            let [_, _, bottom, _] = *self.peek::<4>()?;
            self.push(&MPLS, 4)?;
            if bottom & 1 != 0 {
                break;
            }
        }
        // No header announces the type of the payload. IP begins with its version. An Ethernet frame may
        // follow a control word, which begins with zero bits, as the addresses of many vendors do.
        match *self.peek::<1>()? {
            [first] if first >> 4 == 4 || first >> 4 == 6 => self.carried(Next::Ip),
            [first]
                if first >> 4 == 0 && !self.is_ethernet_at(0) && self.is_ethernet_at(CONTROL_WORD_LEN) =>
            {
                self.push(&CONTROL_WORD, CONTROL_WORD_LEN)?;
                self.carried(Next::Ethernet)
            }
            _ if self.is_ethernet_at(0) => self.carried(Next::Ethernet),
            _ if self.rest().len() < CONTROL_WORD_LEN.saturating_add(EthernetHeader::LEN) => {
                self.end_is_missing();
                None
            }
            _ => self.foreign(Foreign::Tunnel(&MPLS)),
        }
    }

    /// Returns whether an Ethernet header with an EtherType that may lead to RoCE begins after `skipped`
    /// bytes.
    fn is_ethernet_at(&self, skipped: usize) -> bool {
        let frame = self.rest().get(skipped..).unwrap_or_default();
        is_likely_ethernet(frame)
    }
}

pub(super) fn is_likely_ethernet(frame: &[u8]) -> bool {
    EthernetView::from_prefix(frame).is_ok_and(|(view, _)| {
        matches!(
            view.ether_type(),
            EtherType::IPV4
                | EtherType::IPV6
                | EtherType::ROCE_V1
                | EtherType::VLAN
                | EtherType::SERVICE_VLAN
                | EtherType::MPLS
                | EtherType::ARP
        )
    })
}
