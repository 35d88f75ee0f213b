//! IPv4, IPv6, the GRH of RoCE v1, and UDP.

use roce_packet::Ecn;

use super::Show::{Decimal, Flag, Hex, Ipv4, Ipv6, Words};
use super::{Field, Header, bits, bytes, mask, port_name, some};

const DSCP: &str = "Traffic class that switches choose a queue by, 0 to 63; routers may change it.";
const ECN: &str = "Congestion mark: senders of RoCE set 10 or 01, a congested switch sets 11, and the \
                   receiver answers with a CNP.";
const TTL: &str = "How many routers may still forward the packet; each subtracts one.";
const FLOW_LABEL: &str = "20-bit number by which switches may keep the packets of a flow on one way.";

pub(crate) static IPV4: Header = Header {
    name: "IPv4",
    title: "Internet Protocol version 4",
    purpose: "Carries the packet from host to host; each address is the end of an IPv4-mapped GID.",
    rule: "RFC 791 section 3.1, A17.3",
    fields: &[
        Field::new("version", "ip.version", mask(0, 0xf0), Decimal, "Version of IP; 4."),
        Field::new(
            "IHL",
            "ip.hdr_len",
            mask(0, 0x0f),
            Words,
            "Length of this header, written in bytes here and counted in words of 4 bytes on the wire; \
             RoCE has no options, so 20.",
        ),
        Field::new("DSCP", "ip.dsfield.dscp", mask(1, 0xfc), Decimal, DSCP).variant().note(dscp),
        Field::new("ECN", "ip.dsfield.ecn", mask(1, 0x03), Decimal, ECN).variant().note(ecn),
        Field::new(
            "total length",
            "ip.len",
            bytes(2, 2),
            Decimal,
            "Bytes from this header to the ICRC, both included; Ethernet padding behind them does not \
             count.",
        ),
        Field::new(
            "identification",
            "ip.id",
            bytes(4, 2),
            Hex,
            "Number by which fragments would be put together again; the ICRC covers it although nothing \
             else needs it.",
        ),
        Field::new("reserved", "ip.flags.rb", mask(6, 0x80), Flag, "Sent as zero."),
        Field::new(
            "DF",
            "ip.flags.df",
            mask(6, 0x40),
            Flag,
            "Set if no router may fragment the packet; RoCE sets it.",
        ),
        Field::new("MF", "ip.flags.mf", mask(6, 0x20), Flag, "Set if more fragments follow; never in RoCE."),
        Field::new(
            "fragment offset",
            "ip.frag_offset",
            bits(6, 3, 13),
            Decimal,
            "Where in the whole a fragment belongs, in units of 8 bytes; 0 in RoCE.",
        ),
        Field::new("TTL", "ip.ttl", bytes(8, 1), Decimal, TTL).variant(),
        Field::new("protocol", "ip.proto", bytes(9, 1), Decimal, "Says which header comes next.")
            .note(protocol),
        Field::new(
            "header checksum",
            "ip.checksum",
            bytes(10, 2),
            Hex,
            "Ones' complement sum over this header; it changes with the TTL.",
        )
        .variant(),
        Field::new("source", "ip.src", bytes(12, 4), Ipv4, "The sender; the last four bytes of its GID."),
        Field::new(
            "destination",
            "ip.dst",
            bytes(16, 4),
            Ipv4,
            "The receiver; the last four bytes of its GID.",
        ),
    ],
};

pub(crate) static IPV4_OPTIONS: Header = Header {
    name: "options",
    title: "IPv4 options",
    purpose: "Extends the IPv4 header; RoCE has no options, and receivers may drop packets that do.",
    rule: "RFC 791 section 3.1",
    fields: &[],
};

pub(crate) static IPV6: Header = Header {
    name: "IPv6",
    title: "Internet Protocol version 6",
    purpose: "Carries the packet from host to host; its addresses are the GIDs themselves.",
    rule: "RFC 8200 section 3, A17.3",
    fields: &[
        Field::new("version", "ipv6.version", mask(0, 0xf0), Decimal, "Version of IP; 6."),
        Field::new("DSCP", "ipv6.tclass.dscp", bits(0, 4, 6), Decimal, DSCP).variant().note(dscp),
        Field::new("ECN", "ipv6.tclass.ecn", mask(1, 0x30), Decimal, ECN).variant().note(ecn),
        Field::new("flow label", "ipv6.flow", bits(1, 4, 20), Hex, FLOW_LABEL).variant(),
        Field::new(
            "payload length",
            "ipv6.plen",
            bytes(4, 2),
            Decimal,
            "Bytes behind this header, from UDP to the ICRC, both included.",
        ),
        Field::new("next header", "ipv6.nxt", bytes(6, 1), Decimal, "Says which header comes next.")
            .note(protocol),
        Field::new("hop limit", "ipv6.hlim", bytes(7, 1), Decimal, TTL).variant(),
        Field::new("source", "ipv6.src", bytes(8, 16), Ipv6, "The sender; its GID."),
        Field::new("destination", "ipv6.dst", bytes(24, 16), Ipv6, "The receiver; its GID."),
    ],
};

pub(crate) static GRH: Header = Header {
    name: "GRH",
    title: "global route header",
    purpose: "Layer 3 of RoCE v1: shaped like IPv6, but no router forwards it.",
    rule: "IBTA 8.3, A16",
    fields: &[
        Field::new("IPVer", "infiniband.grh.ipver", mask(0, 0xf0), Decimal, "Version of the header; 6."),
        Field::new(
            "TClass",
            "infiniband.grh.tclass",
            bits(0, 4, 8),
            Decimal,
            "DSCP in the upper six bits, ECN in the lower two.",
        )
        .variant(),
        Field::new("FlowLabel", "infiniband.grh.flowlabel", bits(1, 4, 20), Decimal, FLOW_LABEL).variant(),
        Field::new(
            "PayLen",
            "infiniband.grh.paylen",
            bytes(4, 2),
            Decimal,
            "Bytes behind this header, from BTH to ICRC, both included.",
        ),
        Field::new(
            "NxtHdr",
            "infiniband.grh.nxthdr",
            bytes(6, 1),
            Decimal,
            "Says which header comes next; 27 is the BTH.",
        ),
        Field::new("HopLmt", "infiniband.grh.hoplmt", bytes(7, 1), Decimal, TTL).variant(),
        Field::new("SGID", "infiniband.grh.sgid", bytes(8, 16), Ipv6, "GID of the sender."),
        Field::new("DGID", "infiniband.grh.dgid", bytes(24, 16), Ipv6, "GID of the receiver."),
    ],
};

pub(crate) static UDP: Header = Header {
    name: "UDP",
    title: "User Datagram Protocol",
    purpose: "Makes RoCE v2 look like ordinary traffic, so that routers forward and balance it.",
    rule: "RFC 768, A17.3",
    fields: &[
        Field::new(
            "source port",
            "udp.srcport",
            bytes(0, 2),
            Decimal,
            "A hash of the flow and no address: switches choose among equal ways by it, and receivers \
             ignore it.",
        ),
        Field::new(
            "destination port",
            "udp.dstport",
            bytes(2, 2),
            Decimal,
            "Marks the packet as RoCE v2: 4791.",
        )
        .note(port_name),
        Field::new(
            "length",
            "udp.length",
            bytes(4, 2),
            Decimal,
            "Bytes from this header to the ICRC, both included.",
        ),
        Field::new(
            "checksum",
            "udp.checksum",
            bytes(6, 2),
            Hex,
            "0 says that there is none, as RoCE NICs send it; any value is accepted.",
        )
        .variant(),
    ],
};

fn dscp(value: u64) -> Option<String> {
    match value {
        0 => some("best effort"),
        46 => some("EF"),
        value if value % 8 == 0 => some(format!("CS{}", value / 8)),
        value @ (10..=38) if value % 2 == 0 && value % 8 != 0 => {
            some(format!("AF{}{}", value / 8, value % 8 / 2))
        }
        _ => None,
    }
}

fn ecn(value: u64) -> Option<String> {
    some(match Ecn::from_bits(value as u8) {
        Ecn::NotCapable => "00, not ECN-capable",
        Ecn::Capable0 => "10, ECN-capable: ECT(0)",
        Ecn::Capable1 => "01, ECN-capable: ECT(1)",
        Ecn::CongestionExperienced => "11, congestion experienced: CE",
    })
}

pub(crate) fn protocol(value: u64) -> Option<String> {
    some(match value {
        1 => "ICMP",
        2 => "IGMP",
        6 => "TCP",
        17 => "UDP",
        27 => "BTH",
        58 => "ICMPv6",
        _ => return None,
    })
}
