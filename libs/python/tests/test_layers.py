"""Building, parsing and changing packets."""

import pytest

from roce import capture, layers
from roce.layers import (
    AETH, BTH, CNP, DETH, ICRC, MAD, PFC, RETH, UDP, VLAN, AtomicETH, CmReq, Ethernet, ImmDt, IPv4, IPv6, IpCm,
    Packet, Padding, Payload, parse,
)

# A congestion notification that a NIC sent.
NOTIFICATION = bytes.fromhex(
    "e41d2dab2bc27cfe90643b320800"
    "45c2003c718c4000401191610a0011010a001201"
    "000012b700280000"
    "8100ffff4000011800000000"
    "00000000000000000000000000000000"
    "82fd002a"
)


def write_of(payload):
    return (
        Ethernet(destination="02:00:00:00:00:02", source="02:00:00:00:00:01")
        / IPv4(source="10.0.0.1", destination="10.0.0.2", dscp=26, ecn=2)
        / UDP(source_port=50000)
        / BTH(opcode="RC_RDMA_WRITE_ONLY", dest_qp=0x11, psn=7, ack_req=True)
        / RETH(va=0x1000, r_key=0x77, dma_len=len(payload))
        / payload
    )


def test_a_built_packet_is_complete():
    frame = parse(bytes(write_of(b"hello")))
    assert frame.names() == ["Ethernet", "IPv4", "UDP", "BTH", "RETH", "Payload", "Padding", "ICRC"]
    assert frame.error is None and frame.icrc_ok
    assert frame.payload == b"hello"
    assert frame[Ethernet].type == 0x0800
    assert frame[IPv4].total_length == 20 + 8 + 12 + 16 + 8 + 4
    assert frame[UDP].destination_port == 4791 and frame[UDP].length == frame[IPv4].total_length - 20
    assert frame[BTH].pad_count == 3 and frame[BTH].opcode_name == "RC_RDMA_WRITE_ONLY"
    assert frame[BTH].ack_req is True and frame[BTH].solicited is False
    assert frame[RETH].fields() == {"va": 0x1000, "r_key": 0x77, "dma_len": 5}


def test_a_parsed_packet_keeps_its_bytes_and_its_errors():
    frame = parse(NOTIFICATION)
    assert bytes(frame) == NOTIFICATION
    assert frame.names() == ["Ethernet", "IPv4", "UDP", "BTH", "CNP", "ICRC"]
    assert frame[IPv4].dscp == 48 and frame[BTH].dest_qp == 0x118 and frame[BTH].becn
    assert frame[BTH].note("opcode") == "CNP"
    frame[BTH].dest_qp = 0x119
    damaged = parse(bytes(frame))
    assert damaged.icrc_ok is False and damaged.error is None
    assert "the ICRC is wrong" in damaged.text()
    assert parse(bytes(damaged.refresh())).icrc_ok
    del damaged[ICRC].value
    assert parse(bytes(damaged)).icrc_ok
    assert layers.icrc(NOTIFICATION) == 0x82FD002A == parse(NOTIFICATION).computed_icrc != frame.computed_icrc


def test_a_truncated_packet_says_what_is_missing():
    cut = parse(NOTIFICATION[:60], wire_length=len(NOTIFICATION))
    assert cut.icrc_ok is None and cut.unchecked == "cut by the capture"
    broken = bytearray(bytes(write_of(b"hello")))
    broken[17] -= 1
    packet = parse(broken)
    assert packet.error is not None and bytes(packet) == bytes(broken)
    with pytest.raises(ValueError, match="cut by a mirror"):
        layers.icrc(NOTIFICATION[:60])


@pytest.mark.parametrize("length", range(9))
def test_padding_fills_up_to_four_bytes(length):
    packet = IPv4(source="10.0.0.1", destination="10.0.0.2") / UDP() / BTH(opcode="RC_SEND_ONLY") / bytes(length)
    read = parse(bytes(packet), link="ip")
    assert read[BTH].pad_count == -length % 4 and read.payload == bytes(length) and read.icrc_ok
    assert (Padding in read) == (length % 4 != 0)


def test_other_headers_around_the_bth():
    six = IPv6(source="fe80::1", destination="fe80::2", flow_label=5) / UDP()
    packet = VLAN(vid=7, pcp=3) / six / BTH(opcode="UD_SEND_ONLY", dest_qp=9) / DETH(q_key=1, src_qp=2) / b"data"
    read = parse(bytes(Ethernet() / packet))
    assert read.names()[:5] == ["Ethernet", "VLAN", "IPv6", "UDP", "BTH"] and read.icrc_ok
    assert (read[VLAN].pcp, read[VLAN].vid, read[IPv6].source) == (3, 7, "fe80::1")
    first = layers.GRH(sgid="fe80::1", dgid="fe80::2") / BTH(opcode="RC_ACKNOWLEDGE") / AETH(syndrome=0x1F, msn=3)
    read = parse(bytes(Ethernet() / first))
    assert read[Ethernet].type == 0x8915 and read.icrc_ok and read[AETH].credits == 31
    nak = parse(bytes(BTH(opcode="RC_ACKNOWLEDGE") / AETH(syndrome=0x61)), link="bth")
    assert nak[AETH].nak_code == 1 and nak[AETH].credits is None and "credits" not in nak[AETH].fields()
    pause = parse(bytes(Ethernet() / PFC(enabled_3=True, time_3=0xFFFF)))
    assert pause[PFC].enabled_3 and pause[PFC].time_3 == 0xFFFF and pause.protocol == "pause"


def test_connection_management():
    request = CmReq(local_comm_id=5, service_id=0x0106_1234, local_qpn=0x55, starting_psn=9, private_data=b"")
    packet = (
        IPv4(source="10.0.0.1", destination="10.0.0.2") / UDP()
        / BTH(opcode="UD_SEND_ONLY", dest_qp=1) / DETH(q_key=0x8001_0000, src_qp=1)
        / MAD(transaction_id=77) / request
    )  # fmt: skip
    read = parse(bytes(packet), link="ip")
    assert read.icrc_ok and read[MAD].attribute_id == 0x10 and read[MAD].mgmt_class == 7
    assert read[CmReq].local_qpn == 0x55 and read[CmReq].note("service_id").startswith("RDMA_PS_TCP port")
    assert IpCm in read
    addresses = CmReq(primary_local_gid="192.0.2.1", primary_remote_gid="fe80::2")
    assert (addresses.primary_local_gid, addresses.primary_remote_gid) == ("192.0.2.1", "fe80::2")
    assert addresses.raw[56:72] == bytes(10) + b"\xff\xff" + bytes([192, 0, 2, 1])
    addresses.primary_local_gid = "fe80::1"
    assert addresses.primary_local_gid == "fe80::1"
    assert IpCm(source_address="192.0.2.1").source_address == "192.0.2.1"
    assert IpCm(ip_version=6, source_address="fe80::1").source_address == "fe80::1"


def test_values_are_checked():
    with pytest.raises(OverflowError, match="PSN is a number from 0 to 16777215"):
        BTH(psn=1 << 24)
    with pytest.raises(OverflowError):
        BTH(psn=-1)
    with pytest.raises(AttributeError, match="has no field 'qp'"):
        BTH(qp=1)
    with pytest.raises(ValueError, match="is not an opcode"):
        BTH(opcode="RC_SEND")
    with pytest.raises(ValueError):
        IPv4(source="10.0.0.256")
    with pytest.raises(ValueError, match="is not a link"):
        parse(b"", link="wifi")
    with pytest.raises(TypeError):
        RETH(va="0x10")
    with pytest.raises(ValueError, match="do not fit"):
        CNP(reserved=bytes(17))
    with pytest.raises(KeyError, match="has no RETH"):
        parse(NOTIFICATION)[RETH]


def test_a_layer_is_copied_into_a_packet():
    head = BTH(opcode="RC_SEND_ONLY")
    packet = head / b"x"
    head.psn = 5
    assert packet[BTH].psn == 0
    assert repr(packet) == "BTH(opcode=4) / Payload(b'x')"
    assert Packet([Payload(b"a")]) == Packet([Payload(b"a")]) != Packet([Payload(b"b")])
    assert eval(repr(head)) == head


def test_every_header_has_a_class_and_every_field_a_name():
    for name, layer in layers._CLASSES.items():
        indexes = [index for found in layer._indexes.values() for index in found]
        assert sorted(indexes) == list(range(len(layer.header.fields))), name
        assert layer.__doc__
        for attribute in layer.names():
            assert attribute.isidentifier(), (name, attribute)
            assert not hasattr(layers.Layer, attribute), (name, attribute)


def test_every_field_of_every_header_can_be_set():
    values = {"int": 1, "bool": True, "bytes": b"\x01", "str": "192.0.2.1"}
    for name, layer in layers._CLASSES.items():
        for attribute, indexes in layer._indexes.items():
            field = layer.header.fields[indexes[0]]
            header = layer()
            value = values[field.kind]
            if field.width == 48:
                value = "02:00:00:00:00:01"
            elif field.kind == "str" and len(indexes) == 1 and field.width == 128:
                value = "fe80::1"
            elif isinstance(getattr(header, attribute), int) and value == 1 and name in ("LRH", "IPv4"):
                value = 4 if attribute in ("pkt_len", "ihl") else 1
            setattr(header, attribute, value)
            read = getattr(header, attribute)
            if read is None:
                # Other bits of an empty header say that it has another meaning.
                assert any(layer.header.fields[index].conditional for index in indexes), (name, attribute)
            else:
                assert read == value or bytes(read).startswith(b"\x01"), (name, attribute, read)


def test_immediate_data_and_atomics_are_numbers():
    packet = BTH(opcode="RC_SEND_ONLY_WITH_IMM") / ImmDt(data=0x01020304) / b"abcd"
    assert bytes(packet)[12:16] == bytes([1, 2, 3, 4])
    assert AtomicETH(swap_or_add=1, compare=2).fields()["swap_or_add"] == 1


def test_every_packet_of_every_capture_reads_back(capture_path):
    count = 0
    for captured in capture.packets(capture_path):
        if captured.link is None:
            continue
        packet = captured.parse()
        assert bytes(packet) == captured.raw
        assert packet.text()
        count += 1
        # What a sender computes comes out as the sender computed it.
        whole = len(captured.raw) == captured.length
        if whole and packet.error is None and packet.icrc_ok and packet.link in ("ethernet", "ip"):
            assert bytes(packet.refresh()) == captured.raw, f"packet {captured.number}"
    assert count > 0
