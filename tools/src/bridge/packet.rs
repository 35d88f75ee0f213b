//! One RoCE packet in its frame, and the changes of a bad network to its bytes.

use roce_fault::BitFlips;
use roce_packet::{
    Frame, FrameHeaders, Ipv4Header, Ipv4View, NetworkHeader, ParseError, Telemetry, TelemetryHop,
};

use roce_device::whole::Offload;

/// The layout of a RoCE frame.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) headers: FrameHeaders,
    /// The end of the datagram; padding of short frames may follow.
    pub(super) end: usize,
}

impl Place {
    /// Finds a RoCE packet.
    ///
    /// # Errors
    ///
    /// The frame is not RoCE, or malformed.
    pub(super) fn find(frame: &[u8]) -> Result<Self, ParseError> {
        let parsed = Frame::parse(frame)?;
        let end = parsed.headers.len_bytes() + parsed.transport.len();
        Ok(Self { headers: parsed.headers, end })
    }

    /// BTH to ICRC.
    pub(super) fn datagram<'a>(&self, frame: &'a [u8]) -> &'a [u8] {
        frame.get(self.headers.len_bytes()..self.end).unwrap_or_default()
    }

    /// Sets the traffic class, and updates the header checksum of IPv4. The ICRC covers neither.
    pub(super) fn set_traffic_class(&mut self, frame: &mut [u8], traffic_class: u8) {
        let Some(header) = frame.get_mut(self.headers.network_offset()..) else { return };
        match &mut self.headers.network {
            NetworkHeader::Ipv4 { ip, .. } => {
                ip.traffic_class = traffic_class;
                write_ipv4(header, |ip| ip[1] = traffic_class);
            }
            NetworkHeader::Ipv6 { ip, .. } => {
                ip.traffic_class = traffic_class;
                write_ipv6_class(header, traffic_class);
            }
            NetworkHeader::Grh(grh) => {
                grh.traffic_class = traffic_class;
                write_ipv6_class(header, traffic_class);
            }
        }
    }

    /// Flips bits of the datagram. A complete UDP checksum is updated, so that only the ICRC is wrong and the receiver's NIC
    /// drops the packet.
    pub(super) fn flip(&self, frame: &mut [u8], offload: Offload, flips: &BitFlips) {
        let datagram_offset = self.headers.len_bytes();
        for bit in flips.bits() {
            let at = datagram_offset + bit as usize / 8;
            if at < self.end {
                self.change(frame, offload, at, |byte| byte ^ 0x80 >> (bit % 8));
            }
        }
    }

    /// BTH to ICRC, and whether in-band telemetry follows it.
    pub(super) fn bare_datagram<'a>(&self, frame: &'a [u8]) -> (&'a [u8], Option<Telemetry>) {
        let transport = self.datagram(frame);
        let found = Frame { headers: self.headers, transport, trailer: &[] }.split_telemetry();
        found.map_or((transport, None), |(bare, telemetry)| (bare.transport, Some(telemetry)))
    }

    /// Writes a hop into the in-band telemetry behind the ICRC, if there is some that takes one. A complete UDP checksum is updated.
    pub(super) fn stamp(&self, frame: &mut [u8], offload: Offload, hop: TelemetryHop) -> bool {
        let (_, Some(before)) = self.bare_datagram(frame) else { return false };
        let mut telemetry = before;
        telemetry.push(hop);
        let start = self.end - Telemetry::LEN;
        for (at, (before, after)) in (start..).zip(before.emit().into_iter().zip(telemetry.emit())) {
            if before != after {
                self.change(frame, offload, at, |_| after);
            }
        }
        telemetry != before
    }

    /// Changes one byte of the datagram, and a complete UDP checksum with it.
    fn change(&self, frame: &mut [u8], offload: Offload, at: usize, change: impl FnOnce(u8) -> u8) {
        let udp_offset = self.headers.udp_offset().filter(|_| !offload.needs_checksum());
        let word_of = |frame: &[u8]| match udp_offset {
            Some(udp) => word(frame, udp + (at - udp) / 2 * 2),
            None => 0,
        };
        let before = word_of(frame);
        if let Some(byte) = frame.get_mut(at) {
            *byte = change(*byte);
        }
        let after = word_of(frame);
        if let Some(field) = udp_offset.and_then(|udp| frame.get_mut(udp + 6..udp + 8))
            && field != [0, 0]
        {
            let updated = match update(u16::from_be_bytes([field[0], field[1]]), before, after) {
                // In UDP, 0 stands for no checksum (RFC 768).
                0 => 0xffff,
                sum => sum,
            };
            field.copy_from_slice(&updated.to_be_bytes());
        }
    }
}

/// Splits a joined packet into single ones as the kernel does: lengths, an IPv4 Identification that counts up, checksums.
/// Other packets are handed over unchanged.
pub(super) fn split(frame: &[u8], offload: Offload, place: &Place, mut sink: impl FnMut(&[u8], Offload)) {
    let headers_len = place.headers.len_bytes();
    let (Some(udp_offset), Some(segment_len)) = (place.headers.udp_offset(), offload.udp_segment_len())
    else {
        return sink(frame, offload);
    };
    let (Some(headers), datagrams) = (frame.get(..headers_len), place.datagram(frame)) else { return };
    let mut single = Vec::with_capacity(headers_len + segment_len);
    for (index, datagram) in (0..).zip(datagrams.chunks(segment_len)) {
        single.clear();
        single.extend_from_slice(headers);
        single.extend_from_slice(datagram);
        let udp_len = (datagram.len() + headers_len - udp_offset) as u16;
        let network = place.headers.network_offset();
        match &place.headers.network {
            NetworkHeader::Ipv4 { ip, .. } => {
                let total = (single.len() - network) as u16;
                write_ipv4(&mut single[network..], |header| {
                    header[2..4].copy_from_slice(&total.to_be_bytes());
                    header[4..6].copy_from_slice(&ip.identification.wrapping_add(index).to_be_bytes());
                });
            }
            NetworkHeader::Ipv6 { .. } | NetworkHeader::Grh(_) => {
                single[network + 4..network + 6].copy_from_slice(&udp_len.to_be_bytes());
            }
        }
        let udp = &mut single[udp_offset..];
        let before = [word(udp, 4), udp_len];
        udp[4..6].copy_from_slice(&udp_len.to_be_bytes());
        // The pseudo header contains the length, too. An unfinished sum is not inverted.
        if offload.needs_checksum() {
            let sum = !update(!word(udp, 6), before[0], before[1]);
            udp[6..8].copy_from_slice(&sum.to_be_bytes());
        } else if word(udp, 6) != 0 {
            // It was that of the joined packet. IPv4 needs none, and the ICRC protects the datagram.
            udp[6..8].fill(0);
        }
        sink(&single, offload.of_one());
    }
}

/// The priority of a frame in switches: that of its VLAN tag, or the upper bits of its DSCP.
pub(super) fn priority(frame: &[u8]) -> u8 {
    match word(frame, 12) {
        0x8100 => frame.get(14).map_or(0, |byte| byte >> 5),
        0x0800 => frame.get(15).map_or(0, |byte| byte >> 5),
        // Traffic class: the lower half of the first byte comes first.
        0x86dd | 0x8915 => frame.get(14).map_or(0, |byte| (byte & 0x0f) >> 1),
        _ => 0,
    }
}

/// Changes the 20 bytes of an IPv4 header and updates its checksum.
fn write_ipv4(header: &mut [u8], change: impl FnOnce(&mut [u8; Ipv4Header::LEN])) {
    let Some(bytes) = header.first_chunk_mut() else { return };
    change(bytes);
    bytes[10..12].fill(0);
    // A header without options has 10 words, and RoCE has no options.
    let sum: u32 = bytes.chunks_exact(2).map(|word| u32::from(u16::from_be_bytes([word[0], word[1]]))).sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    let folded = (folded & 0xffff) + (folded >> 16);
    bytes[10..12].copy_from_slice(&(!(folded as u16)).to_be_bytes());
    debug_assert!(Ipv4View::from_prefix(bytes).is_ok_and(|(view, _)| view.checksum_is_valid(&[])));
}

/// Version, traffic class and flow label share the first word; the class is bits 4 to 11.
fn write_ipv6_class(header: &mut [u8], class: u8) {
    if let Some([first, second, ..]) = header.first_chunk_mut::<2>() {
        *first = (*first & 0xf0) | class >> 4;
        *second = (*second & 0x0f) | class << 4;
    }
}

/// Two bytes of a slice; bytes beyond its end count as zero.
fn word(bytes: &[u8], at: usize) -> u16 {
    let byte = |at: usize| bytes.get(at).copied().unwrap_or(0);
    u16::from_be_bytes([byte(at), byte(at + 1)])
}

/// A checksum after a change of one word that it covers (RFC 1624).
const fn update(checksum: u16, before: u16, after: u16) -> u16 {
    let sum = !checksum as u32 + !before as u32 + after as u32;
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = (sum & 0xffff) + (sum >> 16);
    !(sum as u16)
}
