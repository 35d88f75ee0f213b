//! The datagram of a frame, as a NIC passes it to the engine.

use std::net::{IpAddr, Ipv4Addr};

use roce_analysis::walk::{Part, Protocol, Walk};
use roce_packet::fields::{BTH, ETHERNET, Header, PAUSE, VLAN};
use roce_packet::outer::Cut;
use roce_packet::{
    Encapsulation, Envelope, EtherType, EthernetHeader, Frame, MacAddr, NetworkHeader, NetworkView,
    ParseError, ParseErrorKind, Path, Qpn, VlanHeader, icrc,
};
use roce_transport::Identification;

use super::outcome::{Answer, Reply};
use super::reply::describe;
use crate::ethernet;
use crate::frame::input::hex;

/// Length of the shortest datagram, a BTH and an ICRC, in bytes.
const SHORTEST: usize = 16;
/// The first byte of the destination queue pair in a BTH.
const DEST_QP: usize = 5;
/// The counter of a framed device for frames that its parser refuses.
const REFUSED: &str = "rx_malformed";

/// The datagram of a frame, BTH to ICRC, with all that a device reports of it.
#[derive(Debug)]
pub(super) struct Arrival {
    pub(super) path: Path,
    /// `Unsealed` for a frame without an IP header, which the ICRC covers.
    pub(super) identification: Identification,
    pub(super) bytes: Vec<u8>,
    /// The Ethernet header, if the frame has one.
    ethernet: Option<EthernetHeader>,
}

impl Arrival {
    /// Takes the datagram out of a frame, as a NIC does. Returns the answer for a frame that does not reach a
    /// queue pair.
    pub(super) fn of(walk: &Walk<'_>) -> Result<Self, Box<Answer>> {
        let none = |why: String, rule| Err(Box::new(Answer::none(why, rule)));
        match &walk.protocol {
            Protocol::Other(name, _) => {
                let why =
                    format!("The frame is not RoCE ({name}), so a NIC gives it to the operating system.");
                return none(why, "IBTA A17.3");
            }
            Protocol::Pause => {
                let why = "A pause frame ends at the port of the NIC, and no queue pair gets it.";
                return none(why.to_owned(), PAUSE.rule);
            }
            Protocol::Roce(_) => {}
        }
        if let Some(cut @ (Cut::Capture | Cut::Fragment)) = walk.outer.cut {
            let why = format!("The end of the packet is missing: {}. Take a whole packet.", cut.reason());
            return none(why, "IBTA 9.6");
        }
        if walk.outer.network.is_some() {
            return Self::of_network(walk);
        }
        if walk.outer.is_native_infiniband() {
            let why = "This packet of native InfiniBand has no IP addresses. The engine is a NIC for RoCE.";
            return none(why.to_owned(), "IBTA 7.7");
        }
        let bth = walk.parts.iter().find(|part| std::ptr::eq(part.header, &BTH));
        match bth.and_then(|part| walk.bytes.get(part.start..)) {
            Some(bytes) => Ok(Self {
                path: default_path(),
                identification: Identification::Unsealed,
                bytes: bytes.to_vec(),
                ethernet: None,
            }),
            None => none("The frame ends before its BTH; add the missing bytes.".to_owned(), BTH.rule),
        }
    }

    /// Reads the packet from layer 3 on with the parser of receivers.
    fn of_network(walk: &Walk<'_>) -> Result<Self, Box<Answer>> {
        let offset = walk.outer.network_offset;
        let ether_type = match walk.outer.network {
            Some(NetworkView::Ipv4(_)) => EtherType::IPV4,
            Some(NetworkView::Ipv6(_)) => EtherType::IPV6,
            Some(NetworkView::Grh(_)) | None => EtherType::ROCE_V1,
        };
        let mut header = [0; EthernetHeader::LEN];
        EthernetHeader { destination: MacAddr::ZERO, source: MacAddr::ZERO, ether_type }.emit(&mut header);
        let packet = walk.bytes.get(offset..).unwrap_or_default();
        let bytes = [header.as_slice(), packet].concat();
        let frame = Frame::parse(&bytes).map_err(|error| {
            let offset = error.offset.saturating_sub(EthernetHeader::LEN).saturating_add(offset);
            Box::new(refused(ParseError { offset, ..error }))
        })?;
        let identification = match &frame.headers.network {
            NetworkHeader::Ipv4 { ip, .. } => {
                Identification::Known { identification: ip.identification, dont_fragment: ip.dont_fragment }
            }
            NetworkHeader::Ipv6 { .. } | NetworkHeader::Grh(_) => Identification::ABSENT,
        };
        let tag = own_part(walk, &VLAN).and_then(|bytes| VlanHeader::parse(bytes).ok());
        let path = Path { vlan: tag.map(|(header, _)| header.tag), ..frame.path() };
        let ethernet = own_part(walk, &ETHERNET).and_then(|bytes| EthernetHeader::parse(bytes).ok());
        let ethernet = ethernet.map(|(header, _)| header);
        Ok(Self { path, identification, bytes: frame.transport.to_vec(), ethernet })
    }

    /// Returns a datagram that the responder sends on this path as a whole frame: its Ethernet addresses are
    /// those of the frame that arrived, the other way round.
    pub(super) fn reply(&self, path: &Path, identification: u16, datagram: &[u8]) -> Reply {
        let [of_peer, own] = [path.destination, path.source].map(ethernet::address);
        let ends = match self.ethernet {
            // The responder does not send from the address of a group.
            Some(header) if header.destination.is_multicast() => [header.source, own],
            Some(header) => [header.source, header.destination],
            None => [of_peer, own],
        };
        let text = describe(datagram);
        match ethernet::frame(path, identification, ends, datagram) {
            Some(frame) => Reply { hex: hex(&frame), from: "ethernet", text },
            None => Reply { hex: hex(datagram), from: "bth", text },
        }
    }

    /// Returns the datagram for another queue pair. A correct ICRC stays correct, and a wrong one wrong.
    pub(super) fn for_queue_pair(&self, qpn: Qpn) -> Vec<u8> {
        let mut bytes = self.bytes.clone();
        let difference = self.icrc_difference(&bytes);
        if let Some(place) = bytes.get_mut(DEST_QP..).and_then(<[u8]>::first_chunk_mut) {
            *place = qpn.to_be_bytes();
        }
        let computed = self.computed_icrc(&bytes);
        if let (Some(difference), Some(computed)) = (difference, computed)
            && let Some(place) = bytes.last_chunk_mut()
        {
            *place = (computed ^ difference).to_le_bytes();
        }
        bytes
    }

    /// Returns the ICRC in a datagram, XOR the one that it should have.
    fn icrc_difference(&self, bytes: &[u8]) -> Option<u32> {
        let found = u32::from_le_bytes(*bytes.last_chunk()?);
        Some(found ^ self.computed_icrc(bytes)?)
    }

    fn computed_icrc(&self, bytes: &[u8]) -> Option<u32> {
        let Identification::Known { identification, dont_fragment } = self.identification else {
            return None;
        };
        let envelope = Envelope { dont_fragment, ..Envelope::new(&self.path, identification) };
        let (covered, _) = bytes.split_last_chunk::<{ icrc::LEN }>()?;
        (bytes.len() >= SHORTEST).then(|| icrc::compute(&envelope, covered, &[]))
    }
}

/// Returns the bytes from the last header of this kind on. A header of a tunnel around the packet does not
/// count.
fn own_part<'a>(walk: &Walk<'a>, header: &Header) -> Option<&'a [u8]> {
    let is_own = |part: &&Part| !part.is_outer && std::ptr::eq(part.header, header);
    walk.parts.iter().rfind(is_own).and_then(|part| walk.bytes.get(part.start..))
}

/// Returns the answer for a frame that the parser of receivers refuses.
fn refused(error: ParseError) -> Answer {
    match error.kind {
        ParseErrorKind::NotRoce => {
            let why = format!("A NIC does not take this frame for RoCE: {error}.");
            Answer::none(why, "IBTA A17.3")
        }
        _ => {
            let why = format!("A NIC drops the frame before it looks for a queue pair: {error}.");
            Answer::dropped(REFUSED, why, "IBTA 9.6")
        }
    }
}

/// Returns the path of a datagram whose IP header is missing.
fn default_path() -> Path {
    Path {
        encapsulation: Encapsulation::RoceV2,
        source: IpAddr::V4(Ipv4Addr::new(198, 18, 0, 1)),
        destination: IpAddr::V4(Ipv4Addr::new(198, 18, 0, 2)),
        source_port: 0xc000,
        traffic_class: 0x02,
        hop_limit: 64,
        flow_label: 0,
        vlan: None,
    }
}
