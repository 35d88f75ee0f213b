"""Capture files as tables and as packets.

A table has one row for each packet and one column for each field. The columns are in the memory format of
Arrow, so pandas, polars and pyarrow use them without a copy or a Python object for each packet.

    >>> import roce.capture
    >>> table = roce.capture.read("trace.pcapng")        # doctest: +SKIP
    >>> polars.DataFrame(table)                          # doctest: +SKIP
    >>> roce.capture.to_pandas(table)                    # doctest: +SKIP
"""

from __future__ import annotations

import datetime
import os
from typing import TYPE_CHECKING, Any, Iterator, NamedTuple, Union

from . import layers
from ._roce import Table, packets as _packets, read_capture as _read_capture

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow

__all__ = ["Captured", "Table", "packets", "read", "to_pandas", "to_polars", "to_pyarrow"]

Path = Union[str, "os.PathLike[str]"]


def read(path: Path, *, port: int = 4791) -> Table:
    """Reads a capture file (pcap or pcapng, also compressed with gzip) into a table.

    `port` is the UDP port of RoCE v2. Raises `ValueError` if the file is damaged, and `OSError` if it cannot
    be read.
    """
    return _read_capture(path, port)


def to_pyarrow(table: Any) -> pyarrow.Table:
    """Returns a table as a table of pyarrow."""
    import pyarrow

    return pyarrow.table(table)


def to_pandas(table: Any) -> pandas.DataFrame:
    """Returns a table as a data frame of pandas, whose columns keep the types of Arrow.

    A missing value is `pandas.NA`, so numbers with missing values stay numbers.
    """
    import pandas

    return to_pyarrow(table).to_pandas(types_mapper=pandas.ArrowDtype)


def to_polars(table: Any) -> polars.DataFrame:
    """Returns a table as a data frame of polars."""
    import polars

    return polars.DataFrame(table)


class Captured(NamedTuple):
    """A packet of a capture file."""

    number: int
    """Number in the file, from 1."""
    time: datetime.datetime | None
    """Time of the capture in UTC, to microseconds."""
    time_ns: int | None
    """Time of the capture in nanoseconds since 1970 UTC."""
    link: str | None
    """The first header, as `roce.layers.parse` takes it; `None` if it cannot be parsed."""
    length: int
    """Number of bytes on the wire."""
    raw: bytes
    """The captured bytes."""

    def parse(self) -> layers.Packet:
        """Returns the headers of the packet."""
        if self.link is None:
            raise ValueError(f"packet {self.number} has a link type that cannot carry RoCE")
        return layers.parse(self.raw, link=self.link, wire_length=self.length)


def packets(path: Path) -> Iterator[Captured]:
    """Yields the packets of a capture file. For many packets, `read` is faster by far."""
    epoch = datetime.datetime(1970, 1, 1, tzinfo=datetime.timezone.utc)
    for number, time_ns, link, length, raw in _packets(path):
        time = None
        if time_ns is not None:
            time = epoch + datetime.timedelta(microseconds=time_ns // 1000)
        yield Captured(number, time, time_ns, link, length, raw)
