//! The walk through the layers of a frame.

use crate::error::{Layer, ParseError, ParseErrorKind};
use crate::ethernet::{EtherType, EthernetHeader, EthernetView, VlanHeader, VlanTag, VlanView};
use crate::grh::{Grh, GrhView};
use crate::ipv4::{Ipv4Header, Ipv4View};
use crate::ipv6::{Ipv6Header, Ipv6View};
use crate::path::ROCE_UDP_PORT;
use crate::udp::{IP_PROTOCOL_UDP, UdpHeader, UdpView};

use super::{Frame, FrameHeaders, NetworkHeader};

/// Layer 3 as it lies in a frame.
#[derive(Clone, Copy, Debug)]
pub enum NetworkView<'a> {
    /// IPv4.
    Ipv4(&'a Ipv4View),
    /// IPv6.
    Ipv6(&'a Ipv6View),
    /// The GRH of RoCE v1.
    Grh(&'a GrhView),
}

/// As much of a frame as can be read, and the first thing that is wrong with it.
///
/// The walk goes on behind an error where what follows can still be found: behind a wrong checksum, behind
/// IPv4 options, behind lengths that contradict each other or promise more than there is.
#[derive(Clone, Copy, Debug, Default)]
pub struct Dissection<'a> {
    /// The Ethernet header.
    pub ethernet: Option<&'a EthernetView>,
    /// The 802.1Q tag.
    pub vlan: Option<&'a VlanView>,
    /// Layer 3.
    pub network: Option<NetworkView<'a>>,
    /// Where layer 3 begins; 0 when the walk did not get there.
    pub network_offset: usize,
    /// The UDP header.
    pub udp: Option<&'a UdpView>,
    /// Where the UDP header begins; 0 when the walk did not get there.
    pub udp_offset: usize,
    /// BTH to ICRC. In a broken frame: as much of it as there is, and the shorter if two lengths contradict.
    pub transport: Option<&'a [u8]>,
    /// Where the BTH begins; 0 when the walk did not get there.
    pub transport_offset: usize,
    /// Bytes from BTH to ICRC as the headers have it: more than `transport` has if some are missing.
    pub transport_len: usize,
    /// What the frame has behind `transport`.
    pub trailer: &'a [u8],
    /// The first thing that is wrong. [`ParseErrorKind::NotRoce`] wins over everything else: a damaged frame
    /// of another protocol is none of ours.
    pub error: Option<ParseError>,
    /// Bytes that the frame has and the walk cannot see.
    unseen: usize,
}

impl<'a> Dissection<'a> {
    /// Walks through a frame from its Ethernet header on.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Self {
        Self::on_port(bytes, ROCE_UDP_PORT)
    }

    /// As [`Self::new`], for RoCE v2 on another UDP port.
    #[must_use]
    pub fn on_port(bytes: &'a [u8], port: u16) -> Self {
        Self::of_part(bytes, bytes.len(), port)
    }

    /// As [`Self::on_port`], for a frame of `frame_len` bytes of which only the first are at hand: a capture cut
    /// them off, or a device has them elsewhere. That these bytes are missing is not an error.
    #[must_use]
    pub fn of_part(bytes: &'a [u8], frame_len: usize, port: u16) -> Self {
        let mut dissection = Self { unseen: frame_len.saturating_sub(bytes.len()), ..Self::default() };
        if let Err(error) = dissection.walk_ethernet(bytes, port) {
            dissection.note(error);
        }
        dissection
    }

    /// Whether the frame is something else than RoCE.
    #[must_use]
    pub const fn is_not_roce(&self) -> bool {
        matches!(self.error, Some(ParseError { kind: ParseErrorKind::NotRoce, .. }))
    }

    /// The tag of an 802.1Q frame.
    #[must_use]
    pub fn vlan_tag(&self) -> Option<VlanTag> {
        self.vlan.map(VlanView::tag)
    }

    /// The frame, if nothing is wrong with it and no byte of its datagram is missing.
    pub fn into_frame(self) -> Result<Frame<'a>, ParseError> {
        let (headers, transport) = self.headers()?;
        if transport.len() < self.transport_len {
            let (offset, need) = (self.transport_offset, self.transport_len);
            return Err(ParseError::truncated(Layer::Payload, offset, need, transport.len()));
        }
        Ok(Frame { headers, transport, trailer: self.trailer })
    }

    /// The headers, if nothing is wrong with them, and as much of BTH to ICRC as there is.
    pub fn headers(&self) -> Result<(FrameHeaders, &'a [u8]), ParseError> {
        if let Some(error) = self.error {
            return Err(error);
        }
        // Without an error the walk has found every layer; there is nothing else to say if it has not.
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

    /// Layers 3 and 4 of a walk that noted no error.
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

    /// Notes if a layer 3 packet of `need` bytes is not wholly in the frame.
    fn note_missing(&mut self, layer: Layer, packet: &[u8], need: usize) {
        let have = packet.len().saturating_add(self.unseen);
        if have < need {
            self.note(ParseError::truncated(layer, self.network_offset, need, have));
        }
    }

    /// Every `Err` of the walk is where it cannot go on.
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
                // The EtherType is the last field of either header.
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
            // Only the first fragment has ports, and senders never fragment RoCE.
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

    /// `rest` is what the frame has from the UDP header on, `payload_len` what IP says belongs to the packet.
    fn walk_udp(
        &mut self,
        base: usize,
        rest: &'a [u8],
        payload_len: usize,
        port: u16,
    ) -> Result<(), ParseError> {
        // A UDP header in the Ethernet padding is none.
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

    /// `rest` is what the frame has from the BTH on.
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

/// Looks for UDP behind IPv6 extension headers: hop-by-hop options, routing, destination options, and the
/// header of a first or only fragment (RFC 8200 section 4). RoCE has none of them, but a packet that does
/// should be reported and not ignored as foreign.
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
