"""Devices, connections and bridges as context managers.

    >>> import roce
    >>> with roce.pair() as (near, far):
    ...     near.write(near.remote, b"hello").wait()
    ...     far.memory(0, 5)
    b'hello'

`pair` connects two ends in this process, for tests. `Device` opens a device for connections with other programs.
Packets are real: they pass the sockets of the kernel, and `capture` writes them to a file.
"""

from __future__ import annotations

import contextlib
import os
from typing import Iterator

from ._roce import Bridge, Device, Listener, Operation, Peer, RemoteMemory, connect_pair as _connect_pair

__all__ = ["Bridge", "Device", "Listener", "Operation", "Peer", "RemoteMemory", "pair"]


@contextlib.contextmanager
def pair(
    near: str = "udp:127.0.0.1",
    far: str = "udp:127.0.0.2",
    *,
    memory: int = 65536,
    message: int = 4096,
    buffers: int = 64,
    operations: int = 128,
    fault: str | None = None,
    seed: int | None = None,
    capture: str | os.PathLike[str] | None = None,
    congestion: str | None = None,
) -> Iterator[tuple[Peer, Peer]]:
    """Connects two devices of this process, and yields both ends.

    Each end offers `memory` bytes, takes messages of `message` bytes, of which `buffers` may wait, and may have
    `operations` under way. `fault` is a plan such as `drop=1%` for the packets that both ends send, which repeats
    with its `seed`. `capture` is a file for the packets of the first end. `congestion` is an algorithm such as
    `dcqcn`.
    """
    other_seed = None if seed is None else seed + 1
    with contextlib.ExitStack() as stack:
        one = stack.enter_context(Device(near, fault=fault, seed=seed, capture=capture, congestion=congestion))
        two = stack.enter_context(Device(far, fault=fault, seed=other_seed, congestion=congestion))
        ends = _connect_pair(one, two, memory, message, buffers, operations)
        for end in ends:
            stack.enter_context(end)
        yield ends
