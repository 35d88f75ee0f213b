"""Bytes between two processes by Mooncake's transfer engine over RDMA: written, read back, and compared at both ends.

    transfer.py target ADDRESS
    transfer.py initiator ADDRESS PEER
"""

import ctypes
import sys
import time

from mooncake.engine import TransferEngine

SIZE = 8 << 20
# The first word of the target's memory, when the initiator has written all else.
DONE = b"all done"


def pattern(seed):
    """Bytes that differ from their neighbours and from those of another seed."""
    return bytes((index * 31 + (index >> 8) * 7 + seed) % 251 for index in range(1 << 16)) * (SIZE >> 16)


def started(address):
    engine = TransferEngine()
    if engine.initialize(address, "P2PHANDSHAKE", "rdma", "roce0") != 0:
        sys.exit("the transfer engine does not start")
    memory = ctypes.create_string_buffer(SIZE)
    if engine.register_memory(ctypes.addressof(memory), SIZE) != 0:
        sys.exit("the memory cannot be registered")
    return engine, memory


def wait_for(memory, wanted):
    deadline = time.monotonic() + 20
    while memory[: len(wanted)] != wanted:
        if time.monotonic() > deadline:
            sys.exit("the initiator did not write in time")
        time.sleep(0.01)


def target(address):
    engine, memory = started(address)
    # The initiator has to know where the memory is.
    print(f"serving at {address}:{engine.get_rpc_port()}/{ctypes.addressof(memory)}", flush=True)
    wait_for(memory, DONE)
    if memory[8:SIZE] != pattern(1)[8:]:
        sys.exit("what the initiator wrote differs")
    print("what came is right", flush=True)
    # The initiator reads it back.
    wait_for(memory, b"good bye")


def initiator(address, peer):
    engine, memory = started(address)
    name, there = peer.split("/")
    here, there = ctypes.addressof(memory), int(there)

    def write(offset, data):
        memory[offset : offset + len(data)] = data
        if engine.transfer_sync_write(name, here + offset, there + offset, len(data)) != 0:
            sys.exit("a transfer failed")

    write(8, pattern(1)[8:])
    write(0, DONE)
    memory[:SIZE] = bytes(SIZE)
    if engine.transfer_sync_read(name, here, there, SIZE) != 0:
        sys.exit("a transfer failed")
    if memory[:SIZE] != DONE + pattern(1)[8:]:
        sys.exit("what was read back differs")
    write(0, b"good bye")
    print(f"{SIZE} bytes written and read back: all are equal")


if sys.argv[1] == "target":
    target(sys.argv[2])
else:
    initiator(sys.argv[2], sys.argv[3])
