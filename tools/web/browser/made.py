"""Captures that the tests make."""

import struct
import zlib

LONG = 100_000
# The number of the packet with a wrong ICRC.
WRONG = 61_803

ETHERNET = bytes.fromhex("0200c00002020200c00002010800")
BOTH_ADDRESSES = bytes.fromhex("c0000201c0000202")
PAYLOAD = b"made for a test."
LENGTH_OF_IP = 20 + 8 + 12 + len(PAYLOAD) + 4
RC_SEND_ONLY = 4


def checksum(header):
    """Returns the checksum of a header of IPv4 whose own checksum is zero."""
    total = sum(struct.unpack("!10H", header))
    total = (total & 0xFFFF) + (total >> 16)
    return ~((total & 0xFFFF) + (total >> 16)) & 0xFFFF


def ip_header(type_of_service, ttl, sum_):
    return struct.pack("!BBHHHBBH", 0x45, type_of_service, LENGTH_OF_IP, 0, 0x4000, ttl, 17, sum_) + BOTH_ADDRESSES


IP = ip_header(2, 64, checksum(ip_header(2, 64, 0)))
UDP = struct.pack("!HHHH", 49152, 4791, LENGTH_OF_IP - 20, 0)
# What precedes the BTH, as the ICRC sees it: eight bytes of ones, and ones for all that changes on the way.
MASKED = b"\xff" * 8 + ip_header(0xFF, 0xFF, 0xFFFF) + struct.pack("!HHHH", 49152, 4791, LENGTH_OF_IP - 20, 0xFFFF)
BEFORE = zlib.crc32(MASKED)


def frame(psn, wrong=False):
    """Returns an Ethernet frame with a SEND, which has a right ICRC unless it shall be wrong."""
    opcode, partition, queue_pair = bytes([RC_SEND_ONLY, 0x40]), b"\xff\xff", b"\x00\x00\x11"
    rest = queue_pair + struct.pack("!I", 0x8000_0000 | psn) + PAYLOAD
    icrc = zlib.crc32(opcode + partition + b"\xff" + rest, BEFORE) ^ int(wrong)
    return ETHERNET + IP + UDP + opcode + partition + b"\x00" + rest + struct.pack("<I", icrc)


def capture(packets, wrong=None):
    """Returns a file in the format of tcpdump with packets of increasing PSN, one each microsecond."""
    parts = [struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 65535, 1)]
    for number in range(1, packets + 1):
        data = frame(number % (1 << 24), wrong=number == wrong)
        seconds, microseconds = divmod(number, 1_000_000)
        parts += [struct.pack("<IIII", 1_800_000_000 + seconds, microseconds, len(data), len(data)), data]
    return b"".join(parts)
