//! The RoCE datagram after the outer headers: its ICRC, and the certainty that it is RoCE.

use core::net::IpAddr;

use crc32fast::Hasher;

use super::walk::is_likely_ethernet;
use super::{Foreign, Outer, OuterLayer};
use crate::bth::BthView;
use crate::datagram::Datagram;
use crate::envelope::Envelope;
use crate::ethernet::MacAddr;
use crate::fields::{IPV4, IPV6, UDP};
use crate::frame::{FrameHeaders, IcrcCheck, NetworkHeader, NetworkView};
use crate::grh::Grh;
use crate::icrc;
use crate::ipv4::Ipv4Header;
use crate::ipv6::Ipv6Header;
use crate::lrh::LRH;
use crate::path::{Encapsulation, ROCE_UDP_PORT};
use crate::telemetry::Telemetry;
use crate::udp::{IP_PROTOCOL_UDP, UdpHeader};

/// The headers that an ICRC covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IcrcForm {
    /// IP, UDP, and BTH to padding, as in the specification. Options and extension headers are not covered,
    /// and the lengths are those without them: routers may insert them after the sender has computed the
    /// ICRC.
    Plain,
    /// All headers as they are, including IPv4 options, extension headers and authentication headers.
    AsFound,
}

/// The result of checking an ICRC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OuterIcrc {
    /// The computed ICRC, and the one in the packet.
    pub check: IcrcCheck,
    /// The headers that the computed ICRC covers.
    pub form: IcrcForm,
    /// Length of in-band telemetry after the ICRC, in bytes.
    pub telemetry_len: usize,
}

/// The probable protocol of a UDP packet to another port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Guess {
    /// RoCE: the ICRC is correct.
    Roce,
    /// VXLAN: its header and an Ethernet header follow.
    Vxlan,
}

/// First port above those of well-known services. RoCE senders do not use lower ports.
const FIRST_FREE_PORT: u16 = 1024;
/// Length of the shortest datagram, a BTH and an ICRC, in bytes.
const BTH_AND_ICRC_LEN: usize = 16;

impl<'a> Outer<'a> {
    /// Returns the source and destination address of the innermost packet.
    #[must_use]
    pub fn addresses(&self) -> Option<(IpAddr, IpAddr)> {
        Some(match self.network? {
            NetworkView::Ipv4(ip) => (ip.source().into(), ip.destination().into()),
            NetworkView::Ipv6(ip) => (ip.source().into(), ip.destination().into()),
            NetworkView::Grh(grh) => (grh.source().to_ip(), grh.destination().to_ip()),
        })
    }

    /// Returns DSCP and ECN of the innermost packet.
    #[must_use]
    pub fn traffic_class(&self) -> Option<u8> {
        Some(match self.network? {
            NetworkView::Ipv4(ip) => ip.traffic_class(),
            NetworkView::Ipv6(ip) => ip.traffic_class(),
            NetworkView::Grh(grh) => grh.traffic_class(),
        })
    }

    /// Returns the fields of the innermost headers that the ICRC covers.
    #[must_use]
    pub fn envelope(&self) -> Option<Envelope> {
        let (source, destination) = self.addresses()?;
        let (identification, dont_fragment) = match self.network? {
            NetworkView::Ipv4(ip) => (ip.identification(), ip.dont_fragment()),
            NetworkView::Ipv6(_) | NetworkView::Grh(_) => (0, true),
        };
        let encapsulation = match self.network? {
            NetworkView::Grh(_) => Encapsulation::RoceV1,
            NetworkView::Ipv4(_) | NetworkView::Ipv6(_) => Encapsulation::RoceV2,
        };
        let ports = self.udp.map_or((0, ROCE_UDP_PORT), |udp| (udp.source_port(), udp.destination_port()));
        let (source_port, destination_port) = ports;
        Some(Envelope {
            encapsulation,
            source,
            destination,
            source_port,
            destination_port,
            identification,
            dont_fragment,
        })
    }

    /// Returns the headers of the innermost packet as a sender would create them, without IPv4 options and
    /// extension headers. The Ethernet addresses are zeros if the packet has no Ethernet header. Returns
    /// `None` if the packet is not RoCE, is native InfiniBand, or its end is missing.
    #[must_use]
    pub fn frame_headers(&self) -> Option<FrameHeaders> {
        let transport = self.transport.filter(|_| self.cut.is_none() && self.lrh.is_none())?;
        let (destination, source) = self
            .ethernet
            .map_or((MacAddr::ZERO, MacAddr::ZERO), |ethernet| (ethernet.destination(), ethernet.source()));
        let length = |headers: usize| u16::try_from(transport.len().saturating_add(headers)).ok();
        let udp = self.udp.map(UdpHeader::of_checked);
        let network = match (self.network?, udp) {
            (NetworkView::Ipv4(ip), Some(udp)) => {
                let total_length = length(Ipv4Header::LEN.saturating_add(UdpHeader::LEN))?;
                let protocol = IP_PROTOCOL_UDP;
                NetworkHeader::Ipv4 {
                    ip: Ipv4Header { total_length, protocol, ..Ipv4Header::of_checked(ip) },
                    udp,
                }
            }
            (NetworkView::Ipv6(ip), Some(udp)) => {
                let payload_length = length(UdpHeader::LEN)?;
                let next_header = IP_PROTOCOL_UDP;
                NetworkHeader::Ipv6 {
                    ip: Ipv6Header { payload_length, next_header, ..Ipv6Header::of_checked(ip) },
                    udp,
                }
            }
            (NetworkView::Grh(grh), None) => NetworkHeader::Grh(Grh::of_checked(grh)),
            _ => return None,
        };
        Some(FrameHeaders { destination, source, vlan: self.vlan, network })
    }

    /// Checks the ICRC. Returns `None` if the packet is not RoCE, its end is missing, or its headers have an
    /// error. A wrong IPv4 header checksum is ignored, because the ICRC does not cover it.
    #[must_use]
    pub fn check_icrc(&self) -> Option<OuterIcrc> {
        let transport = self.transport.filter(|_| self.cut.is_none())?;
        if self.is_contradictory || transport.len() < BTH_AND_ICRC_LEN {
            return None;
        }
        self.check_icrc_of(transport)
    }

    fn check_icrc_of(&self, transport: &'a [u8]) -> Option<OuterIcrc> {
        if self.lrh.is_some() && self.network.is_none() {
            return self.check_icrc_of_subnet(transport);
        }
        let envelope = self.envelope()?;
        // The ICRC covers two flags of IPv4 that an envelope does not have.
        let has_other_flags = matches!(
            self.network,
            Some(NetworkView::Ipv4(ip)) if ip.reserved_flag() || ip.more_fragments()
        );
        let plain = |transport: &[u8]| {
            let (covered, found) = transport.split_last_chunk()?;
            let computed = match has_other_flags {
                true => self.icrc_as_found(transport)?,
                false => icrc::compute(&envelope, covered, &[]),
            };
            Some(IcrcCheck { computed, found: u32::from_le_bytes(*found) })
        };
        let check = plain(transport)?;
        let result = OuterIcrc { check, form: IcrcForm::Plain, telemetry_len: 0 };
        if check.is_good() {
            return Some(result);
        }
        if let Some((bare, _, _)) = Telemetry::split_off(transport, &[])
            && let Some(check) = plain(bare).filter(IcrcCheck::is_good)
        {
            return Some(OuterIcrc { check, telemetry_len: Telemetry::LEN, ..result });
        }
        if self.extensions_len > 0 {
            let computed = self.icrc_as_found(transport)?;
            let check = IcrcCheck { computed, ..check };
            return Some(OuterIcrc { check, form: IcrcForm::AsFound, ..result });
        }
        Some(result)
    }

    /// Checks the ICRC of native InfiniBand without a GRH. It begins with the LRH itself, of which only the
    /// virtual lane is masked. With a GRH, ones replace the LRH, as in RoCE.
    fn check_icrc_of_subnet(&self, transport: &[u8]) -> Option<OuterIcrc> {
        let computed = self.icrc_of_layers(Hasher::new(), transport)?;
        let (_, found) = transport.split_last_chunk()?;
        let check = IcrcCheck { computed, found: u32::from_le_bytes(*found) };
        Some(OuterIcrc { check, form: IcrcForm::Plain, telemetry_len: 0 })
    }

    /// Returns the ICRC over all headers of the innermost packet as they are, with the fields that routers
    /// change masked.
    fn icrc_as_found(&self, transport: &[u8]) -> Option<u32> {
        let mut hasher = Hasher::new();
        hasher.update(&[0xff; 8]);
        self.icrc_of_layers(hasher, transport)
    }

    /// Continues a CRC over the headers from `network_offset` on and over the datagram.
    fn icrc_of_layers(&self, mut hasher: Hasher, transport: &[u8]) -> Option<u32> {
        for layer in self.inner_layers().iter().filter(|layer| layer.offset >= self.network_offset) {
            self.update_masked(&mut hasher, layer);
        }
        let (covered, _) = transport.split_last_chunk::<{ icrc::LEN }>()?;
        let (bth, rest) = covered.split_first_chunk::<12>()?;
        let mut bth = *bth;
        // The byte with FECN, BECN and reserved bits.
        bth[4] = 0xff;
        hasher.update(&bth);
        hasher.update(rest);
        Some(hasher.finalize())
    }

    fn update_masked(&self, hasher: &mut Hasher, layer: &OuterLayer) {
        let bytes = self.layer_bytes(layer);
        let mut copy = [0; 40];
        match copy.get_mut(..bytes.len()) {
            Some(masked) if layer.is(&IPV4) || layer.is(&IPV6) || layer.is(&UDP) || layer.is(&LRH) => {
                masked.copy_from_slice(bytes);
                layer.header.mask_variant_fields(masked);
                hasher.update(masked);
            }
            _ => hasher.update(bytes),
        }
    }

    /// Returns whether this is RoCE with such certainty that a tool may change the packet.
    ///
    /// RoCE v1 has its own EtherType, and a correct ICRC is proof. A UDP port alone is weak evidence, because
    /// another program may receive its answers on that port. Without a correct ICRC, the headers must be
    /// consistent, their reserved bits must be zero, and the source port must not be that of a well-known
    /// service.
    #[must_use]
    pub fn is_certainly_roce(&self) -> bool {
        let Some(transport) = self.transport else { return false };
        if matches!(self.network, Some(NetworkView::Grh(_)))
            || self.check_icrc().is_some_and(|icrc| icrc.check.is_good())
        {
            return true;
        }
        let is_sound = Datagram::parse(transport, &[]).is_ok() || self.cut.is_some();
        let reserved_are_zero = match transport {
            [_, _, _, _, congestion, _, _, _, ack_request, ..] => {
                congestion & 0x3f == 0 && ack_request & 0x7f == 0
            }
            _ => false,
        };
        let sent_by_service = self.udp.is_some_and(|udp| udp.source_port() < FIRST_FREE_PORT);
        self.error.is_none() && is_sound && reserved_are_zero && !sent_by_service
    }

    /// Returns whether a packet to the port of RoCE is something else: a well-known service sent it, and it
    /// is not a valid datagram.
    #[must_use]
    pub fn is_answer_of_service(&self) -> bool {
        let (Some(udp), Some(transport)) = (self.udp, self.transport) else { return false };
        let has_good_icrc = || self.check_icrc().is_some_and(|icrc| icrc.check.is_good());
        let is_broken = match self.cut {
            None => Datagram::parse(transport, &[]).is_err(),
            Some(_) => BthView::from_prefix(transport).is_ok_and(|(bth, _)| bth.opcode().info().is_none()),
        };
        udp.source_port() < FIRST_FREE_PORT && is_broken && !has_good_icrc()
    }

    /// Guesses the protocol of a UDP packet to another port.
    #[must_use]
    pub fn guess(&self) -> Option<Guess> {
        let Some(Foreign::Port { .. }) = self.foreign else { return None };
        let payload = self.bytes.get(self.udp_offset.saturating_add(8)..)?;
        let len = usize::from(self.udp?.length()).checked_sub(8)?;
        let payload = payload.get(..len).unwrap_or(payload);
        if payload.len() == len
            && len >= BTH_AND_ICRC_LEN
            && self.check_icrc_of(payload).is_some_and(|icrc| icrc.check.is_good())
        {
            return Some(Guess::Roce);
        }
        let is_vxlan = matches!(payload, [8, 0, 0, 0, _, _, _, 0, frame @ ..] if is_likely_ethernet(frame));
        is_vxlan.then_some(Guess::Vxlan)
    }
}
