//! Ethernet, VLAN tags and pause frames.

use super::Show::{Decimal, Flag, Hex, Mac};
use super::{Field, Header, bits, bytes, mask, some};

pub(crate) static ETHERNET: Header = Header {
    name: "Ethernet",
    title: "frame header",
    purpose: "Carries the frame over one link; routers replace it, so the ICRC does not cover it.",
    rule: "IEEE 802.3 clause 3",
    fields: &[
        Field::new(
            "destination",
            "eth.dst",
            bytes(0, 6),
            Mac,
            "The station that is to take the frame: the receiver, or the next router on the way.",
        ),
        Field::new("source", "eth.src", bytes(6, 6), Mac, "The station that put the frame on this link."),
        Field::new("type", "eth.type", bytes(12, 2), Hex, "Says which header comes next.").note(ether_type),
    ],
};

pub(crate) static VLAN: Header = Header {
    name: "VLAN",
    title: "802.1Q tag",
    purpose: "Says which virtual network the frame belongs to and which priority it has.",
    rule: "IEEE 802.1Q 9.6",
    fields: &[
        Field::new(
            "PCP",
            "vlan.priority",
            mask(0, 0xe0),
            Decimal,
            "Priority, 0 to 7; priority flow control pauses each one by itself, so RoCE usually has one \
             for itself.",
        ),
        Field::new(
            "DEI",
            "vlan.dei",
            mask(0, 0x10),
            Flag,
            "Set if a congested switch should rather drop this frame.",
        ),
        Field::new(
            "VID",
            "vlan.id",
            bits(0, 4, 12),
            Decimal,
            "Number of the virtual network, 1 to 4094; 0 says that the tag is there for its priority only.",
        ),
        Field::new("type", "vlan.etype", bytes(2, 2), Hex, "Says which header comes next.").note(ether_type),
    ],
};

pub(crate) static PAUSE: Header = Header {
    name: "pause",
    title: "802.3x pause",
    purpose: "Asks the other end of the link to send nothing at all for a while.",
    rule: "IEEE 802.3 Annex 31B",
    fields: &[
        Field::new("opcode", "macc.opcode", bytes(0, 2), Hex, "What kind of control frame it is.")
            .note(mac_control),
        Field::new(
            "pause time",
            "macc.pause_time",
            bytes(2, 2),
            Decimal,
            "For how long, in units of 512 bit times (51.2 ns at 10 Gb/s); 0 ends the pause.",
        ),
    ],
};

const fn enabled(key: &'static str, priority: u32) -> Field {
    Field::new(
        "enabled",
        key,
        mask(3, 1 << priority),
        Flag,
        "Set if the time of this priority (7 in the highest bit, 0 in the lowest) is to be heeded.",
    )
}

const fn pause_time(name: &'static str, key: &'static str, priority: usize) -> Field {
    Field::new(
        name,
        key,
        bytes(4 + 2 * priority, 2),
        Decimal,
        "For how long this priority is to pause, in units of 512 bit times; 0 ends its pause.",
    )
}

pub(crate) static PFC: Header = Header {
    name: "PFC",
    title: "priority flow control",
    purpose: "Asks the other end of the link to stop sending some priorities, so that no frame of \
              theirs is dropped.",
    rule: "IEEE 802.1Q clause 36, 802.3 Annex 31D",
    fields: &[
        Field::new("opcode", "macc.opcode", bytes(0, 2), Hex, "What kind of control frame it is.")
            .note(mac_control),
        Field::reserved("roce.pfc.reserved", bytes(2, 1)),
        enabled("macc.cbfc.enbv.c7", 7),
        enabled("macc.cbfc.enbv.c6", 6),
        enabled("macc.cbfc.enbv.c5", 5),
        enabled("macc.cbfc.enbv.c4", 4),
        enabled("macc.cbfc.enbv.c3", 3),
        enabled("macc.cbfc.enbv.c2", 2),
        enabled("macc.cbfc.enbv.c1", 1),
        enabled("macc.cbfc.enbv.c0", 0),
        pause_time("time 0", "macc.cbfc.pause_time.c0", 0),
        pause_time("time 1", "macc.cbfc.pause_time.c1", 1),
        pause_time("time 2", "macc.cbfc.pause_time.c2", 2),
        pause_time("time 3", "macc.cbfc.pause_time.c3", 3),
        pause_time("time 4", "macc.cbfc.pause_time.c4", 4),
        pause_time("time 5", "macc.cbfc.pause_time.c5", 5),
        pause_time("time 6", "macc.cbfc.pause_time.c6", 6),
        pause_time("time 7", "macc.cbfc.pause_time.c7", 7),
    ],
};

pub(crate) static ETHERNET_TRAILER: Header = Header {
    name: "trailer",
    title: "what follows the packet",
    purpose: "Fills short frames up to 60 bytes; it belongs to no packet, and the ICRC does not cover it.",
    rule: "IEEE 802.3 clause 3",
    fields: &[],
};

pub(crate) fn ether_type(value: u64) -> Option<String> {
    some(match value {
        0x0800 => "IPv4",
        0x0806 => "ARP",
        0x8100 => "802.1Q tag",
        0x86dd => "IPv6",
        0x8808 => "MAC control",
        0x8809 => "slow protocols",
        0x8847 => "MPLS",
        0x88a8 => "802.1ad service tag",
        0x88cc => "LLDP",
        0x88f7 => "PTP",
        0x8915 => "RoCE v1",
        0..0x600 => "length of an 802.3 frame",
        _ => return None,
    })
}

fn mac_control(value: u64) -> Option<String> {
    match value {
        0x0001 => some("pause"),
        0x0101 => some("priority flow control"),
        _ => None,
    }
}
