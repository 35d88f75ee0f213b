"""RoCE v2 for Python.

- `roce.layers` builds, parses and changes packets, header by header.
- `roce.capture` reads capture files into Arrow tables.
- `roce.sim` runs simulations, also with a congestion control that is a class.
- `roce.pair` and `roce.Device` send real packets, and `roce.Bridge` impairs those of others.

The pytest fixture `roce_pair` gives a test two connected ends.
"""

from . import capture, layers, sim
from ._roce import Table, __version__
from .peers import Bridge, Device, Listener, Operation, Peer, RemoteMemory, pair

__all__ = [
    "Bridge",
    "Device",
    "Listener",
    "Operation",
    "Peer",
    "RemoteMemory",
    "Table",
    "__version__",
    "capture",
    "layers",
    "pair",
    "sim",
]
