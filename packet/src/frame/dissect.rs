//! Parsing of a frame layer by layer.

use crate::error::{Layer, ParseError, ParseErrorKind};
use crate::ethernet::{EtherType, EthernetHeader, EthernetView, VlanHeader, VlanTag, VlanView};
use crate::grh::{Grh, GrhView};
use crate::ipv4::{Ipv4Header, Ipv4View};
use crate::ipv6::{Ipv6Header, Ipv6View};
use crate::path::ROCE_UDP_PORT;
use crate::udp::{IP_PROTOCOL_UDP, UdpHeader, UdpView};

use super::{FrameHeaders, NetworkHeader};

/// Layer 3 as laid out in a frame.
#[derive(Clone, Copy, Debug)]
pub enum NetworkView<'a> {
    /// IPv4.
    Ipv4(&'a Ipv4View),
    /// IPv6.
    Ipv6(&'a Ipv6View),
    /// The GRH of RoCE v1.
    Grh(&'a GrhView),
}

/// The readable parts of a frame, and the first error in it.
///
/// Dissection continues after an error if the position of the following layers is still known. Such errors
/// are a wrong checksum, IPv4 options, and lengths that contradict each other or exceed the frame.
#[derive(Clone, Copy, Debug, Default)]
pub struct Dissection<'a> {
    /// The Ethernet header.
    pub ethernet: Option<&'a EthernetView>,
    /// The 802.1Q tag.
    pub vlan: Option<&'a VlanView>,
    /// Layer 3.
    pub network: Option<NetworkView<'a>>,
    /// Offset of layer 3; 0 if dissection did not reach it.
    pub network_offset: usize,
    /// The UDP header.
    pub udp: Option<&'a UdpView>,
    /// Offset of the UDP header; 0 if dissection did not reach it.
    pub udp_offset: usize,
    /// BTH to ICRC. In a broken frame, the bytes that are present, with the shorter one of two contradicting
    /// lengths.
    pub transport: Option<&'a [u8]>,
    /// Offset of the BTH; 0 if dissection did not reach it.
    pub transport_offset: usize,
    /// Length from BTH to ICRC according to the headers, in bytes. Exceeds that of `transport` if bytes are
    /// missing.
    pub transport_len: usize,
    /// The bytes after `transport`.
    pub trailer: &'a [u8],
    /// The first error. [`ParseErrorKind::NotRoce`] takes precedence over all other errors, because errors in
    /// frames of another protocol do not matter.
    pub error: Option<ParseError>,
    /// Number of bytes of the frame that are not available to the dissection.
    unseen: usize,
}

impl<'a> Dissection<'a> {
    /// Dissects a frame, starting at its Ethernet header.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Self {
        Self::on_port(bytes, ROCE_UDP_PORT)
    }

    /// Dissects a frame as [`Self::new`] does, with another UDP port for RoCE v2.
    #[must_use]
    pub fn on_port(bytes: &'a [u8], port: u16) -> Self {
        Self::of_part(bytes, bytes.len(), port)
    }

    /// Dissects a frame of `frame_len` bytes as [`Self::on_port`] does, of which `bytes` are the first. The
    /// remaining bytes may be missing without an error: a capture truncated them, or a device stores them
    /// elsewhere.
    #[must_use]
    pub fn of_part(bytes: &'a [u8], frame_len: usize, port: u16) -> Self {
        let mut dissection = Self { unseen: frame_len.saturating_sub(bytes.len()), ..Self::default() };
        if let Err(error) = dissection.walk_ethernet(bytes, port) {
            dissection.note(error);
        }
        dissection
    }

    /// Returns whether the frame is of another protocol than RoCE.
    #[must_use]
    pub const fn is_not_roce(&self) -> bool {
        matches!(self.error, Some(ParseError { kind: ParseErrorKind::NotRoce, .. }))
    }

    /// Returns the tag of an 802.1Q frame.
    #[must_use]
    pub fn vlan_tag(&self) -> Option<VlanTag> {
        self.vlan.map(VlanView::tag)
    }

    /// Returns the headers, if they have no error, and the available bytes from BTH to ICRC.
    pub fn headers(&self) -> Result<(FrameHeaders, &'a [u8]), ParseError> {
        if let Some(error) = self.error {
            return Err(error);
        }
        // Without an error, dissection has found every layer. The error below is only a fallback.
        let (Some(ethernet), Some(transport), Some(network)) =
            (self.ethernet, self.transport, self.network_header())
        else {
            return Err(ParseError::truncated(Layer::Ethernet, 0, EthernetHeader::LEN, 0));
        };
        let headers = FrameHeaders {
            destination: ethernet.destination(),
            source: ethernet.source(),
            vlan: self.vlan_tag(),
            network,
        };
        Ok((headers, transport))
    }

    /// Returns layers 3 and 4 of a dissection without errors.
    fn network_header(&self) -> Option<NetworkHeader> {
        let udp = self.udp.map(UdpHeader::of_checked);
        Some(match (self.network?, udp) {
            (NetworkView::Ipv4(ip), Some(udp)) => NetworkHeader::Ipv4 { ip: Ipv4Header::of_checked(ip), udp },
            (NetworkView::Ipv6(ip), Some(udp)) => NetworkHeader::Ipv6 { ip: Ipv6Header::of_checked(ip), udp },
            (NetworkView::Grh(grh), None) => NetworkHeader::Grh(Grh::of_checked(grh)),
            _ => return None,
        })
    }

    fn note(&mut self, error: ParseError) {
        if self.error.is_none() || error.kind == ParseErrorKind::NotRoce {
            self.error = Some(error);
        }
    }

    /// Records an error if the frame is too short for a layer 3 packet of `need` bytes.
    fn note_missing(&mut self, layer: Layer, packet: &[u8], need: usize) {
        let have = packet.len().saturating_add(self.unseen);
        if have < need {
            self.note(ParseError::truncated(layer, self.network_offset, need, have));
        }
    }

    /// Dissects the Ethernet header. `Err` means in every function here that dissection cannot continue.
    fn walk_ethernet(&mut self, bytes: &'a [u8], port: u16) -> Result<(), ParseError> {
        let (ethernet, mut rest) = EthernetView::from_prefix(bytes)?;
        self.ethernet = Some(ethernet);
        let mut layer = Layer::Ethernet;
        let mut ether_type = ethernet.ether_type();
        let mut offset = EthernetHeader::LEN;
        if ether_type == EtherType::VLAN {
            let (vlan, behind) = VlanView::from_prefix(rest).map_err(|error| error.moved_by(offset))?;
            self.vlan = Some(vlan);
            layer = Layer::Vlan;
            ether_type = vlan.ether_type();
            offset += VlanHeader::LEN;
            rest = behind;
        }
        self.network_offset = offset;
        match ether_type {
            EtherType::IPV4 => self.walk_ipv4(rest, port),
            EtherType::IPV6 => self.walk_ipv6(rest, port),
            EtherType::ROCE_V1 => self.walk_grh(rest),
            other => {
                // The EtherType is the last field of both headers.
                self.network_offset = 0;
                Err(not_roce(layer, offset - size_of::<u16>(), other.0.into()))
            }
        }
    }

    fn walk_ipv4(&mut self, packet: &'a [u8], port: u16) -> Result<(), ParseError> {
        let base = self.network_offset;
        let (view, rest) = Ipv4View::from_prefix(packet).map_err(|error| error.moved_by(base))?;
        self.network = Some(NetworkView::Ipv4(view));
        if view.version() == 4 {
            if view.protocol() != IP_PROTOCOL_UDP {
                return Err(not_roce(Layer::Ipv4, base + 9, view.protocol().into()));
            }
            // Only the first fragment contains ports, and senders never fragment RoCE.
            if view.fragment_offset() != 0 {
                return Err(not_roce(Layer::Ipv4, base + 6, view.fragment_offset()));
            }
        }
        let header_len = view.header_len();
        let total_len = usize::from(view.total_length());
        if let Err(error) = Ipv4Header::check(view) {
            self.note(error.moved_by(base));
            if error.kind == ParseErrorKind::BadVersion || error.kind == ParseErrorKind::BadLength {
                return Ok(());
            }
        }
        let options_len = header_len.saturating_sub(Ipv4Header::LEN);
        let Some((_, rest)) = rest.split_at_checked(options_len) else {
            return Err(ParseError::truncated(Layer::Ipv4, base, header_len, packet.len()));
        };
        self.note_missing(Layer::Ipv4, packet, total_len);
        let payload_len = total_len.saturating_sub(header_len);
        self.walk_udp(base + header_len, rest, payload_len, port)
    }

    fn walk_ipv6(&mut self, packet: &'a [u8], port: u16) -> Result<(), ParseError> {
        let base = self.network_offset;
        let (view, rest) = Ipv6View::from_prefix(packet).map_err(|error| error.moved_by(base))?;
        self.network = Some(NetworkView::Ipv6(view));
        Ipv6Header::check(view).map_err(|error| error.moved_by(base))?;
        let next_header = view.next_header();
        if next_header != IP_PROTOCOL_UDP {
            let hidden = udp_behind_extension_headers(next_header, rest);
            let kind = match hidden {
                Some(udp) if udp.destination_port() == port => ParseErrorKind::Unsupported,
                _ => ParseErrorKind::NotRoce,
            };
            return Err(ParseError {
                layer: Layer::Ipv6,
                kind,
                offset: base + 6,
                need: IP_PROTOCOL_UDP.into(),
                have: next_header.into(),
            });
        }
        let payload_len = usize::from(view.payload_length());
        self.note_missing(Layer::Ipv6, packet, Ipv6Header::LEN + payload_len);
        self.walk_udp(base + Ipv6Header::LEN, rest, payload_len, port)
    }

    fn walk_grh(&mut self, packet: &'a [u8]) -> Result<(), ParseError> {
        let base = self.network_offset;
        let (view, rest) = GrhView::from_prefix(packet).map_err(|error| error.moved_by(base))?;
        self.network = Some(NetworkView::Grh(view));
        Grh::check(view).map_err(|error| error.moved_by(base))?;
        let payload_len = usize::from(view.payload_length());
        self.note_missing(Layer::Grh, packet, Grh::LEN + payload_len);
        self.finish(base + Grh::LEN, rest, payload_len);
        Ok(())
    }

    /// Dissects UDP. `rest` begins with the UDP header, and `payload_len` is the payload length in the IP
    /// header.
    fn walk_udp(
        &mut self,
        base: usize,
        rest: &'a [u8],
        payload_len: usize,
        port: u16,
    ) -> Result<(), ParseError> {
        // The Ethernet padding cannot contain a UDP header.
        let packet = rest.get(..payload_len).unwrap_or(rest);
        let (view, _) = UdpView::from_prefix(packet).map_err(|error| error.moved_by(base))?;
        self.udp_offset = base;
        self.udp = Some(view);
        if view.destination_port() != port {
            return Err(not_roce(Layer::Udp, base + 2, view.destination_port().into()));
        }
        let udp_len = usize::from(view.length());
        if let Err(error) = UdpHeader::check(view) {
            self.note(error.moved_by(base));
        } else if udp_len != payload_len {
            self.note(ParseError {
                layer: Layer::Udp,
                kind: ParseErrorKind::BadLength,
                offset: base + 4,
                need: payload_len,
                have: udp_len,
            });
        }
        let transport_len = udp_len.min(payload_len).saturating_sub(UdpHeader::LEN);
        self.finish(base + UdpHeader::LEN, rest.get(UdpHeader::LEN..).unwrap_or_default(), transport_len);
        Ok(())
    }

    /// Stores the datagram. `rest` begins with the BTH.
    fn finish(&mut self, base: usize, rest: &'a [u8], transport_len: usize) {
        self.transport_offset = base;
        self.transport_len = transport_len;
        let (transport, trailer) = rest.split_at_checked(transport_len).unwrap_or((rest, &[]));
        self.transport = Some(transport);
        self.trailer = trailer;
    }
}

const fn not_roce(layer: Layer, offset: usize, have: usize) -> ParseError {
    ParseError { layer, kind: ParseErrorKind::NotRoce, offset, need: 0, have }
}

/// Looks for UDP after IPv6 extension headers: hop-by-hop options, routing, destination options, and the
/// header of a first or only fragment (RFC 8200 section 4). RoCE has no extension headers, but such a packet
/// must be reported instead of being ignored as another protocol.
fn udp_behind_extension_headers(first: u8, bytes: &[u8]) -> Option<&UdpView> {
    const HOP_BY_HOP: u8 = 0;
    const ROUTING: u8 = 43;
    const FRAGMENT: u8 = 44;
    const DESTINATION_OPTIONS: u8 = 60;
    const MOST: usize = 8;

    let (mut next, mut rest) = (first, bytes);
    for _ in 0..MOST {
        let len = match (next, rest) {
            (IP_PROTOCOL_UDP, _) => return UdpView::from_prefix(rest).ok().map(|(view, _)| view),
            (HOP_BY_HOP | ROUTING | DESTINATION_OPTIONS, [_, length, ..]) => (usize::from(*length) + 1) * 8,
            // The offset is in the upper 13 bits of bytes 2 and 3.
            (FRAGMENT, [_, _, high, low, ..]) if *high == 0 && *low & 0xf8 == 0 => 8,
            _ => return None,
        };
        next = *rest.first()?;
        rest = rest.get(len..)?;
    }
    None
}
