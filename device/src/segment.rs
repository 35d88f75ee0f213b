//! Splits joined frames and completes checksums in user space, where the kernel cannot.
//!
//! The header between a process and the kernel (`struct virtio_net_hdr`) describes the innermost packet and
//! has no room for a tunnel's outer headers. The kernel joins packets in a tunnel and passes them to a packet
//! socket, but refuses to split the returning frame: `ENOMEM` from an interface, `EINVAL` from others.

use std::net::IpAddr;

use crate::checksum::{pseudo_header_sum, sum};
use crate::offload::Offload;

/// Headers whose lengths or checksums depend on the length of the packet, by their offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Layer {
    Ipv4(usize),
    Ipv6(usize),
    /// UDP in front of a tunnel header.
    TunnelUdp(usize),
    /// GRE with a checksum.
    Gre(usize),
}

/// A frame whose offloads can be carried out here: the position of all fields that must change.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    /// From the outermost to the innermost.
    layers: [Layer; MAX_LAYERS],
    layer_count: usize,
    /// Offset of the innermost TCP or UDP header.
    transport: usize,
    is_tcp: bool,
    /// Offset of the payload behind the transport header.
    payload: usize,
    /// Bytes of payload in each packet except the last.
    segment_len: usize,
    frame_len: usize,
    is_joined: bool,
    /// Whether the TCP or UDP checksum must be computed.
    has_checksum: bool,
}

impl Plan {
    /// Returns `None` if the frame needs no work, or if its headers are unknown or malformed.
    pub(crate) fn of(frame: &[u8], offload: &Offload) -> Option<Self> {
        let (is_joined, needs_checksum) = (offload.is_joined(), offload.needs_checksum());
        if !is_joined && !needs_checksum {
            return None;
        }
        let (start, field) = offload.checksum_place();
        let target = needs_checksum.then_some(usize::from(start));
        let mut walk =
            Walk { frame, target, is_joined, layers: [Layer::Ipv4(0); MAX_LAYERS], layer_count: 0 };
        let (transport, is_tcp) = walk.ethernet(0)?;
        let field_expected = if is_tcp { TCP_CHECKSUM } else { UDP_CHECKSUM };
        if needs_checksum && usize::from(field) != field_expected {
            return None;
        }
        let header_len = if is_tcp { usize::from(walk.byte(transport + 12)? >> 4) * 4 } else { UDP_LEN };
        let payload = transport + header_len;
        let least = if is_tcp { TCP_LEAST } else { UDP_LEN };
        if header_len < least || payload > frame.len() {
            return None;
        }
        let segment_len = if is_joined { offload.joined_len()? } else { frame.len() - payload };
        let has_checksum = needs_checksum || is_tcp || walk.word(transport + UDP_CHECKSUM)? != 0;
        let Walk { layers, layer_count, .. } = walk;
        let frame_len = frame.len();
        Some(Self {
            layers,
            layer_count,
            transport,
            is_tcp,
            payload,
            segment_len,
            frame_len,
            is_joined,
            has_checksum,
        })
    }

    /// Returns whether the packet is inside another one.
    #[cfg(feature = "whole")]
    pub(crate) fn is_tunnel(&self) -> bool {
        self.layer_count > 1
    }

    /// Returns the number of packets.
    pub(crate) fn count(&self) -> usize {
        (self.frame_len - self.payload).div_ceil(self.segment_len.max(1)).max(1)
    }

    /// Writes `prefix` and the completed packet with this index to `buffer`. `frame` must be the frame that
    /// this plan was made of.
    pub(crate) fn write(&self, frame: &[u8], index: usize, buffer: &mut Vec<u8>, prefix: &[u8]) {
        let start = (self.payload + index * self.segment_len).min(frame.len());
        let end = (start + self.segment_len).min(frame.len());
        buffer.clear();
        buffer.extend_from_slice(prefix);
        buffer.extend_from_slice(&frame[..self.payload.min(frame.len())]);
        buffer.extend_from_slice(&frame[start..end]);
        let out = &mut buffer[prefix.len()..];
        // A single packet keeps its lengths, because the padding of a short frame may follow it.
        if self.is_joined {
            self.set_lengths(index, out);
        }
        self.finish_transport(index, out);
        // From the innermost to the outermost, because outer checksums cover inner ones.
        for at in (0..self.layer_count).rev() {
            match self.layers[at] {
                Layer::TunnelUdp(udp) if word(out, udp + UDP_CHECKSUM) != 0 => {
                    let end = udp + usize::from(word(out, udp + 4));
                    self.checksum(at, udp, end, UDP, UDP_CHECKSUM, out);
                }
                Layer::Gre(gre) => {
                    set(out, gre + 4, 0);
                    let value = !sum(0, &out[gre..]);
                    set(out, gre + 4, value);
                }
                Layer::Ipv4(_) | Layer::Ipv6(_) | Layer::TunnelUdp(_) => {}
            }
        }
    }

    fn set_lengths(&self, index: usize, out: &mut [u8]) {
        for layer in &self.layers[..self.layer_count] {
            match *layer {
                Layer::Ipv4(at) => {
                    set(out, at + 2, len_behind(out, at));
                    // Like the kernel, count the Identification up (not required with DF set, RFC 6864).
                    let identification = word(out, at + 4).wrapping_add(index as u16);
                    set(out, at + 4, identification);
                    set(out, at + 10, 0);
                    let header_len = usize::from(out[at] & 0x0f) * 4;
                    let value = !sum(0, &out[at..at + header_len]);
                    set(out, at + 10, value);
                }
                Layer::Ipv6(at) => set(out, at + 4, len_behind(out, at + IPV6_LEN)),
                Layer::TunnelUdp(at) => set(out, at + 4, len_behind(out, at)),
                Layer::Gre(_) => {}
            }
        }
    }

    /// Updates sequence number and flags of TCP, length of UDP, and the checksum.
    fn finish_transport(&self, index: usize, out: &mut [u8]) {
        let at = self.transport;
        if self.is_joined && self.is_tcp {
            let offset = (index * self.segment_len) as u32;
            let sequence = u32::from(word(out, at + 4)) << 16 | u32::from(word(out, at + 6));
            out[at + 4..at + 8].copy_from_slice(&sequence.wrapping_add(offset).to_be_bytes());
            if index + 1 < self.count() {
                out[at + 13] &= !(TCP_FIN | TCP_PSH);
            }
            if index > 0 {
                out[at + 13] &= !TCP_CWR;
            }
        } else if self.is_joined {
            set(out, at + 4, len_behind(out, at));
        }
        if !self.has_checksum {
            return;
        }
        let (protocol, field) = if self.is_tcp { (TCP, TCP_CHECKSUM) } else { (UDP, UDP_CHECKSUM) };
        let end = match self.layers[self.layer_count - 1] {
            Layer::Ipv4(ip) => ip + usize::from(word(out, ip + 2)),
            Layer::Ipv6(ip) => ip + IPV6_LEN + usize::from(word(out, ip + 4)),
            Layer::TunnelUdp(_) | Layer::Gre(_) => out.len(),
        };
        self.checksum(self.layer_count, at, end, protocol, field, out);
    }

    /// Computes the checksum of `at..end` with the pseudo header of the IP header before layer `inside`.
    fn checksum(&self, inside: usize, at: usize, end: usize, protocol: u8, field: usize, out: &mut [u8]) {
        let (source, destination) = match self.layers.get(inside.wrapping_sub(1)) {
            Some(Layer::Ipv4(ip)) => (ipv4(out, ip + 12), ipv4(out, ip + 16)),
            Some(Layer::Ipv6(ip)) => (ipv6(out, ip + 8), ipv6(out, ip + 24)),
            _ => return,
        };
        let end = end.clamp(at, out.len());
        set(out, at + field, 0);
        let pseudo = pseudo_header_sum(source, destination, protocol, end - at);
        let value = match !sum(pseudo, &out[at..end]) {
            // In UDP, 0 stands for no checksum (RFC 768).
            0 if protocol == UDP => 0xffff,
            value => value,
        };
        set(out, at + field, value);
    }
}

/// Parses the headers of a frame from the outermost to the innermost.
struct Walk<'a> {
    frame: &'a [u8],
    /// Offset of the innermost TCP or UDP header, if the kernel provides it.
    target: Option<usize>,
    is_joined: bool,
    layers: [Layer; MAX_LAYERS],
    layer_count: usize,
}

/// Offset of a transport header, and whether it is TCP.
type Transport = Option<(usize, bool)>;

impl Walk<'_> {
    fn byte(&self, at: usize) -> Option<u8> {
        self.frame.get(at).copied()
    }

    fn word(&self, at: usize) -> Option<u16> {
        Some(u16::from_be_bytes([self.byte(at)?, self.byte(at + 1)?]))
    }

    fn push(&mut self, layer: Layer) -> Option<()> {
        *self.layers.get_mut(self.layer_count)? = layer;
        self.layer_count += 1;
        Some(())
    }

    fn ethernet(&mut self, at: usize) -> Transport {
        self.ether_type(self.word(at + 12)?, at + 14)
    }

    fn ether_type(&mut self, mut ether_type: u16, mut at: usize) -> Transport {
        while matches!(ether_type, 0x8100 | 0x88a8) {
            ether_type = self.word(at + 2)?;
            at += 4;
        }
        match ether_type {
            0x0800 | 0x86dd => self.ip(at),
            0x8847 | 0x8848 => {
                // The lowest bit of the third byte marks the last label.
                while self.byte(at + 2)? & 1 == 0 {
                    at += 4;
                }
                self.ip(at + 4)
            }
            _ => None,
        }
    }

    fn ip(&mut self, at: usize) -> Transport {
        match self.byte(at)? >> 4 {
            4 => {
                let header_len = usize::from(self.byte(at)? & 0x0f) * 4;
                let is_fragment = self.word(at + 6)? & 0x3fff != 0;
                if header_len < IPV4_LEAST || is_fragment {
                    return None;
                }
                self.push(Layer::Ipv4(at))?;
                self.protocol(self.byte(at + 9)?, at + header_len)
            }
            6 => {
                self.push(Layer::Ipv6(at))?;
                let (mut next, mut at) = (self.byte(at + 6)?, at + IPV6_LEN);
                // Hop-by-hop options, routing, destination options.
                while matches!(next, 0 | 43 | 60) {
                    next = self.byte(at)?;
                    at += 8 + 8 * usize::from(self.byte(at + 1)?);
                }
                self.protocol(next, at)
            }
            _ => None,
        }
    }

    fn protocol(&mut self, protocol: u8, at: usize) -> Transport {
        match protocol {
            TCP if self.target.is_none_or(|target| target == at) => Some((at, true)),
            UDP if self.target == Some(at) => Some((at, false)),
            UDP => self.tunnel_in_udp(at).or_else(|| self.target.is_none().then_some((at, false))),
            // IPv4 and IPv6.
            4 | 41 => self.ip(at),
            47 => self.gre(at),
            _ => None,
        }
    }

    /// Tries VXLAN, Geneve and bare IP. Tunnels may use any port, so the port decides only if the kernel does
    /// not provide the offset of the innermost header.
    fn tunnel_in_udp(&mut self, at: usize) -> Transport {
        if self.target.is_none() && !TUNNEL_PORTS.contains(&self.word(at + 2)?) {
            return None;
        }
        let layer_count = self.layer_count;
        let inner = at + UDP_LEN;
        let geneve_len = 8 + 4 * usize::from(self.byte(inner)? & 0x3f);
        let geneve_type = self.word(inner + 2)?;
        let attempts: [&dyn Fn(&mut Self) -> Transport; 4] = [
            &|walk| walk.ethernet(inner + VXLAN_LEN),
            &|walk| match geneve_type {
                0x6558 => walk.ethernet(inner + geneve_len),
                other => walk.ether_type(other, inner + geneve_len),
            },
            &|walk| walk.ip(inner),
            &|walk| walk.ip(inner + VXLAN_LEN),
        ];
        attempts.iter().find_map(|attempt| {
            self.layer_count = layer_count;
            self.push(Layer::TunnelUdp(at))?;
            attempt(self)
        })
    }

    fn gre(&mut self, at: usize) -> Transport {
        let (flags, protocol) = (self.word(at)?, self.word(at + 2)?);
        let has = |bit: u16| usize::from(flags & bit != 0);
        let (checksum, key, sequence) = (has(0x8000), has(0x2000), has(0x1000));
        // Joined packets cannot share one sequence number. The other bits are routing and version.
        if flags & 0x4fff != 0 || (sequence == 1 && self.is_joined) {
            return None;
        }
        if checksum == 1 {
            self.push(Layer::Gre(at))?;
        }
        let inner = at + 4 + 4 * (checksum + key + sequence);
        match protocol {
            0x6558 => self.ethernet(inner),
            // ERSPAN without a header of its own, with that of version 2, and with that of version 3.
            0x88be => self.ethernet(inner + 8 * sequence),
            0x22eb => self.ethernet(inner + 12 + 8 * usize::from(self.byte(inner + 11)? & 1)),
            other => self.ether_type(other, inner),
        }
    }
}

fn len_behind(out: &[u8], at: usize) -> u16 {
    out.len().saturating_sub(at) as u16
}

fn word(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

fn set(bytes: &mut [u8], at: usize, value: u16) {
    bytes[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

fn ipv4(bytes: &[u8], at: usize) -> IpAddr {
    bytes[at..].first_chunk::<4>().copied().unwrap_or_default().into()
}

fn ipv6(bytes: &[u8], at: usize) -> IpAddr {
    bytes[at..].first_chunk::<16>().copied().unwrap_or_default().into()
}

/// An Ethernet frame with IP in three tunnels has at most seven layers.
const MAX_LAYERS: usize = 8;
const IPV4_LEAST: usize = 20;
const IPV6_LEN: usize = 40;
const UDP_LEN: usize = 8;
const TCP_LEAST: usize = 20;
const VXLAN_LEN: usize = 8;
const UDP_CHECKSUM: usize = 6;
const TCP_CHECKSUM: usize = 16;
const UDP: u8 = 17;
const TCP: u8 = 6;
const TCP_FIN: u8 = 0x01;
const TCP_PSH: u8 = 0x08;
const TCP_CWR: u8 = 0x80;
/// VXLAN, VXLAN on Linux before its registration, VXLAN-GPE, Geneve.
const TUNNEL_PORTS: [u16; 4] = [4789, 8472, 4790, 6081];
