//! A packet with a wrong ICRC, prepared for many computations.

use roce_packet::fields::{self, Header};
use roce_packet::outer::Outer;
use roce_packet::{NetworkView, Opcode};

use super::crc::{ETHERNET, forward_by, multiply, update};

/// Length of a UDP header, in bytes.
pub(super) const UDP_LEN: usize = 8;
/// Length of the ICRC, in bytes.
pub(super) const ICRC_LEN: usize = 4;
/// The bytes in front of the headers, which represent the local route header.
pub(super) const ONES: [u8; 8] = [0xff; 8];

/// The headers below the BTH.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Version {
    Ipv4,
    Ipv6,
    Grh,
}

impl Version {
    /// Returns the length of the header of layer 3, in bytes.
    pub(super) const fn network_len(self) -> usize {
        match self {
            Self::Ipv4 => 20,
            Self::Ipv6 | Self::Grh => 40,
        }
    }

    /// Returns offset and length of the source address. The destination address follows it.
    pub(super) const fn addresses(self) -> (usize, usize) {
        match self {
            Self::Ipv4 => (12, 4),
            Self::Ipv6 | Self::Grh => (8, 16),
        }
    }

    /// Returns the offset of the length in the header of layer 3.
    pub(super) const fn length_offset(self) -> usize {
        match self {
            Self::Ipv4 => 2,
            Self::Ipv6 | Self::Grh => 4,
        }
    }
}

/// The bytes from the BTH on, as their contribution to a CRC.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tail {
    /// The register after these bytes, if it was zero before.
    pub(super) register: u32,
    /// The factor of a register before these bytes.
    pub(super) power: u32,
}

impl Tail {
    pub(super) fn of(bytes: &[u8]) -> Self {
        Self { register: update(&ETHERNET, 0, bytes), power: forward_by(bytes.len()) }
    }

    /// Returns the contribution with more bytes at the end.
    pub(super) fn then(self, bytes: &[u8]) -> Self {
        Self {
            register: update(&ETHERNET, self.register, bytes),
            power: multiply(self.power, forward_by(bytes.len())),
        }
    }

    /// Returns the register after these bytes.
    pub(super) fn after(self, register: u32) -> u32 {
        multiply(register, self.power) ^ self.register
    }
}

/// A packet with a wrong ICRC.
#[derive(Debug)]
pub(super) struct Subject<'a> {
    pub(super) version: Version,
    /// The headers from layer 3 to UDP as they are, without options and extension headers.
    head: Vec<u8>,
    /// The bits of these headers that routers change.
    mask: Vec<u8>,
    /// These headers, with the bits that routers change set to ones.
    masked_head: Vec<u8>,
    /// BTH to padding.
    pub(super) covered: &'a [u8],
    pub(super) pad_len: usize,
    /// The Ethernet header with its tags.
    pub(super) ethernet: &'a [u8],
    /// The bytes after the ICRC.
    pub(super) trailer: &'a [u8],
    /// Offset of the header of layer 3 in the packet.
    pub(super) network_offset: usize,
    /// Offset of the BTH in the packet.
    pub(super) transport_offset: usize,
    tail: Tail,
    masked_tail: Tail,
    pub(super) found: u32,
    /// The correct ICRC.
    pub(super) correct: u32,
}

impl<'a> Subject<'a> {
    /// Returns `None` if the packet is not complete.
    pub(super) fn new(outer: &Outer<'a>) -> Option<Self> {
        let bytes = outer.bytes();
        let version = match outer.network? {
            NetworkView::Ipv4(_) => Version::Ipv4,
            NetworkView::Ipv6(_) => Version::Ipv6,
            NetworkView::Grh(_) => Version::Grh,
        };
        let mut head = bytes.get(outer.network_offset..)?.get(..version.network_len())?.to_vec();
        leave_out(outer.extensions_len, version, &mut head);
        let mut mask = vec![0; head.len()];
        network_header(version).mask_variant_fields(&mut mask);
        if version != Version::Grh {
            head.extend_from_slice(bytes.get(outer.udp_offset..)?.get(..UDP_LEN)?);
            let mut of_udp = [0; UDP_LEN];
            fields::UDP.mask_variant_fields(&mut of_udp);
            mask.extend(of_udp);
        }
        let masked_head = head.iter().zip(&mask).map(|(byte, mask)| byte | mask).collect();
        let (covered, found) = outer.transport?.split_last_chunk::<ICRC_LEN>()?;
        let found = u32::from_le_bytes(*found);
        let (begin, rest) = covered.split_at_checked(5)?;
        let (before_congestion, _) = begin.split_at_checked(4)?;
        let tail = Tail::of(covered);
        let masked_tail = Tail::of(before_congestion).then(&[0xff]).then(rest);
        let pad_len = usize::from(covered.get(1)? >> 4 & 0b11);
        let ethernet = outer.inner_layers().iter().find(|layer| layer.is(&fields::ETHERNET));
        let ethernet = ethernet.and_then(|layer| bytes.get(layer.offset..outer.network_offset));
        let mut subject = Self {
            version,
            head,
            mask,
            masked_head,
            covered,
            pad_len: pad_len.min(covered.len().saturating_sub(12)),
            ethernet: ethernet.unwrap_or_default(),
            trailer: outer.trailer,
            network_offset: outer.network_offset,
            transport_offset: outer.transport_offset,
            tail,
            masked_tail,
            found,
            correct: 0,
        };
        subject.correct = subject.icrc(&ONES, subject.head(true), subject.tail(true));
        Some(subject)
    }

    /// Returns the headers from layer 3 to UDP.
    pub(super) fn head(&self, is_masked: bool) -> &[u8] {
        if is_masked { &self.masked_head } else { &self.head }
    }

    /// Returns the contribution of BTH to padding.
    pub(super) fn tail(&self, is_masked: bool) -> Tail {
        if is_masked { self.masked_tail } else { self.tail }
    }

    /// Returns the contribution of these bytes, which begin with the BTH.
    pub(super) fn tail_of(&self, bytes: &[u8], is_masked: bool) -> Tail {
        match bytes.split_at_checked(5) {
            Some(([begin @ .., _], rest)) if is_masked => Tail::of(begin).then(&[0xff]).then(rest),
            _ => Tail::of(bytes),
        }
    }

    /// Returns the ICRC over `prefix`, headers and tail.
    pub(super) fn icrc(&self, prefix: &[u8], head: &[u8], tail: Tail) -> u32 {
        !tail.after(update(&ETHERNET, update(&ETHERNET, u32::MAX, prefix), head))
    }

    /// Returns the ICRC with bytes of the headers replaced. All other fields are as they should be.
    pub(super) fn icrc_with(&self, changes: &[(usize, &[u8])], is_masked: bool) -> u32 {
        let mut head = self.head(is_masked).to_vec();
        for (offset, bytes) in changes {
            if let Some(place) = head.get_mut(*offset..).and_then(|rest| rest.get_mut(..bytes.len())) {
                place.copy_from_slice(bytes);
            }
        }
        self.icrc(&ONES, &head, self.tail(is_masked))
    }

    /// Returns two bytes of the headers as a number.
    pub(super) fn word(&self, offset: usize) -> u16 {
        let word = self.head.get(offset..).and_then(<[u8]>::first_chunk);
        word.map_or(0, |word| u16::from_be_bytes(*word))
    }

    /// Returns the offset of the UDP header in the headers, if there is one.
    pub(super) fn udp(&self) -> Option<usize> {
        (self.version != Version::Grh).then(|| self.version.network_len())
    }

    /// Returns whether the ICRC covers these bits. `at` counts from layer 3, without options.
    pub(super) fn covers(&self, at: usize, bits: u8) -> bool {
        // The BTH byte that routers change is covered as ones.
        at != self.head.len() + 4 && self.mask.get(at).is_none_or(|mask| mask & bits == 0)
    }

    /// Returns the length of the headers below the BTH.
    pub(super) fn head_len(&self) -> usize {
        self.head.len()
    }

    /// Describes the bits of a byte: the field, or the header. `at` counts from layer 3, without options.
    pub(super) fn place(&self, at: usize, bits: u8) -> &'static str {
        let network_len = self.version.network_len();
        if at < network_len {
            return field_name(network_header(self.version), at, bits);
        }
        match at.checked_sub(self.head.len()) {
            None => field_name(&fields::UDP, at - network_len, bits),
            Some(at) if at < 12 => field_name(&fields::BTH, at, bits),
            Some(at) => {
                let info = self.covered.first().and_then(|opcode| Opcode(*opcode).info());
                let header_len = info.map_or(12, |info| info.header_len);
                if at < header_len {
                    "extended headers"
                } else if at < self.covered.len().saturating_sub(self.pad_len) {
                    "payload"
                } else {
                    "padding"
                }
            }
        }
    }
}

/// Returns the description of the header of layer 3.
fn network_header(version: Version) -> &'static Header {
    match version {
        Version::Ipv4 => &fields::IPV4,
        Version::Ipv6 => &fields::IPV6,
        Version::Grh => &fields::GRH,
    }
}

/// Returns the name of the field with the highest of these bits, or that of the header.
fn field_name(header: &'static Header, at: usize, bits: u8) -> &'static str {
    let bit = at * 8 + bits.leading_zeros() as usize;
    let is_here = |field: &&fields::Field| (field.start..field.start + field.width).contains(&bit);
    header.fields.iter().find(is_here).map_or(header.name, |field| field.name)
}

/// Changes an IP header to that of a packet without these bytes of options and extension headers.
fn leave_out(extensions_len: usize, version: Version, head: &mut [u8]) {
    if extensions_len == 0 {
        return;
    }
    let length_offset = version.length_offset();
    let protocol_offset = if version == Version::Ipv4 { 9 } else { 6 };
    if let Some(length) = head.get_mut(length_offset..).and_then(<[u8]>::first_chunk_mut::<2>) {
        *length = u16::from_be_bytes(*length).saturating_sub(extensions_len as u16).to_be_bytes();
    }
    if let Some(protocol) = head.get_mut(protocol_offset) {
        *protocol = roce_packet::IP_PROTOCOL_UDP;
    }
    if version == Version::Ipv4
        && let Some(first) = head.first_mut()
    {
        *first = 0x45;
    }
}
