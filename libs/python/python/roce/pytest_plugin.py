"""The pytest fixture `roce_pair`: two connected ends for a test.

    def test_write(roce_pair):
        near, far = roce_pair
        near.write(near.remote, b"hello").wait(timeout=5)
        assert far.memory(0, 5) == b"hello"

The marker `roce` gives the arguments of `roce.pair`:

    @pytest.mark.roce(fault="drop=1%", seed=3)
    def test_write_with_losses(roce_pair): ...

`pytest --roce-capture FOLDER` writes the packets of each test to a file.
"""

from __future__ import annotations

import pathlib
import re
from typing import Iterator

import pytest

import roce


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("roce")
    group.addoption("--roce-capture", metavar="FOLDER", help="write the packets of roce_pair to FOLDER/TEST.pcapng")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "roce(**arguments): the arguments of roce.pair for the fixture roce_pair")


@pytest.fixture
def roce_pair(request: pytest.FixtureRequest) -> Iterator[tuple[roce.Peer, roce.Peer]]:
    """Two connected ends, which are closed after the test."""
    marker = request.node.get_closest_marker("roce")
    arguments = dict(marker.kwargs) if marker else {}
    folder = request.config.getoption("--roce-capture")
    if folder and "capture" not in arguments:
        pathlib.Path(folder).mkdir(parents=True, exist_ok=True)
        name = re.sub(r"[^\w.-]+", "_", request.node.name)
        arguments["capture"] = pathlib.Path(folder) / f"{name}.pcapng"
    with roce.pair(**arguments) as ends:
        yield ends
