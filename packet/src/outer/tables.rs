//! The fields of the headers that occur only in tunnels, tags and IP extensions.

use core::fmt;

use crate::ethernet::ether_type_note;
use crate::fields::Show::{Bytes, Decimal, Flag, Hex};
use crate::fields::{Field, Header, bits, bytes, mask};
use crate::udp::protocol_note;

/// An 802.1ad service tag, which precedes the tag of the customer.
pub static SERVICE_VLAN: Header = Header {
    name: "S-VLAN",
    title: "802.1ad service tag",
    purpose: "Carries the VLANs of a customer in a VLAN of the provider.",
    rule: "IEEE 802.1Q 9.6",
    fields: &[
        Field::new("PCP", "ieee8021ad.priority", mask(0, 0xe0), Decimal).means("Priority, 0 to 7."),
        Field::new("DEI", "ieee8021ad.dei", mask(0, 0x10), Flag)
            .means("Drop eligible: a congested switch drops this frame first."),
        Field::new("VID", "ieee8021ad.id", bits(0, 4, 12), Decimal)
            .means("Number of the virtual network of the provider, 1 to 4094."),
        Field::new("type", "roce.ieee8021ad.etype", bytes(2, 2), Hex)
            .note(ether_type_note)
            .means("Type of the next header."),
    ],
};

/// The header of a record of an ERF file.
pub static ERF: Header = Header {
    name: "ERF",
    title: "extensible record format",
    purpose: "Precedes each packet in the files of some capture cards.",
    rule: "LINKTYPE_ERF",
    fields: &[
        Field::new("timestamp", "roce.erf.ts", bytes(0, 8), Bytes)
            .means("Time of the capture in units of 2^-32 s, least significant byte first."),
        Field::new("extension", "erf.types.ext_header", mask(8, 0x80), Flag)
            .means("Set if an extension header follows."),
        Field::new("type", "erf.types.type", mask(8, 0x7f), Decimal)
            .note(erf_type_note)
            .means("Protocol of the packet."),
        Field::new("flags", "roce.erf.flags", bytes(9, 1), Hex)
            .means("Capture interface in the lower two bits; 0x08 means that the packet was cut."),
        Field::new("record length", "erf.rlen", bytes(10, 2), Decimal)
            .means("Bytes of the record with this header."),
        Field::new("loss counter", "erf.lctr", bytes(12, 2), Decimal)
            .means("Number of packets lost before this one, or the color of the packet."),
        Field::new("wire length", "erf.wlen", bytes(14, 2), Decimal)
            .means("Bytes of the packet on the wire."),
    ],
};

/// The extension headers of an ERF record, and the padding before an Ethernet frame.
pub static ERF_EXTENSIONS: Header = Header {
    name: "ERF more",
    title: "extension headers and padding",
    purpose: "Extends the header of the record; two bytes align the addresses behind an Ethernet header.",
    rule: "LINKTYPE_ERF",
    fields: &[],
};

fn erf_type_note(value: u64, out: &mut dyn fmt::Write) -> fmt::Result {
    out.write_str(match value {
        2 => "Ethernet",
        11 | 16 | 20 => "Ethernet with a color",
        21 => "InfiniBand",
        _ => "",
    })
}

/// An entry of an MPLS label stack.
pub static MPLS: Header = Header {
    name: "MPLS",
    title: "label stack entry",
    purpose: "Says on which label-switched path the packet travels.",
    rule: "RFC 3032 section 2.1",
    fields: &[
        Field::new("label", "mpls.label", bits(0, 0, 20), Decimal)
            .means("Label by which routers forward the packet."),
        Field::new("traffic class", "mpls.exp", bits(2, 4, 3), Decimal).means("Priority, 0 to 7."),
        Field::new("S", "mpls.bottom", bits(2, 7, 1), Flag).means("Set in the last entry of the stack."),
        Field::new("TTL", "mpls.ttl", bytes(3, 1), Decimal)
            .means("Number of routers that may still forward the packet."),
    ],
};

/// The control word between an MPLS label stack and an Ethernet frame.
pub static CONTROL_WORD: Header = Header {
    name: "PW",
    title: "pseudowire control word",
    purpose: "Numbers the Ethernet frames of a pseudowire.",
    rule: "RFC 4448 section 4.6",
    fields: &[
        Field::new("reserved", "pweth.cw", bytes(0, 2), Hex).means("Zero."),
        Field::new("sequence", "pweth.cw.sequence_number", bytes(2, 2), Decimal)
            .means("Number of the frame, 0 if frames are not numbered."),
    ],
};

/// The first four bytes of a GRE header, which are always present.
pub static GRE: Header = Header {
    name: "GRE",
    title: "generic routing encapsulation",
    purpose: "Carries a packet of any protocol through an IP network.",
    rule: "RFC 2784, RFC 2890",
    fields: &[
        Field::new("C", "gre.flags.checksum", mask(0, 0x80), Flag).means("Set if a checksum follows."),
        Field::new("R", "gre.flags.routing", mask(0, 0x40), Flag)
            .means("Set if routing information follows; obsolete."),
        Field::new("K", "gre.flags.key", mask(0, 0x20), Flag).means("Set if a key follows."),
        Field::new("S", "gre.flags.sequence_number", mask(0, 0x10), Flag)
            .means("Set if a sequence number follows."),
        Field::reserved("gre.flags.reserved", bits(0, 4, 9)),
        Field::new("version", "gre.flags.version", mask(1, 0x07), Decimal).means("Version of GRE; 0."),
        Field::new("protocol", "gre.proto", bytes(2, 2), Hex)
            .note(ether_type_note)
            .means("EtherType of the next header."),
    ],
};

/// The checksum of a GRE header.
pub static GRE_CHECKSUM: Header = Header {
    name: "checksum",
    title: "GRE checksum",
    purpose: "Protects the GRE header and the packet in it.",
    rule: "RFC 2784",
    fields: &[
        Field::new("checksum", "gre.checksum", bytes(0, 2), Hex).means("Ones' complement sum."),
        Field::reserved("gre.offset", bytes(2, 2)),
    ],
};

/// The key of a GRE header.
pub static GRE_KEY: Header = Header {
    name: "key",
    title: "GRE key",
    purpose: "Tells the tunnels between two hosts apart.",
    rule: "RFC 2890 section 2.1",
    fields: &[Field::new("key", "gre.key", bytes(0, 4), Hex)
        .means("Number of the tunnel; NVGRE has the virtual network in the upper 24 bits.")],
};

/// The sequence number of a GRE header.
pub static GRE_SEQUENCE: Header = Header {
    name: "sequence",
    title: "GRE sequence number",
    purpose: "Numbers the packets of a tunnel.",
    rule: "RFC 2890 section 2.2",
    fields: &[
        Field::new("sequence", "gre.sequence_number", bytes(0, 4), Decimal).means("Number of the packet.")
    ],
};

/// The header of ERSPAN type II.
pub static ERSPAN_II: Header = Header {
    name: "ERSPAN II",
    title: "mirrored frame",
    purpose: "Carries a frame that a switch mirrored to a collector.",
    rule: "draft-foschiano-erspan section 4.2",
    fields: &[
        Field::new("version", "erspan.version", mask(0, 0xf0), Decimal).means("1 for type II."),
        Field::new("VLAN", "erspan.vlan", bits(0, 4, 12), Decimal).means("VLAN of the mirrored frame."),
        Field::new("COS", "erspan.cos", mask(2, 0xe0), Decimal).means("Priority of the mirrored frame."),
        Field::new("En", "erspan.encap", mask(2, 0x18), Decimal)
            .means("How the mirrored frame was tagged: 3 if the tag is still in it."),
        Field::new("T", "erspan.truncated", mask(2, 0x04), Flag)
            .means("Set if the switch truncated the frame."),
        Field::new("session", "erspan.spanid", bits(2, 6, 10), Decimal)
            .means("Number of the mirror session."),
        Field::reserved("erspan.reserved", bits(4, 0, 12)),
        Field::new("index", "erspan.index", bits(5, 4, 20), Decimal)
            .means("Port and direction of the mirror."),
    ],
};

/// The header of ERSPAN type III.
pub static ERSPAN_III: Header = Header {
    name: "ERSPAN III",
    title: "mirrored frame",
    purpose: "Carries a frame that a switch mirrored to a collector, with the time.",
    rule: "draft-foschiano-erspan section 4.3",
    fields: &[
        Field::new("version", "erspan.version", mask(0, 0xf0), Decimal).means("2 for type III."),
        Field::new("VLAN", "erspan.vlan", bits(0, 4, 12), Decimal).means("VLAN of the mirrored frame."),
        Field::new("COS", "erspan.cos", mask(2, 0xe0), Decimal).means("Priority of the mirrored frame."),
        Field::new("BSO", "erspan.bso", mask(2, 0x18), Decimal)
            .means("State of the mirrored frame: 0 good, 1 short, 2 oversized, 3 bad."),
        Field::new("T", "erspan.truncated", mask(2, 0x04), Flag)
            .means("Set if the switch truncated the frame."),
        Field::new("session", "erspan.spanid", bits(2, 6, 10), Decimal)
            .means("Number of the mirror session."),
        Field::new("timestamp", "erspan.timestamp", bytes(4, 4), Decimal)
            .means("Lower 32 bits of the time at which the switch mirrored the frame, in units of Gra."),
        Field::new("SGT", "erspan.sgt", bytes(8, 2), Decimal).means("Security group of the frame."),
        Field::new("P", "erspan.p", mask(10, 0x80), Flag).means("Set if an Ethernet frame follows."),
        Field::new("FT", "erspan.ft", mask(10, 0x7c), Decimal)
            .means("Type of the mirrored packet: 0 an Ethernet frame, 2 an IP packet."),
        Field::new("Hw ID", "erspan.hw", bits(10, 6, 6), Decimal).means("Number of the mirroring engine."),
        Field::new("D", "erspan.direction", mask(11, 0x08), Flag)
            .means("Direction: clear for received frames, set for sent ones."),
        Field::new("Gra", "erspan.gra", mask(11, 0x06), Decimal)
            .means("Unit of the time: 0 is 100 us, 1 is 100 ns, 2 is IEEE 1588."),
        Field::new("O", "erspan.o", mask(11, 0x01), Flag).means("Set if 8 bytes of the platform follow."),
    ],
};

/// The VXLAN header.
pub static VXLAN: Header = Header {
    name: "VXLAN",
    title: "virtual extensible LAN",
    purpose: "Carries an Ethernet frame of a virtual network through an IP network.",
    rule: "RFC 7348 section 5",
    fields: &[
        Field::new("flags", "vxlan.flags", bytes(0, 2), Hex).means("0x0800: the VNI is valid."),
        Field::new("group policy", "vxlan.gbp", bytes(2, 2), Decimal)
            .means("Zero, or the group of an extension for access control."),
        Field::new("VNI", "vxlan.vni", bytes(4, 3), Decimal).means("Number of the virtual network, 24 bits."),
        Field::reserved("vxlan.reserved8", bytes(7, 1)),
    ],
};

/// The VXLAN header with a next protocol.
pub static VXLAN_GPE: Header = Header {
    name: "VXLAN-GPE",
    title: "generic protocol extension for VXLAN",
    purpose: "Carries a packet of a virtual network through an IP network.",
    rule: "draft-ietf-nvo3-vxlan-gpe section 3",
    fields: &[
        Field::new("flags", "vxlan.flags", bytes(0, 1), Hex)
            .means("0x0c: the VNI and the next protocol are valid."),
        Field::reserved("vxlan.reserved_16", bytes(1, 2)),
        Field::new("next protocol", "vxlan.next_proto", bytes(3, 1), Decimal)
            .means("1 for IPv4, 2 for IPv6, 3 for Ethernet, 5 for MPLS."),
        Field::new("VNI", "vxlan.vni", bytes(4, 3), Decimal).means("Number of the virtual network, 24 bits."),
        Field::reserved("vxlan.reserved8", bytes(7, 1)),
    ],
};

/// The Geneve header without its options.
pub static GENEVE: Header = Header {
    name: "Geneve",
    title: "generic network virtualization encapsulation",
    purpose: "Carries a frame of a virtual network, with options, through an IP network.",
    rule: "RFC 8926 section 3.4",
    fields: &[
        Field::new("version", "geneve.version", mask(0, 0xc0), Decimal).means("Version of Geneve; 0."),
        Field::new("option length", "roce.geneve.optlen", mask(0, 0x3f), Decimal)
            .means("Length of the options in words of 4 bytes."),
        Field::new("O", "geneve.flags.oam", mask(1, 0x80), Flag).means("Set in control packets."),
        Field::new("C", "geneve.flags.critical", mask(1, 0x40), Flag).means("Set if an option is critical."),
        Field::reserved("geneve.flags.reserved", mask(1, 0x3f)),
        Field::new("protocol", "geneve.proto_type", bytes(2, 2), Hex)
            .note(ether_type_note)
            .means("EtherType of the next header."),
        Field::new("VNI", "geneve.vni", bytes(4, 3), Decimal)
            .means("Number of the virtual network, 24 bits."),
        Field::reserved("geneve.reserved", bytes(7, 1)),
    ],
};

/// Defines the first bytes of the three kinds of IPv6 options and routing headers.
macro_rules! extension {
    ($static:ident, $name:literal, $title:literal, $purpose:literal, $rule:literal, $next:literal, $len:literal) => {
        #[doc = concat!("The first bytes of the IPv6 header \"", $title, "\".")]
        pub static $static: Header = Header {
            name: $name,
            title: $title,
            purpose: $purpose,
            rule: $rule,
            fields: &[
                Field::new("next header", $next, bytes(0, 1), Decimal)
                    .note(protocol_note)
                    .means("Type of the next header."),
                Field::new("length", $len, bytes(1, 1), Decimal)
                    .means("Length of this header in units of 8 bytes, without the first one."),
            ],
        };
    };
}

extension!(
    HOP_BY_HOP,
    "HopByHop",
    "hop-by-hop options",
    "Has options for every router on the way.",
    "RFC 8200 section 4.3",
    "ipv6.hopopts.nxt",
    "ipv6.hopopts.len"
);
extension!(
    ROUTING,
    "Routing",
    "routing header",
    "Names routers that the packet has to visit.",
    "RFC 8200 section 4.4",
    "ipv6.routing.nxt",
    "ipv6.routing.len"
);
extension!(
    DESTINATION_OPTIONS,
    "DestOptions",
    "destination options",
    "Has options for the receiver.",
    "RFC 8200 section 4.6",
    "ipv6.dstopts.nxt",
    "ipv6.dstopts.len"
);

/// The IPv6 fragment header.
pub static FRAGMENT: Header = Header {
    name: "Fragment",
    title: "fragment header",
    purpose: "Says which part of a fragmented packet this is.",
    rule: "RFC 8200 section 4.5",
    fields: &[
        Field::new("next header", "ipv6.fraghdr.nxt", bytes(0, 1), Decimal)
            .note(protocol_note)
            .means("Type of the next header."),
        Field::reserved("ipv6.fraghdr.reserved_octet", bytes(1, 1)),
        Field::new("offset", "ipv6.fraghdr.offset", bits(2, 0, 13), Decimal)
            .means("Position of the fragment in units of 8 bytes."),
        Field::reserved("ipv6.fraghdr.reserved_bits", mask(3, 0x06)),
        Field::new("M", "ipv6.fraghdr.more", mask(3, 0x01), Flag).means("Set if more fragments follow."),
        Field::new("identification", "ipv6.fraghdr.ident", bytes(4, 4), Hex)
            .means("Number that the fragments of a packet share."),
    ],
};

/// The IP authentication header.
pub static AUTHENTICATION: Header = Header {
    name: "AH",
    title: "IP authentication header",
    purpose: "Authenticates the packet between two hosts or gateways.",
    rule: "RFC 4302 section 2",
    fields: &[
        Field::new("next header", "ah.next_header", bytes(0, 1), Decimal)
            .note(protocol_note)
            .means("Type of the next header."),
        Field::new("length", "ah.length", bytes(1, 1), Decimal)
            .means("Length of this header in words of 4 bytes, minus 2."),
        Field::reserved("ah.reserved", bytes(2, 2)),
        Field::new("SPI", "ah.spi", bytes(4, 4), Hex).means("Number of the security association."),
        Field::new("sequence", "ah.sequence", bytes(8, 4), Decimal).means("Number of the packet."),
    ],
};

/// Returns the header of the tunnel protocol that uses this UDP port.
pub(super) const fn tunnel_port(port: u16) -> Option<&'static Header> {
    Some(match port {
        VXLAN_PORT | LINUX_VXLAN_PORT => &VXLAN,
        4790 => &VXLAN_GPE,
        6081 => &GENEVE,
        // RFC 8086 and RFC 7510.
        4754 => &GRE,
        6635 => &MPLS,
        _ => return None,
    })
}

pub(super) const VXLAN_PORT: u16 = 4789;
/// The port that Linux used before IANA assigned one to VXLAN, and still uses by default.
const LINUX_VXLAN_PORT: u16 = 8472;
