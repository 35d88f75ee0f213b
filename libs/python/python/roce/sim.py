"""The simulator, with results as tables.

    >>> import roce.sim
    >>> results = roce.sim.run("dcqcn-incast", seed=3)          # doctest: +SKIP
    >>> polars.DataFrame(results.flows)["slowdown"].max()       # doctest: +SKIP

A congestion control of your own is a class:

    >>> class Half(roce.sim.Algorithm):
    ...     def on_cnp(self, now):
    ...         self.rate = max(self.rate / 2, 10e6)
    >>> roce.sim.run("two-to-one", algorithm=Half)              # doctest: +SKIP
"""

from __future__ import annotations

import os
import pathlib
from typing import Any, Mapping

from ._roce import Simulated, scenario_text, scenarios as _scenarios, simulate as _simulate

__all__ = ["Algorithm", "Simulated", "run", "scenario_text", "scenarios"]


class Algorithm:
    """A congestion control. The simulator creates an object for each queue pair that sends.

    Methods are called for events. After each call, the simulator reads `rate`, `window` and `next_timer`. Times
    are nanoseconds of virtual time. A method that the class does not define costs nothing.
    """

    rate: float | None
    """Bits per second; `None` for no limit. It begins with the rate of the link."""
    window: float | None
    """The largest number of bytes that are not acknowledged; `None` for no limit."""
    next_timer: float | None
    """The time of the next call of `on_timer`; `None` for no call. It has passed when `on_timer` is called."""

    def __init__(self, now: int, qpn: int, mtu: int, line_rate: int) -> None:
        """Begins at a time, with the number of the queue pair, bytes of a full packet, and bits per second."""
        self.qpn = qpn
        self.mtu = mtu
        self.line_rate = line_rate
        self.rate = line_rate
        self.window = None
        self.next_timer = None

    def on_send(self, now: int, bytes: int) -> None:
        """A data packet of this number of bytes left."""

    def on_ack(self, now: int, bytes: int, in_flight: int, rtt: int | None, marked: bool) -> None:
        """An acknowledgement reported `bytes` for the first time, and `in_flight` are not acknowledged yet.

        `rtt` is the round trip in nanoseconds if this packet measured it. `marked` is known only if the
        scenario lets acknowledgements echo marks.
        """

    def on_cnp(self, now: int) -> None:
        """A congestion notification arrived."""

    def on_loss(self, now: int, timeout: bool) -> None:
        """A packet was lost: a timeout expired, or the receiver reported a gap."""

    def on_timer(self, now: int) -> None:
        """The time `next_timer` has been reached."""


def scenarios() -> dict[str, str]:
    """Returns the names of the scenarios of this package, with their descriptions."""
    return dict(_scenarios())


def run(
    scenario: str | os.PathLike[str],
    *,
    seed: int | None = None,
    set: Mapping[str, Any] | None = None,
    algorithm: type[Algorithm] | None = None,
    algorithms: Mapping[str, type[Algorithm]] | None = None,
    threads: int = 1,
) -> Simulated:
    """Runs a scenario and returns its results.

    `scenario` is the name of a scenario of this package, the path of a file, or the text of one. `set` replaces
    values, such as `{"host.congestion": "dcqcn"}`; `seed` replaces the seed. `algorithm` controls every host;
    `algorithms` adds names that `host.congestion` and profiles of the scenario may have. Equal arguments give
    equal results, with any number of `threads`. Algorithms of Python run in one thread.

    Raises `ValueError` for an error in the scenario, and the exception of an algorithm that raises one.
    """
    text, folder = _read(scenario)
    values = {name: _toml(value) for name, value in (set or {}).items()}
    own = dict(algorithms or {})
    if algorithm is not None:
        own["python"] = algorithm
        values.setdefault("host.congestion", "python")
    if seed is not None:
        values["seed"] = str(seed)
    for name, kind in own.items():
        if not (isinstance(kind, type) and issubclass(kind, Algorithm)):
            raise TypeError(f"the algorithm {name} is not a class below roce.sim.Algorithm")
    return _simulate(text, folder, list(values.items()), list(own.items()), 1 if own else threads)


def _read(scenario: str | os.PathLike[str]) -> tuple[str, pathlib.Path]:
    """Returns the text of a scenario, and the folder of the files that it names."""
    if isinstance(scenario, str) and "\n" in scenario:
        return scenario, pathlib.Path()
    path = pathlib.Path(scenario)
    if not path.is_file() and isinstance(scenario, str) and path.suffix != ".toml":
        return scenario_text(scenario), pathlib.Path()
    return path.read_text(encoding="utf-8"), path.parent


def _toml(value: Any) -> str:
    """Returns a value as the simulator reads it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)
