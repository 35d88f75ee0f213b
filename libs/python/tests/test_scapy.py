"""scapy and roce agree on every packet of the captures.

scapy has no layers for RETH, AtomicETH, AtomicAckETH, ImmDt, IETH, DETH, FETH, MADs and native InfiniBand. Their
bytes are its `Raw` after the BTH, which is compared as bytes. It has an AETH only after an ACKNOWLEDGE, and
computes no ICRC in RoCE v1.
"""

import pytest
import scapy.contrib.roce as roce_of_scapy
from scapy.layers.inet import IP as ScapyIP
from scapy.layers.inet import UDP as ScapyUDP
from scapy.layers.inet6 import IPv6 as ScapyIPv6
from scapy.layers.l2 import Dot1Q, Ether
from scapy.packet import Raw

from roce import capture, layers
from roce.layers import AETH, BTH, CNP, GRH, ICRC, UDP, VLAN, Ethernet, IPv4, IPv6

# For each layer: the class of scapy, and its fields with the value of roce.
ETHERNET = {"dst": "destination", "src": "source", "type": "type"}
FIELDS = {
    Ethernet: (Ether, {name: (lambda layer, of=of: getattr(layer, of)) for name, of in ETHERNET.items()}),
    VLAN: (Dot1Q, {
        "prio": lambda v: v.pcp, "dei": lambda v: v.dei, "vlan": lambda v: v.vid, "type": lambda v: v.type,
    }),
    IPv4: (ScapyIP, {
        "version": lambda ip: ip.version, "ihl": lambda ip: ip.ihl // 4, "tos": lambda ip: ip.dscp << 2 | ip.ecn,
        "len": lambda ip: ip.total_length, "id": lambda ip: ip.identification,
        "flags": lambda ip: ip.reserved << 2 | ip.df << 1 | ip.mf, "frag": lambda ip: ip.fragment_offset,
        "ttl": lambda ip: ip.ttl, "proto": lambda ip: ip.protocol, "chksum": lambda ip: ip.header_checksum,
        "src": lambda ip: ip.source, "dst": lambda ip: ip.destination,
    }),
    IPv6: (ScapyIPv6, {
        "version": lambda ip: ip.version, "tc": lambda ip: ip.dscp << 2 | ip.ecn, "fl": lambda ip: ip.flow_label,
        "plen": lambda ip: ip.payload_length, "nh": lambda ip: ip.next_header, "hlim": lambda ip: ip.hop_limit,
        "src": lambda ip: ip.source, "dst": lambda ip: ip.destination,
    }),
    GRH: (roce_of_scapy.GRH, {
        "ipver": lambda g: g.version, "tclass": lambda g: g.traffic_class, "flowlabel": lambda g: g.flow_label,
        "paylen": lambda g: g.payload_length, "nexthdr": lambda g: g.next_header, "hoplmt": lambda g: g.hop_limit,
        "sgid": lambda g: int.from_bytes(g.raw[8:24], "big"), "dgid": lambda g: int.from_bytes(g.raw[24:], "big"),
    }),
    UDP: (ScapyUDP, {
        "sport": lambda u: u.source_port, "dport": lambda u: u.destination_port, "len": lambda u: u.length,
        "chksum": lambda u: u.checksum,
    }),
    BTH: (roce_of_scapy.BTH, {
        "opcode": lambda b: b.opcode, "solicited": lambda b: b.solicited, "migreq": lambda b: b.mig_req,
        "padcount": lambda b: b.pad_count, "version": lambda b: b.version, "pkey": lambda b: b.p_key,
        "fecn": lambda b: b.fecn, "becn": lambda b: b.becn, "resv6": lambda b: b.reserved,
        "dqpn": lambda b: b.dest_qp, "ackreq": lambda b: b.ack_req, "resv7": lambda b: b.reserved_2,
        "psn": lambda b: b.psn,
    }),
    AETH: (roce_of_scapy.AETH, {"syndrome": lambda a: a.syndrome, "msn": lambda a: a.msn}),
    CNP: (roce_of_scapy.CNPPadding, {
        "reserved1": lambda c: int.from_bytes(c.reserved[:8], "big"),
        "reserved2": lambda c: int.from_bytes(c.reserved[8:], "big"),
    }),
}  # fmt: skip


def compare(packet, other, where):
    """Compares the layers that both have; returns how many fields were equal."""
    fields = 0
    for layer in packet.layers:
        if type(layer) not in FIELDS or layer.is_outer:
            continue
        theirs_class, names = FIELDS[type(layer)]
        theirs = other.getlayer(theirs_class)
        if theirs is None:
            # An AETH of a READ response is bytes in scapy.
            assert isinstance(layer, AETH) and packet[BTH].opcode_name != "RC_ACKNOWLEDGE", (where, layer)
            continue
        for name, value in names.items():
            assert theirs.getfieldval(name) == value(layer), f"{where}: {type(layer).__name__}.{name}"
            fields += 1
    return fields


def test_scapy_and_roce_agree_on_every_packet(capture_path):
    packets = fields = 0
    for captured in capture.packets(capture_path):
        where = f"{capture_path.name}:{captured.number}"
        packet = captured.parse()
        if packet.link not in ("ethernet", "ip"):
            # scapy has no layer for native InfiniBand.
            assert packet.link in ("infiniband", "erf"), where
            continue
        theirs = packet.to_scapy()
        assert bytes(theirs) == captured.raw, where
        assert layers.from_scapy(theirs) == packet, where
        fields += compare(packet, theirs, where)
        packets += 1
        bth = theirs.getlayer(roce_of_scapy.BTH)
        if bth is None:
            assert BTH not in packet or len(captured.raw) < captured.length, where
            continue
        if ICRC not in packet or packet.computed_icrc is None:
            continue
        first = packet.layers.index(packet[BTH]) + 1
        behind = b"".join(bytes(layer.raw) for layer in packet.layers[first : packet.layers.index(packet[ICRC])])
        assert (bytes(bth.payload), bth.icrc) == (behind, packet[ICRC].value), where
        if GRH not in packet:
            computed = bth.compute_icrc(b"")
            assert int.from_bytes(computed, "big") == packet.computed_icrc, where
    if packets:
        assert fields > 0


def test_a_packet_of_scapy_becomes_one_of_roce():
    theirs = Ether() / ScapyIP(src="10.0.0.1", dst="10.0.0.2") / ScapyUDP(sport=50000, dport=4791)
    theirs = theirs / roce_of_scapy.BTH(opcode=0x11, dqpn=7, psn=9, migreq=1) / roce_of_scapy.AETH(syndrome=0x1F, msn=2)
    packet = layers.from_scapy(theirs)
    assert packet.names() == ["Ethernet", "IPv4", "UDP", "BTH", "AETH", "ICRC"]
    assert packet.icrc_ok and packet[BTH].dest_qp == 7 and packet[AETH].msn == 2
    back = packet.to_scapy()
    assert back[roce_of_scapy.AETH].msn == 2
    notification = layers.from_scapy(ScapyIP(src="10.0.0.1", dst="10.0.0.2") / ScapyUDP(dport=4791) / roce_of_scapy.cnp(5))
    assert CNP in notification and notification.icrc_ok


def test_a_foreign_packet_is_refused():
    with pytest.raises(ValueError, match="begins with Raw"):
        layers.from_scapy(Raw(b"x"))
