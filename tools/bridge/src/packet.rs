//! One RoCE packet in its frame, and the changes that a bad network makes to its bytes.

use roce_fault::BitFlips;
use roce_packet::fields::{GRE_CHECKSUM, GRH, IPV4, IPV6, UDP};
use roce_packet::outer::{Link, Outer, OuterLayer};
use roce_packet::{
    Frame, FrameHeaders, Ipv4Header, Ipv4View, NetworkHeader, Path, ROCE_UDP_PORT, Telemetry, TelemetryHop,
};

use roce_device::whole::Offload;

/// Maximum number of checksums that cover a datagram: its own, and one for each tunnel.
const MOST_SUMS: usize = 4;

/// The layout of a frame with a RoCE packet, possibly in tunnels.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    /// The headers of the RoCE packet, without IPv4 options and IPv6 extension headers.
    pub(super) headers: FrameHeaders,
    /// The offset of the BTH.
    start: usize,
    /// The end of the datagram; padding of short frames may follow.
    end: usize,
    /// The offset of the outermost IP header (or GRH), which a switch marks and chooses queues by.
    outermost: usize,
    /// The UDP and GRE headers whose checksum covers the datagram: the offset of the header, and of its
    /// checksum.
    sums: [Option<(usize, usize)>; MOST_SUMS],
}

/// The reason why there is no [`Place`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoPlace {
    /// The frame is not RoCE, or it is truncated.
    NotRoce,
    /// The headers of the frame contradict each other.
    Malformed,
}

impl Place {
    /// Finds a RoCE packet.
    ///
    /// # Errors
    ///
    /// The frame is not RoCE, or malformed.
    pub(super) fn find(frame: &[u8]) -> Result<Self, NoPlace> {
        let outer = Outer::decode(frame, Link::Ethernet, frame.len(), ROCE_UDP_PORT);
        if outer.foreign.is_some() || outer.cut.is_some() || outer.is_answer_of_service() {
            return Err(NoPlace::NotRoce);
        }
        let headers = outer.frame_headers().filter(|_| outer.error.is_none()).ok_or(NoPlace::Malformed)?;
        let layers = outer.layers();
        let is_network = |layer: &&OuterLayer| [&IPV4, &IPV6, &GRH].iter().any(|header| layer.is(header));
        let outermost = layers.iter().find(is_network).map_or(0, |layer| layer.offset);
        let mut sums = [None; MOST_SUMS];
        let mut free = sums.iter_mut();
        for (index, layer) in layers.iter().enumerate() {
            let sum = if layer.is(&UDP) {
                (layer.offset, layer.offset + 6)
            } else if layer.is(&GRE_CHECKSUM) {
                (layers[index - 1].offset, layer.offset)
            } else {
                continue;
            };
            *free.next().ok_or(NoPlace::NotRoce)? = Some(sum);
        }
        let start = outer.transport_offset;
        let end = start + outer.transport_len;
        Ok(Self { headers, start, end, outermost, sums })
    }

    /// Returns whether the packet can be split. It must have only the headers that a RoCE NIC sends, without
    /// tunnels, further tags and options.
    pub(super) const fn is_plain(&self) -> bool {
        self.headers.len_bytes() == self.start
    }

    /// Returns the bytes from BTH to ICRC.
    pub(super) fn datagram<'a>(&self, frame: &'a [u8]) -> &'a [u8] {
        frame.get(self.start..self.end).unwrap_or_default()
    }

    /// Returns the path of the packet, with the traffic class of the outermost header.
    pub(super) fn path(&self, frame: &[u8]) -> Path {
        let [first, second] = word(frame, self.outermost).to_be_bytes();
        let traffic_class = if first >> 4 == 4 { second } else { first << 4 | second >> 4 };
        Path { traffic_class, ..self.headers.path() }
    }

    /// Sets the traffic class of the outermost header, and updates its checksum if it is IPv4. The end of a
    /// tunnel copies marks to the packet inside (RFC 6040). The ICRC covers neither.
    pub(super) fn set_traffic_class(&self, frame: &mut [u8], traffic_class: u8) {
        let Some(header) = frame.get_mut(self.outermost..) else { return };
        if header.first().is_some_and(|first| first >> 4 != 4) {
            return write_ipv6_class(header, traffic_class);
        }
        let before = word(header, 0);
        if let Some(byte) = header.get_mut(1) {
            *byte = traffic_class;
        }
        let sum = update(word(header, 10), before, word(header, 0));
        if let Some(field) = header.get_mut(10..12) {
            field.copy_from_slice(&sum.to_be_bytes());
        }
    }

    /// Flips bits of the datagram. A complete UDP checksum is updated, so that only the ICRC is wrong and the
    /// receiver's NIC drops the packet.
    pub(super) fn flip(&self, frame: &mut [u8], offload: Offload, flips: &BitFlips) {
        for bit in flips.bits() {
            let at = self.start + bit as usize / 8;
            if at < self.end {
                self.change(frame, offload, at, |byte| byte ^ 0x80 >> (bit % 8));
            }
        }
    }

    /// Returns the bytes from BTH to ICRC, and the in-band telemetry that follows, if any.
    pub(super) fn bare_datagram<'a>(&self, frame: &'a [u8]) -> (&'a [u8], Option<Telemetry>) {
        let transport = self.datagram(frame);
        let found = Frame { headers: self.headers, transport, trailer: &[] }.split_telemetry();
        found.map_or((transport, None), |(bare, telemetry)| (bare.transport, Some(telemetry)))
    }

    /// Writes the hop of a port into the in-band telemetry behind the ICRC, if there is telemetry with room.
    /// Updates a complete UDP checksum. Returns whether the telemetry changed.
    pub(super) fn stamp(&self, frame: &mut [u8], offload: Offload, (hop, port): (TelemetryHop, u32)) -> bool {
        let (_, Some(before)) = self.bare_datagram(frame) else { return false };
        let mut telemetry = before;
        telemetry.push(hop, port);
        let start = self.end - Telemetry::LEN;
        for (at, (before, after)) in (start..).zip(before.emit().into_iter().zip(telemetry.emit())) {
            if before != after {
                self.change(frame, offload, at, |_| after);
            }
        }
        telemetry != before
    }

    /// Changes one byte of the datagram, and the complete checksums that cover it.
    fn change(&self, frame: &mut [u8], offload: Offload, at: usize, change: impl FnOnce(u8) -> u8) {
        let sums = self.sums.iter().flatten().filter(|_| !offload.needs_checksum());
        let word_of = |frame: &[u8], base: usize| word(frame, base + (at - base) / 2 * 2);
        let before = self.sums.map(|sum| sum.map_or(0, |(base, _)| word_of(frame, base)));
        if let Some(byte) = frame.get_mut(at) {
            *byte = change(*byte);
        }
        for ((base, place), before) in sums.zip(before) {
            let (after, is_udp) = (word_of(frame, *base), *place == base + 6);
            let Some(field) = frame.get_mut(*place..place + 2) else { continue };
            if is_udp && field == [0, 0] {
                continue;
            }
            let updated = match update(u16::from_be_bytes([field[0], field[1]]), before, after) {
                // In UDP, 0 means that there is no checksum (RFC 768).
                0 if is_udp => 0xffff,
                sum => sum,
            };
            field.copy_from_slice(&updated.to_be_bytes());
        }
    }
}

/// Splits a joined packet into single ones as the kernel does: lengths, incrementing IPv4 Identifications,
/// checksums. Other packets are passed on unchanged.
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
        // The pseudo header contains the length, too. A partial sum is not inverted.
        if offload.needs_checksum() {
            let sum = !update(!word(udp, 6), before[0], before[1]);
            udp[6..8].copy_from_slice(&sum.to_be_bytes());
        } else if word(udp, 6) != 0 {
            // This checksum was that of the joined packet. IPv4 does not require one, and the ICRC protects
            // the datagram.
            udp[6..8].fill(0);
        }
        sink(&single, offload.of_one());
    }
}

/// Returns the priority of a frame in switches: that of its VLAN tag, or the upper bits of its DSCP.
pub(super) fn priority(frame: &[u8]) -> u8 {
    match word(frame, 12) {
        0x8100 => frame.get(14).map_or(0, |byte| byte >> 5),
        0x0800 => frame.get(15).map_or(0, |byte| byte >> 5),
        // The upper half of the traffic class is the lower half of the first byte.
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

/// Sets the class, which is bits 4 to 11 of the first word. Version and flow label share that word.
fn write_ipv6_class(header: &mut [u8], class: u8) {
    if let Some([first, second, ..]) = header.first_chunk_mut::<2>() {
        *first = (*first & 0xf0) | class >> 4;
        *second = (*second & 0x0f) | class << 4;
    }
}

/// Returns two bytes of a slice; bytes beyond its end count as zero.
fn word(bytes: &[u8], at: usize) -> u16 {
    let byte = |at: usize| bytes.get(at).copied().unwrap_or(0);
    u16::from_be_bytes([byte(at), byte(at + 1)])
}

/// Returns a checksum after a change of one word that it covers (RFC 1624).
const fn update(checksum: u16, before: u16, after: u16) -> u16 {
    let sum = !checksum as u32 + !before as u32 + after as u32;
    let sum = (sum & 0xffff) + (sum >> 16);
    let sum = (sum & 0xffff) + (sum >> 16);
    !(sum as u16)
}
