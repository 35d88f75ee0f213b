//! Receiving: selecting the frames for this device or its host, and extracting datagrams.

use std::io;
use std::net::IpAddr;

use roce_packet::{
    EtherType, EthernetView, Frame, FrameHeaders, NetworkHeader, ParseErrorKind, PauseFrame, ROCE_UDP_PORT,
    VlanHeader, VlanTag, VlanView,
};
use roce_transport::{Identification, Instant, Received};

use super::port::Incoming;
use super::settings::FrameSettings;
use super::{Counters, FramedDevice, Pauses};
use crate::framed::Host;

/// The parts of a device that receiving needs, except its port.
struct Receiver<'a> {
    host: &'a mut dyn Host,
    settings: FrameSettings,
    addresses: &'a [IpAddr],
    groups: &'a [IpAddr],
    pauses: &'a mut Pauses,
    counters: &'a mut Counters,
}

impl FramedDevice {
    pub(super) fn receive_burst(
        &mut self,
        now: Instant,
        sink: &mut dyn FnMut(&Received<'_>),
    ) -> io::Result<usize> {
        let before = self.counters.rx_datagrams;
        self.counters.rx_datagrams += self.own.len() as u64;
        for own in self.own.drain(..) {
            let path = own.transmit.path;
            let identification = identification(&path.destination, own.transmit.identification);
            sink(&Received::whole(path, identification, &own.bytes));
        }
        let mut receiver = Receiver {
            host: self.host.as_mut(),
            settings: self.settings,
            addresses: &self.addresses,
            groups: &self.groups,
            pauses: &mut self.pauses,
            counters: &mut self.counters,
        };
        self.port.receive(&mut |frame| receiver.handle(now, frame, sink))?;
        Ok((self.counters.rx_datagrams - before) as usize)
    }
}

fn identification(destination: &IpAddr, identification: u16) -> Identification {
    match destination {
        IpAddr::V4(_) => Identification::Known { identification, dont_fragment: true },
        IpAddr::V6(_) => Identification::ABSENT,
    }
}

impl Receiver<'_> {
    fn handle(&mut self, now: Instant, frame: &Incoming<'_>, sink: &mut dyn FnMut(&Received<'_>)) {
        self.counters.rx_frames += 1;
        match Frame::parse_split(frame.head, frame.tail, ROCE_UDP_PORT) {
            Ok(split) => {
                let mut headers = split.headers;
                headers.vlan = frame.vlan.or(headers.vlan);
                self.deliver(&headers, split.head, split.tail, frame.segment_len, sink);
            }
            Err(error) if error.kind == ParseErrorKind::NotRoce => self.handle_other(now, frame),
            Err(_) => self.counters.rx_malformed += 1,
        }
    }

    fn deliver(
        &mut self,
        headers: &FrameHeaders,
        head: &[u8],
        tail: &[u8],
        segment_len: Option<u16>,
        sink: &mut dyn FnMut(&Received<'_>),
    ) {
        if !self.settings.accepts(headers.vlan) {
            self.counters.rx_wrong_vlan += 1;
            return;
        }
        let path = headers.path();
        if !self.addresses.contains(&path.destination) && !self.groups.contains(&path.destination) {
            self.counters.rx_not_for_us += 1;
            return;
        }
        let (first, dont_fragment) = match &headers.network {
            NetworkHeader::Ipv4 { ip, .. } => (ip.identification, ip.dont_fragment),
            NetworkHeader::Ipv6 { .. } | NetworkHeader::Grh(_) => (0, true),
        };
        let is_ipv4 = matches!(headers.network, NetworkHeader::Ipv4 { .. });
        let len = match segment_len {
            Some(len) if len > 0 && tail.is_empty() => usize::from(len),
            _ => usize::MAX,
        };
        // A frame shorter than a segment is one datagram; an empty slice has no chunks.
        let segments = if head.len() > len { head.chunks(len) } else { head.chunks(head.len().max(1)) };
        for (index, head) in (0..).zip(segments) {
            self.counters.rx_datagrams += 1;
            let identification = if is_ipv4 {
                Identification::Known { identification: first.wrapping_add(index), dont_fragment }
            } else {
                Identification::ABSENT
            };
            sink(&Received::in_pieces(path, identification, [head, tail]));
        }
    }

    /// Handles flow control, and passes other frames to the host.
    fn handle_other(&mut self, now: Instant, frame: &Incoming<'_>) {
        let Ok((ethernet, rest)) = EthernetView::from_prefix(frame.head) else {
            self.counters.rx_malformed += 1;
            return;
        };
        match ethernet.ether_type() {
            EtherType::MAC_CONTROL => match PauseFrame::parse(frame.head) {
                Ok(pause) => self.pauses.handle(now, &pause),
                Err(_) => self.counters.rx_malformed += 1,
            },
            EtherType::VLAN => self.handle_tagged(now, frame, rest),
            _ => self.give_to_host(now, frame, frame.vlan),
        }
    }

    /// Removes the tag, which the host does not see.
    fn handle_tagged(&mut self, now: Instant, frame: &Incoming<'_>, rest: &[u8]) {
        let Ok((vlan, _)) = VlanView::from_prefix(rest) else {
            self.counters.rx_malformed += 1;
            return;
        };
        let Some((addresses, behind)) = frame.head.split_at_checked(12) else { return };
        let mut untagged = Vec::with_capacity(frame.head.len());
        untagged.extend_from_slice(addresses);
        untagged.extend_from_slice(behind.get(VlanHeader::LEN..).unwrap_or_default());
        let untagged = Incoming { head: &untagged, vlan: None, ..*frame };
        self.give_to_host(now, &untagged, Some(vlan.tag()));
    }

    fn give_to_host(&mut self, now: Instant, frame: &Incoming<'_>, tag: Option<VlanTag>) {
        if self.settings.accepts(tag) {
            self.counters.rx_host_frames += 1;
            self.host.handle_frame(now, frame);
        } else {
            self.counters.rx_wrong_vlan += 1;
        }
    }
}
