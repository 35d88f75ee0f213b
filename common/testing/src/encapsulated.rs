//! One RoCE packet in every encapsulation that tools must decode, complete and truncated.
//!
//! Bytes and ICRCs are computed here independently, so tests compare two implementations.

/// Location of the end of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The end is present.
    Here,
    /// The capture omitted the end.
    Capture,
    /// A mirror cut off the end.
    Mirror,
    /// The end is in other fragments.
    Fragment,
}

/// A packet and its expected decoding.
#[derive(Clone, Debug)]
pub struct Encapsulated {
    /// Name of the encapsulation.
    pub name: &'static str,
    /// Link type of the capture file.
    pub link_type: u32,
    /// The captured bytes.
    pub bytes: Vec<u8>,
    /// Bytes on the wire.
    pub wire_len: usize,
    /// Offset of the BTH.
    pub bth: usize,
    /// Whether the packet is inside a tunnel.
    pub is_in_tunnel: bool,
    /// Location of the end.
    pub end: End,
}

impl Encapsulated {
    /// Returns the bytes from BTH to ICRC of a complete packet.
    #[must_use]
    pub fn datagram(&self) -> &[u8] {
        &self.bytes[self.bth..self.bth + DATAGRAM]
    }

    /// Returns whether this is native InfiniBand.
    #[must_use]
    pub fn is_native(&self) -> bool {
        self.name.starts_with("InfiniBand")
    }

    /// Returns the packet with a flipped bit in its payload, so that the ICRC is wrong.
    #[must_use]
    pub fn damaged(&self) -> Self {
        let mut damaged = self.clone();
        damaged.bytes[self.bth + 15] ^= 0x10;
        damaged
    }
}

/// The PSN of every packet.
pub const PSN: u32 = 0x5eed;
/// The destination queue pair of every packet.
pub const QPN: u32 = 0x000012;
const PAYLOAD: &[u8; 32] = b"thirty-two bytes of some payload";
/// Bytes from BTH to ICRC.
const DATAGRAM: usize = 12 + PAYLOAD.len() + 4;

const V4: [[u8; 4]; 2] = [[198, 18, 0, 1], [198, 18, 0, 2]];
const OUTER_V4: [[u8; 4]; 2] = [[198, 19, 0, 1], [198, 19, 0, 2]];

const UDP: u8 = 17;
const ROCE: u16 = 4791;

fn join(parts: &[&[u8]]) -> Vec<u8> {
    parts.concat()
}

fn be(value: usize) -> [u8; 2] {
    u16::try_from(value).unwrap().to_be_bytes()
}

/// Computes the CRC-32 of Ethernet, bit by bit.
fn crc32(bytes: &[u8]) -> u32 {
    let step = |register: u32, byte: &u8| {
        (0..8).fold(register ^ u32::from(*byte), |register, _| {
            if register & 1 == 1 { register >> 1 ^ 0xedb8_8320 } else { register >> 1 }
        })
    };
    !bytes.iter().fold(u32::MAX, step)
}

fn checksum(bytes: &[u8]) -> u16 {
    let mut sum = bytes.chunks(2).fold(0_u32, |sum, pair| {
        sum + (u32::from(pair[0]) << 8 | u32::from(pair.get(1).copied().unwrap_or(0)))
    });
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

fn ipv4_header([from, to]: [[u8; 4]; 2], protocol: u8, options: &[u8], len: usize, flags: u16) -> Vec<u8> {
    let header_len = 20 + options.len();
    let first = 0x40 | (header_len / 4) as u8;
    let flags = flags.to_be_bytes();
    let start = [first, 0x02];
    let middle = [0x12, 0x34, flags[0], flags[1], 64, protocol, 0, 0];
    let mut header = join(&[&start, &be(header_len + len), &middle, &from, &to, options]);
    let sum = checksum(&header);
    header[10..12].copy_from_slice(&sum.to_be_bytes());
    header
}

const DONT_FRAGMENT: u16 = 0x4000;

fn ipv4(addresses: [[u8; 4]; 2], protocol: u8, payload: &[u8]) -> Vec<u8> {
    join(&[&ipv4_header(addresses, protocol, &[], payload.len(), DONT_FRAGMENT), payload])
}

fn ipv6_header(net: u8, next: u8, len: usize) -> Vec<u8> {
    let address = |last: u8| {
        let mut address = [0; 16];
        address[..4].copy_from_slice(&[0x20, 0x01, 0x0d, 0xb8]);
        address[5] = net;
        address[15] = last;
        address
    };
    join(&[&[0x60, 0x20, 0x12, 0x34], &be(len), &[next, 64], &address(1), &address(2)])
}

fn ipv6(net: u8, next: u8, payload: &[u8]) -> Vec<u8> {
    join(&[&ipv6_header(net, next, payload.len()), payload])
}

fn udp_header(from: u16, to: u16, len: usize) -> Vec<u8> {
    join(&[&from.to_be_bytes(), &to.to_be_bytes(), &be(8 + len), &[0, 0]])
}

fn udp(to: u16, payload: &[u8]) -> Vec<u8> {
    join(&[&udp_header(0xd123, to, payload.len()), payload])
}

/// Returns BTH and payload of a SEND.
fn covered() -> Vec<u8> {
    let [_, a, b, c] = QPN.to_be_bytes();
    let [_, d, e, f] = PSN.to_be_bytes();
    join(&[&[0x04, 0x40, 0xff, 0xff, 0, a, b, c, 0x80, d, e, f], PAYLOAD])
}

/// Returns the datagram with its ICRC. The ICRC covers `ip`, which contains everything before UDP, and `udp`.
/// Traffic class, hop limit and checksums count as ones.
fn datagram(ip: &[u8], udp: &[u8]) -> Vec<u8> {
    let (mut ip, mut udp, covered) = (ip.to_vec(), udp.to_vec(), covered());
    if ip[0] >> 4 == 4 {
        ip[1] = 0xff;
        ip[8] = 0xff;
        ip[10..12].fill(0xff);
    } else {
        ip[0] |= 0x0f;
        ip[1..4].fill(0xff);
        ip[7] = 0xff;
    }
    if let [.., high, low] = udp.as_mut_slice() {
        (*high, *low) = (0xff, 0xff);
    }
    let mut bth = covered.clone();
    bth[4] = 0xff;
    let crc = crc32(&join(&[&[0xff; 8], &ip, &udp, &bth]));
    join(&[&covered, &crc.to_le_bytes()])
}

/// Returns RoCE v2 on IPv4. The ICRC covers the options, or omits them as if a router had added them.
fn roce_v4(options: &[u8], covers_options: bool) -> Vec<u8> {
    let udp = udp_header(0xd123, ROCE, DATAGRAM);
    let header = |options: &[u8]| ipv4_header(V4, UDP, options, 8 + DATAGRAM, DONT_FRAGMENT);
    let sealed = if covers_options { header(options) } else { header(&[]) };
    join(&[&header(options), &udp, &datagram(&sealed, &udp)])
}

/// Returns RoCE v2 on IPv6 with `extensions`, of which the first has number `next`.
fn roce_v6(next: u8, extensions: &[u8], covers_extensions: bool) -> Vec<u8> {
    let udp = udp_header(0xd123, ROCE, DATAGRAM);
    let len = extensions.len() + 8 + DATAGRAM;
    let header = join(&[&ipv6_header(0, next, len), extensions]);
    let bare = ipv6_header(0, UDP, 8 + DATAGRAM);
    let sealed = if covers_extensions { &header } else { &bare };
    join(&[&header, &udp, &datagram(sealed, &udp)])
}

fn plain_v4() -> Vec<u8> {
    roce_v4(&[], false)
}

fn plain_v6() -> Vec<u8> {
    roce_v6(UDP, &[], false)
}

fn roce_v1() -> Vec<u8> {
    let header = ipv6_header(0, 0x1b, DATAGRAM);
    join(&[&header, &datagram(&header, &[])])
}

fn ethernet(ether_type: u16, payload: &[u8]) -> Vec<u8> {
    join(&[&[2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1], &ether_type.to_be_bytes(), payload])
}

/// Returns a packet of this EtherType inside VLAN tags, each with its own EtherType.
fn tagged(tags: &[(u16, u16)], ether_type: u16, payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let followers = tags.iter().skip(1).map(|(tag, _)| *tag).chain([ether_type]);
    for ((_, vid), follower) in tags.iter().zip(followers) {
        bytes.extend(join(&[&vid.to_be_bytes(), &follower.to_be_bytes()]));
    }
    bytes.extend_from_slice(payload);
    ethernet(tags[0].0, &bytes)
}

const IPV4: u16 = 0x0800;
const IPV6: u16 = 0x86dd;
const BRIDGED: u16 = 0x6558;
const VXLAN: &[u8; 8] = &[8, 0, 0, 0, 0, 0, 42, 0];

fn gre(flags: u8, ether_type: u16, rest: &[u8], payload: &[u8]) -> Vec<u8> {
    join(&[&[flags, 0], &ether_type.to_be_bytes(), rest, payload])
}

fn gre_with_checksum(payload: &[u8]) -> Vec<u8> {
    let mut bytes = gre(0xb0, IPV4, &[0, 0, 0, 0, 0, 0, 0, 7, 0, 0, 0, 1], payload);
    let sum = checksum(&bytes);
    bytes[4..6].copy_from_slice(&sum.to_be_bytes());
    bytes
}

fn mpls(labels: &[u32], payload: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (index, label) in labels.iter().enumerate() {
        let bottom = u32::from(index + 1 == labels.len());
        bytes.extend((label << 12 | bottom << 8 | 64).to_be_bytes());
    }
    bytes.extend_from_slice(payload);
    bytes
}

fn on_v4(protocol: u8, payload: &[u8]) -> Vec<u8> {
    ethernet(IPV4, &ipv4(OUTER_V4, protocol, payload))
}

fn on_v6(next: u8, payload: &[u8]) -> Vec<u8> {
    ethernet(IPV6, &ipv6(9, next, payload))
}

fn erspan_2() -> [u8; 8] {
    [0x10, 0x64, 0x00, 0x07, 0, 0, 0, 1]
}

fn erspan_3(platform: bool) -> Vec<u8> {
    let start = [0x20, 0x64, 0x00, 0x07, 0, 0, 1, 0, 0, 0, 0x80, u8::from(platform)];
    join(&[&start, if platform { &[0x10, 0, 0, 0, 0, 0, 0, 9] } else { &[] }])
}

const V4_OPTIONS: &[u8] = &[0x94, 4, 0, 0];

/// Returns native InfiniBand with or without a GRH, from LRH to variant CRC. The variant CRC is not computed.
fn native(has_grh: bool) -> Vec<u8> {
    let grh_len = if has_grh { 40 } else { 0 };
    let [high, low] = be((8 + grh_len + DATAGRAM) / 4);
    let lrh = [0x30, 0x10 | if has_grh { 3 } else { 2 }, 0, 7, high, low, 0, 9];
    if has_grh {
        let grh = ipv6_header(0, 0x1b, DATAGRAM);
        return join(&[&lrh, &grh, &datagram(&grh, &[]), &[0xcc; 2]]);
    }
    let (mut masked, mut bth) = (lrh, covered());
    masked[0] |= 0xf0;
    bth[4] = 0xff;
    let crc = crc32(&join(&[&masked, &bth]));
    join(&[&lrh, &covered(), &crc.to_le_bytes(), &[0xcc; 2]])
}

/// Returns a record of an ERF file with extension headers of these kinds.
fn erf(kind: u8, extensions: &[u8], packet: &[u8]) -> Vec<u8> {
    let padding: &[u8] = if kind == 21 { &[] } else { &[0; 2] };
    let more = |is_last: bool| if is_last { 0 } else { 0x80 };
    let mut bytes = vec![0x10, 0, 0, 0, 0, 0xf1, 0x53, 0x65, kind | more(extensions.is_empty()), 4];
    let rlen = 16 + 8 * extensions.len() + padding.len() + packet.len();
    bytes.extend(join(&[&be(rlen), &[0; 2], &be(packet.len())]));
    for (index, extension) in extensions.iter().enumerate() {
        bytes.extend([extension | more(index + 1 == extensions.len()), 1, 2, 3, 4, 5, 6, 7]);
    }
    join(&[&bytes, padding, packet])
}

/// Returns native InfiniBand, and packets in ERF records. The Ethernet frames end with their check sequence.
fn native_and_erf() -> [Encapsulated; 7] {
    let with_fcs = |frame: &[u8]| join(&[frame, &[0xfc; 4]]);
    let eth4 = with_fcs(&ethernet(IPV4, &plain_v4()));
    let tunnel = with_fcs(&on_v4(UDP, &vxlan(&ethernet(IPV6, &plain_v6()))));
    let case = |name, link_type, bytes: Vec<u8>, behind, is_in_tunnel| {
        let bth = bytes.len() - behind - DATAGRAM;
        Encapsulated { bth, ..case(name, link_type, bytes, is_in_tunnel) }
    };
    [
        case("InfiniBand", 247, native(false), 2, false),
        case("InfiniBand with a GRH", 247, native(true), 2, false),
        case("InfiniBand in ERF", 197, erf(21, &[], &native(false)), 2, false),
        case("InfiniBand with a GRH in ERF", 197, erf(21, &[3, 5], &native(true)), 2, false),
        case("Ethernet in ERF", 197, erf(2, &[], &eth4), 4, false),
        case("Ethernet with a color in ERF", 197, erf(11, &[4], &eth4), 4, false),
        case("VXLAN in ERF", 197, erf(16, &[3, 4, 5], &tunnel), 4, true),
    ]
}

/// A way to carry a frame inside another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Tunnel {
    /// The frame itself.
    None,
    /// Two VLAN tags.
    Tags,
    /// MPLS with a control word.
    Mpls,
    /// VXLAN on IPv4.
    Vxlan,
    /// NVGRE.
    Gre,
    /// ERSPAN II.
    Erspan,
    /// IPv4 in IPv4, without the Ethernet header of the frame.
    IpInIp,
}

impl Tunnel {
    /// All ways.
    pub const ALL: [Self; 7] =
        [Self::None, Self::Tags, Self::Mpls, Self::Vxlan, Self::Gre, Self::Erspan, Self::IpInIp];
}

/// Returns an Ethernet frame with IPv4 inside a tunnel.
#[must_use]
pub fn encapsulate(tunnel: Tunnel, frame: &[u8]) -> Vec<u8> {
    let packet = &frame[14..];
    match tunnel {
        Tunnel::None => frame.to_vec(),
        Tunnel::Tags => tagged(&[(0x88a8, 100), (0x8100, 7)], IPV4, packet),
        Tunnel::Mpls => ethernet(0x8847, &mpls(&[100], &join(&[&[0, 0, 0, 1], frame]))),
        Tunnel::Vxlan => on_v4(UDP, &vxlan(frame)),
        Tunnel::Gre => on_v4(47, &gre(0x20, BRIDGED, &[0, 0, 42, 0], frame)),
        Tunnel::Erspan => on_v4(47, &gre(0x10, 0x88be, &join(&[&[0, 0, 0, 1], &erspan_2()]), frame)),
        Tunnel::IpInIp => on_v4(4, packet),
    }
}

type Frames = Vec<(&'static str, Vec<u8>, bool)>;

fn plain_and_tagged() -> Frames {
    vec![
        ("IPv4", ethernet(IPV4, &plain_v4()), false),
        ("IPv6", ethernet(IPV6, &plain_v6()), false),
        ("RoCE v1", ethernet(0x8915, &roce_v1()), false),
        ("one tag", tagged(&[(0x8100, 7)], IPV4, &plain_v4()), false),
        ("802.1ad and 802.1Q", encapsulate(Tunnel::Tags, &ethernet(IPV4, &plain_v4())), false),
        ("two 802.1Q tags", tagged(&[(0x8100, 100), (0x8100, 7)], IPV6, &plain_v6()), false),
        ("9100 and 802.1Q", tagged(&[(0x9100, 100), (0x8100, 7)], IPV4, &plain_v4()), false),
        ("three tags", tagged(&[(0x88a8, 1), (0x88a8, 2), (0x8100, 3)], 0x8915, &roce_v1()), false),
    ]
}

fn vxlan(frame: &[u8]) -> Vec<u8> {
    udp(4789, &join(&[VXLAN, frame]))
}

fn tunnels_over_udp() -> Frames {
    let eth4 = ethernet(IPV4, &plain_v4());
    let eth6 = ethernet(IPV6, &plain_v6());
    let tagged_inner = tagged(&[(0x8100, 7)], IPV4, &plain_v4());
    let geneve = |ether_type: u16, words: u8, payload: &[u8]| {
        let start = [words, 0, (ether_type >> 8) as u8, ether_type as u8, 0, 0, 42, 0];
        udp(6081, &join(&[&start, &vec![0; usize::from(words) * 4], payload]))
    };
    let gpe = udp(4790, &join(&[&[0x0c, 0, 0, 1, 0, 0, 42, 0], &plain_v4()]));
    vec![
        ("VXLAN", encapsulate(Tunnel::Vxlan, &eth4), true),
        ("VXLAN on IPv6 with IPv6", on_v6(UDP, &vxlan(&eth6)), true),
        ("VXLAN with a tag", on_v4(UDP, &vxlan(&tagged_inner)), true),
        ("VXLAN on the port of Linux", on_v4(UDP, &udp(8472, &join(&[VXLAN, &eth4]))), true),
        ("VXLAN-GPE", on_v4(UDP, &gpe), true),
        ("Geneve with options", on_v4(UDP, &geneve(BRIDGED, 2, &eth4)), true),
        ("Geneve with IPv6", on_v6(UDP, &geneve(IPV6, 0, &plain_v6())), true),
    ]
}

fn gre_and_erspan() -> Frames {
    let eth4 = ethernet(IPV4, &plain_v4());
    let eth6 = ethernet(IPV6, &plain_v6());
    vec![
        ("GRE", on_v4(47, &gre(0, IPV4, &[], &plain_v4())), true),
        ("GRE with checksum, key and number", on_v4(47, &gre_with_checksum(&plain_v4())), true),
        ("NVGRE", encapsulate(Tunnel::Gre, &eth4), true),
        ("GRE on IPv6", on_v6(47, &gre(0, IPV6, &[], &plain_v6())), true),
        ("ERSPAN I", on_v4(47, &gre(0, 0x88be, &[], &eth4)), true),
        ("ERSPAN II", encapsulate(Tunnel::Erspan, &eth4), true),
        ("ERSPAN III", on_v4(47, &gre(0x10, 0x22eb, &join(&[&[0, 0, 0, 1], &erspan_3(false)]), &eth4)), true),
        (
            "ERSPAN III with a platform header",
            on_v4(47, &gre(0x10, 0x22eb, &join(&[&[0, 0, 0, 1], &erspan_3(true)]), &eth6)),
            true,
        ),
    ]
}

fn ip_and_mpls() -> Frames {
    let eth4 = ethernet(IPV4, &plain_v4());
    let eth6 = ethernet(IPV6, &plain_v6());
    vec![
        ("IPv4 in IPv4", encapsulate(Tunnel::IpInIp, &eth4), true),
        ("IPv6 in IPv4", on_v4(41, &plain_v6()), true),
        ("IPv4 in IPv6", on_v6(4, &plain_v4()), true),
        ("IPv6 in IPv6", on_v6(41, &plain_v6()), true),
        ("MPLS", ethernet(0x8847, &mpls(&[100], &plain_v4())), true),
        ("MPLS, three labels", ethernet(0x8847, &mpls(&[100, 200, 300], &plain_v6())), true),
        ("MPLS with a control word", encapsulate(Tunnel::Mpls, &eth4), true),
        ("MPLS with Ethernet", ethernet(0x8847, &mpls(&[100, 200], &eth6)), true),
        ("MPLS in IPv4", on_v4(137, &mpls(&[100], &plain_v4())), true),
        ("GRE over UDP", on_v4(UDP, &udp(4754, &gre(0, IPV4, &[], &plain_v4()))), true),
        ("MPLS over UDP", on_v4(UDP, &udp(6635, &mpls(&[100], &plain_v4()))), true),
    ]
}

fn options_and_extensions() -> Frames {
    let hop_by_hop = [UDP, 0, 1, 4, 0, 0, 0, 0];
    let two = [&[43, 0, 1, 4, 0, 0, 0, 0][..], &[UDP, 2, 4, 0, 0, 0, 0, 0], &[0; 16]].concat();
    let ah = |next: u8| join(&[&[next, 4, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1], &[0xab; 12]]);
    let atomic_fragment = [UDP, 0, 0, 0, 0, 0, 0, 9];
    let behind_ah = ipv4_header(V4, 51, &[], 24 + 8 + DATAGRAM, DONT_FRAGMENT);
    let udp_of_roce = udp_header(0xd123, ROCE, DATAGRAM);
    let sealed = ipv4_header(V4, UDP, &[], 8 + DATAGRAM, DONT_FRAGMENT);
    let with_ah = join(&[&behind_ah, &ah(UDP), &udp_of_roce, &datagram(&sealed, &udp_of_roce)]);
    vec![
        ("IPv4 options that the sender set", ethernet(IPV4, &roce_v4(V4_OPTIONS, true)), false),
        ("IPv4 options that a router added", ethernet(IPV4, &roce_v4(V4_OPTIONS, false)), false),
        ("hop-by-hop options", ethernet(IPV6, &roce_v6(0, &hop_by_hop, false)), false),
        ("destination options and routing", ethernet(IPV6, &roce_v6(60, &two, true)), false),
        ("a fragment header of a whole packet", ethernet(IPV6, &roce_v6(44, &atomic_fragment, false)), false),
        ("AH", ethernet(IPV4, &with_ah), false),
        ("AH in tunnel mode", on_v4(51, &join(&[&ah(4), &plain_v4()])), true),
    ]
}

fn nested() -> Frames {
    let eth4 = ethernet(IPV4, &plain_v4());
    vec![
        ("VXLAN in VXLAN", on_v4(UDP, &vxlan(&on_v4(UDP, &vxlan(&eth4)))), true),
        (
            "GRE behind two tags and a label",
            tagged(
                &[(0x88a8, 5), (0x8100, 6)],
                0x8847,
                &mpls(&[9], &ipv4(OUTER_V4, 47, &gre(0, IPV6, &[], &plain_v6()))),
            ),
            true,
        ),
    ]
}

/// Returns the complete packets.
#[must_use]
pub fn whole() -> Vec<Encapsulated> {
    let frames = [
        plain_and_tagged(),
        tunnels_over_udp(),
        gre_and_erspan(),
        ip_and_mpls(),
        options_and_extensions(),
        nested(),
    ];
    let frames = frames.into_iter().flatten();
    let mut cases: Vec<_> = frames.map(|(name, bytes, tunnel)| case(name, 1, bytes, tunnel)).collect();
    let eth4 = ethernet(IPV4, &plain_v4());
    let sll = |ether_type: u16| join(&[&[0; 14], &ether_type.to_be_bytes()]);
    let sll2 = |ether_type: u16| join(&[&ether_type.to_be_bytes(), &[0; 18]]);
    cases.extend([
        case("raw IP with IPv4 in IPv6", 101, ipv6(9, 4, &plain_v4()), true),
        case("cooked with VXLAN", 113, join(&[&sll(IPV4), &ipv4(OUTER_V4, UDP, &vxlan(&eth4))]), true),
        case(
            "cooked with two tags",
            113,
            join(&[&sll(0x8100), &[0, 1, 0x81, 0, 0, 2, 8, 0], &plain_v4()]),
            false,
        ),
        case("cooked 2 with MPLS", 276, join(&[&sll2(0x8847), &mpls(&[1], &plain_v6())]), true),
    ]);
    cases.extend(native_and_erf());
    cases
}

fn case(name: &'static str, link_type: u32, bytes: Vec<u8>, is_in_tunnel: bool) -> Encapsulated {
    let wire_len = bytes.len();
    let bth = wire_len - DATAGRAM;
    Encapsulated { name, link_type, bytes, wire_len, bth, is_in_tunnel, end: End::Here }
}

/// Returns the packets whose end is missing.
#[must_use]
pub fn cut() -> Vec<Encapsulated> {
    let find = |name: &str| whole().into_iter().find(|case| case.name == name).unwrap();
    let cut_to = |case: Encapsulated, name: &'static str, len: usize, end: End| {
        let mut bytes = case.bytes;
        bytes.truncate(len);
        let wire_len = if end == End::Capture { case.wire_len } else { len };
        Encapsulated { name, bytes, wire_len, end, ..case }
    };
    let mut cases = Vec::new();
    for (name, by_capture, by_mirror) in [
        ("IPv4", "IPv4, cut by the capture", "IPv4, cut by a mirror"),
        ("IPv6", "IPv6, cut by the capture", "IPv6, cut by a mirror"),
        ("RoCE v1", "RoCE v1, cut by the capture", "RoCE v1, cut by a mirror"),
        ("VXLAN", "VXLAN, cut by the capture", "VXLAN, cut by a mirror"),
        ("ERSPAN II", "ERSPAN II, cut by the capture", "ERSPAN II, cut behind the mirror"),
        ("two 802.1Q tags", "two tags, cut by the capture", "two tags, cut by a mirror"),
        ("IPv4 options that the sender set", "options, cut by the capture", "options, cut by a mirror"),
        ("InfiniBand", "InfiniBand, cut by the capture", "InfiniBand, cut by a mirror"),
        ("Ethernet in ERF", "ERF, cut by the capture", "ERF, cut by a mirror"),
    ] {
        let case = find(name);
        let len = case.bth + 20;
        cases.push(cut_to(case.clone(), by_capture, len, End::Capture));
        cases.push(cut_to(case, by_mirror, len, End::Mirror));
    }
    // An ERSPAN switch sends this packet: the inner frame is cut, but the outer packet is complete.
    let mut inner = ethernet(IPV4, &plain_v4());
    inner.truncate(14 + 20 + 8 + 20);
    let bytes = encapsulate(Tunnel::Erspan, &inner);
    let (wire_len, bth) = (bytes.len(), bytes.len() - 20);
    let name = "ERSPAN II with a cut frame";
    let end = End::Mirror;
    cases.push(Encapsulated { name, link_type: 1, bytes, wire_len, bth, is_in_tunnel: true, end });
    cases.extend(first_fragments());
    cases
}

fn first_fragments() -> [Encapsulated; 2] {
    let first = &plain_v4()[20..20 + 8 + 24];
    let v4 = join(&[&ipv4_header(V4, UDP, &[], first.len(), 0x2000), first]);
    let v6 = ipv6(0, 44, &join(&[&[UDP, 0, 0, 1, 0, 0, 0, 9], &plain_v6()[40..40 + 8 + 24]]));
    let of = |name, ether_type, packet: &[u8]| {
        let bytes = ethernet(ether_type, packet);
        let (wire_len, bth) = (bytes.len(), bytes.len() - 24);
        Encapsulated { name, link_type: 1, bytes, wire_len, bth, is_in_tunnel: false, end: End::Fragment }
    };
    [of("first fragment of IPv4", IPV4, &v4), of("first fragment of IPv6", IPV6, &v6)]
}

/// Returns packets that are not RoCE: a name, the frame, and a word from the reason that a tool should give.
#[must_use]
pub fn foreign() -> Vec<(&'static str, Vec<u8>, &'static str)> {
    let tcp = |len: usize| join(&[&[0x9c, 0x40, 0x18, 0xeb], &vec![0x50; len]]);
    let dns = join(&[&[0x1a, 0x40, 0x81, 0x80, 0, 1, 0, 1, 0, 0, 0, 0], b"\x07example\x03com\0\0\x01\0\x01"]);
    let answer = join(&[&udp_header(53, ROCE, dns.len()), &dns]);
    let on_other_port = {
        let udp = udp_header(0xd123, 4792, DATAGRAM);
        let header = ipv4_header(V4, UDP, &[], 8 + DATAGRAM, DONT_FRAGMENT);
        join(&[&header, &udp, &datagram(&header, &udp)])
    };
    let vxlan = join(&[VXLAN, &ethernet(IPV4, &plain_v4())]);
    let later = ipv4_header(V4, UDP, &[], 32, 3);
    let deep = (0..40).fold(plain_v4(), |packet, _| ipv4(OUTER_V4, 4, &packet));
    vec![
        ("TCP", ethernet(IPV4, &ipv4(V4, 6, &tcp(16))), "TCP"),
        (
            "TCP in VXLAN",
            on_v4(UDP, &udp(4789, &join(&[VXLAN, &ethernet(IPV4, &ipv4(V4, 6, &tcp(16)))]))),
            "TCP",
        ),
        ("ESP", ethernet(IPV4, &ipv4(V4, 50, &[7; 40])), "encrypted"),
        ("MACsec", ethernet(0x88e5, &[7; 60]), "encrypted"),
        ("an answer of a DNS server", ethernet(IPV4, &ipv4(V4, UDP, &answer)), "UDP"),
        ("RoCE on another port", ethernet(IPV4, &on_other_port), "use --port 4792"),
        ("VXLAN on another port", on_v4(UDP, &udp(5789, &vxlan)), "look like VXLAN"),
        ("other UDP", on_v4(UDP, &udp(5000, &[1; 40])), "UDP to port 5000"),
        ("a later fragment", ethernet(IPV4, &join(&[&later, &[7; 32]])), "UDP"),
        ("forty headers", ethernet(IPV4, &deep), "too deep"),
    ]
}
