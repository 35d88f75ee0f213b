//! Handling frames for the host, and learning from them.

use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use roce_packet::{EtherType, EthernetHeader, MacAddr, ROCE_UDP_PORT};
use roce_transport::Instant;
use smoltcp::phy::ChecksumCapabilities;
use smoltcp::wire::{
    ArpOperation, ArpPacket, ArpRepr, Icmpv6Message, Icmpv6Packet, Icmpv6Repr, IgmpPacket, IgmpRepr,
    IpProtocol, Ipv4Packet, Ipv6Packet, NdiscNeighborFlags, NdiscRepr, RawHardwareAddress, UdpPacket,
};

use super::OwnHost;
use super::messages::{Message, NDP_HOP_LIMIT, solicited_node};
use super::neighbours::Evidence;
use super::routes::is_unicast;

/// Bytes of an IPv6 options header that contains only the router alert of MLD.
const MLD_OPTIONS: usize = 8;
/// The type of an MLD query (RFC 3810 5.1).
const MLD_QUERY: u8 = 130;

impl OwnHost {
    /// Handles a complete frame without a tag.
    pub(super) fn receive(&mut self, now: Instant, frame: &[u8]) {
        let Ok((ethernet, payload)) = EthernetHeader::parse(frame) else {
            self.counters.malformed += 1;
            return;
        };
        let is_for_us = ethernet.destination == self.mac || ethernet.destination.is_multicast();
        // No station sends from a group, and a bridge has returned frames from this host.
        if !is_for_us || ethernet.source.is_multicast() || ethernet.source == self.mac {
            self.counters.ignored += 1;
            return;
        }
        let result = match ethernet.ether_type {
            EtherType::ARP => self.receive_arp(now, payload),
            EtherType::IPV4 => self.receive_ipv4(now, payload),
            EtherType::IPV6 => self.receive_ipv6(now, &ethernet, payload),
            _ => Some(false),
        };
        match result {
            Some(true) => {}
            Some(false) => self.counters.ignored += 1,
            None => self.counters.malformed += 1,
        }
    }

    /// Handles ARP (RFC 826). Like those below, returns whether it had an effect; `None` if malformed.
    fn receive_arp(&mut self, now: Instant, payload: &[u8]) -> Option<bool> {
        let packet = ArpPacket::new_checked(payload).ok()?;
        let ArpRepr::EthernetIpv4 {
            operation,
            source_hardware_addr,
            source_protocol_addr: source,
            target_protocol_addr: target,
            ..
        } = ArpRepr::parse(&packet).ok()?
        else {
            return Some(false);
        };
        let mac = MacAddr(source_hardware_addr.0);
        if mac.is_multicast() || mac == MacAddr::ZERO {
            return None;
        }
        if self.routes.is_own(source.into()) && mac != self.mac {
            self.report_conflict(source.into(), mac);
            return Some(true);
        }
        let is_question = operation == ArpOperation::Request;
        let is_for_us = self.routes.is_own(target.into());
        // A probe for an address comes from a host without one (RFC 5227 2.1.1).
        if is_unicast(source.into()) && self.routes.is_on_link(source.into()) {
            let evidence = match (is_for_us, is_question) {
                (true, true) => Evidence::Question,
                (true, false) => Evidence::Answer { replaces: true },
                (false, _) => Evidence::Announcement { replaces: true },
            };
            self.learn(now, source.into(), mac, evidence);
        }
        if is_question && is_for_us {
            self.enqueue(Message::ArpReply { source: target, target: source, to: mac });
        }
        Some(is_for_us)
    }

    fn receive_ipv4(&mut self, now: Instant, payload: &[u8]) -> Option<bool> {
        let packet = Ipv4Packet::new_checked(payload).ok()?;
        let (source, destination) = (packet.src_addr(), packet.dst_addr());
        if packet.more_frags() || packet.frag_offset() != 0 {
            return Some(false);
        }
        if packet.next_header() == IpProtocol::Igmp {
            return self.receive_igmp(now, packet.payload());
        }
        let is_roce = packet.next_header() == IpProtocol::Udp && is_for_roce(packet.payload());
        self.pass_on(now, payload, source.into(), destination.into(), is_roce)
    }

    fn receive_igmp(&mut self, now: Instant, message: &[u8]) -> Option<bool> {
        let packet = IgmpPacket::new_checked(message).ok()?;
        if !packet.verify_checksum() {
            return None;
        }
        let IgmpRepr::MembershipQuery { max_resp_time, group_addr, .. } = IgmpRepr::parse(&packet).ok()?
        else {
            return Some(false);
        };
        let group = (!group_addr.is_unspecified()).then_some(IpAddr::V4(group_addr));
        let within = Duration::from_millis(max_resp_time.total_millis());
        self.groups.handle_query(now, self.mac, group, true, within);
        Some(true)
    }

    fn receive_ipv6(&mut self, now: Instant, ethernet: &EthernetHeader, payload: &[u8]) -> Option<bool> {
        let packet = Ipv6Packet::new_checked(payload).ok()?;
        let (source, destination) = (packet.src_addr(), packet.dst_addr());
        if packet.next_header() == IpProtocol::HopByHop {
            // MLD is the only supported protocol with options.
            return self.receive_mld(now, &packet);
        }
        if packet.next_header() == IpProtocol::Icmpv6 {
            let icmp = Icmpv6Packet::new_checked(packet.payload()).ok()?;
            let message = icmp.msg_type();
            if message.is_ndisc() {
                if packet.hop_limit() != NDP_HOP_LIMIT
                    || !matches!(message, Icmpv6Message::NeighborSolicit | Icmpv6Message::NeighborAdvert)
                {
                    return Some(false);
                }
                let checksums = ChecksumCapabilities::default();
                let Icmpv6Repr::Ndisc(repr) =
                    Icmpv6Repr::parse(&source, &destination, &icmp, &checksums).ok()?
                else {
                    return None;
                };
                return self.receive_discovery(now, ethernet, source, destination, repr);
            }
        }
        let is_roce = packet.next_header() == IpProtocol::Udp && is_for_roce(packet.payload());
        self.pass_on(now, payload, source.into(), destination.into(), is_roce)
    }

    /// Handles neighbour discovery (RFC 4861 7.2).
    fn receive_discovery(
        &mut self,
        now: Instant,
        ethernet: &EthernetHeader,
        source: Ipv6Addr,
        destination: Ipv6Addr,
        repr: NdiscRepr<'_>,
    ) -> Option<bool> {
        match repr {
            NdiscRepr::NeighborSolicit { target_addr: target, lladdr } => {
                let is_for_us = self.routes.is_own(target.into());
                if source.is_unspecified() {
                    // A host asks whether an address is in use, which belongs to this host.
                    if !is_for_us || destination != solicited_node(target) || lladdr.is_some() {
                        return Some(false);
                    }
                    self.report_conflict(target.into(), ethernet.source);
                    self.enqueue(Message::Advertisement { source: target, to: None });
                    return Some(true);
                }
                if !is_for_us || !self.routes.is_on_link(source.into()) || !is_unicast(source.into()) {
                    return Some(false);
                }
                let mac = match lladdr {
                    Some(lladdr) => ethernet_address(lladdr)?,
                    None => ethernet.source,
                };
                if lladdr.is_some() {
                    self.learn(now, source.into(), mac, Evidence::Question);
                }
                self.enqueue(Message::Advertisement { source: target, to: Some((source, mac)) });
                Some(true)
            }
            NdiscRepr::NeighborAdvert { flags, target_addr: target, lladdr } => {
                if self.routes.is_own(target.into()) {
                    self.report_conflict(target.into(), ethernet.source);
                    return Some(true);
                }
                if !is_unicast(target.into()) || !self.routes.is_on_link(target.into()) {
                    return Some(false);
                }
                let mac = match lladdr {
                    Some(lladdr) => ethernet_address(lladdr)?,
                    // An answer to a unicast request may omit the option (RFC 4861 4.4).
                    None => ethernet.source,
                };
                let replaces = flags.contains(NdiscNeighborFlags::OVERRIDE);
                let evidence = if flags.contains(NdiscNeighborFlags::SOLICITED) && !destination.is_multicast()
                {
                    Evidence::Answer { replaces }
                } else {
                    Evidence::Announcement { replaces }
                };
                self.learn(now, target.into(), mac, evidence);
                Some(true)
            }
            _ => Some(false),
        }
    }

    /// Handles the message behind the options, if it is an MLD query.
    fn receive_mld(&mut self, now: Instant, packet: &Ipv6Packet<&[u8]>) -> Option<bool> {
        let (source, destination) = (packet.src_addr(), packet.dst_addr());
        let (options, message) = packet.payload().split_at_checked(MLD_OPTIONS)?;
        if options[0] != u8::from(IpProtocol::Icmpv6)
            || options[1] != 0
            || message.first() != Some(&MLD_QUERY)
        {
            return Some(false);
        }
        // RFC 3810 6.2: from the link only.
        if packet.hop_limit() != 1 || !source.is_unicast_link_local() {
            return Some(false);
        }
        if !Icmpv6Packet::new_checked(message).ok()?.verify_checksum(&source, &destination) {
            return None;
        }
        let group: [u8; 16] = message.get(8..24)?.try_into().ok()?;
        let code = u16::from_be_bytes([*message.get(4)?, *message.get(5)?]);
        let group = Some(Ipv6Addr::from(group)).filter(|group| !group.is_unspecified());
        let within = Duration::from_millis(mld_response_ms(code));
        self.groups.handle_query(now, self.mac, group.map(IpAddr::V6), false, within);
        Some(true)
    }

    /// Passes packets to smoltcp that are from one host to this one.
    fn pass_on(
        &mut self,
        now: Instant,
        packet: &[u8],
        source: IpAddr,
        destination: IpAddr,
        is_roce: bool,
    ) -> Option<bool> {
        let is_good = self.routes.is_own(destination) && is_unicast(source) && !self.routes.is_own(source);
        // Invalid RoCE packets must be dropped, not answered.
        if !is_good || is_roce {
            return Some(false);
        }
        self.stack.handle_packet(now, packet);
        Some(true)
    }

    fn learn(&mut self, now: Instant, address: IpAddr, mac: MacAddr, evidence: Evidence) {
        self.neighbours.learn(now, address, mac, evidence);
        self.last = None;
    }
}

fn is_for_roce(datagram: &[u8]) -> bool {
    UdpPacket::new_checked(datagram).is_ok_and(|udp| udp.dst_port() == ROCE_UDP_PORT)
}

fn ethernet_address(address: RawHardwareAddress) -> Option<MacAddr> {
    let mac = MacAddr(address.as_bytes().try_into().ok()?);
    (!mac.is_multicast() && mac != MacAddr::ZERO).then_some(mac)
}

/// Converts a maximum response code to milliseconds: above 32767, a floating point number (RFC 3810 5.1.3).
const fn mld_response_ms(code: u16) -> u64 {
    match code {
        0..0x8000 => code as u64,
        _ => (((code & 0x0fff) | 0x1000) as u64) << (((code >> 12) & 7) + 3),
    }
}
