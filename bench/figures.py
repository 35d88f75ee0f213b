"""The figures: which measurement is divided by which, and what is to be reached."""

import enum
from dataclasses import dataclass


class Verdict(enum.Enum):
    AIM = "aim reached"
    GOAL = "goal reached"
    MISSED = "missed"
    NONE = ""


@dataclass(frozen=True)
class Figure:
    """`over` divided by `under`: at least the goal, or at most, where less is better."""

    name: str
    over: str
    under: str
    goal: float | None = None
    aim: float | None = None
    is_time: bool = False

    @property
    def goal_text(self):
        return "" if self.goal is None else f"{'≤' if self.is_time else '≥'} {self.goal:.2f}"

    @property
    def aim_text(self):
        return "" if self.aim is None else f"{self.aim:.2f}"

    def verdict(self, value):
        if self.goal is None:
            return Verdict.NONE
        reaches = (lambda bound: value <= bound) if self.is_time else (lambda bound: value >= bound)
        return Verdict.AIM if reaches(self.aim) else Verdict.GOAL if reaches(self.goal) else Verdict.MISSED


def at_least(name, over, under, goal=None, aim=None):
    return Figure(name, over, under, goal, aim)


def at_most(name, over, under, goal=None, aim=None):
    return Figure(name, over, under, goal, aim, is_time=True)


FIGURES = [
    at_least("udp: WRITE 64 KiB, of the limit", "udp write 64k", "udp limit 4096", 0.75, 0.90),
    at_least("udp: WRITE 64 KiB, path MTU 1024, of the limit", "udp write 64k mtu 1024", "udp limit 1024", 0.70, 0.85),
    at_least("udp: WRITE 64 KiB, of kernel TCP", "udp write 64k", "tcp stream"),
    at_least("xdp: WRITE 64 KiB, of the limit", "xdp write 64k", "xdp limit 4096", 0.85, 0.95),
    at_least("raw: WRITE 64 KiB, of the limit", "raw write 64k", "raw limit 4096"),
    at_least("tap: WRITE 64 KiB, of the limit", "tap write 64k", "tap limit 4096"),
    at_least("udp: 64-byte WRITEs, of the limit", "udp write 64", "udp limit 64", 0.70, 0.90),
    at_least("xdp: 64-byte WRITEs, of the limit", "xdp write 64", "xdp limit 64", 0.85, 0.95),
    at_least("raw: 64-byte WRITEs, of the limit", "raw write 64", "raw limit 64"),
    at_least("tap: 64-byte WRITEs, of the limit", "tap write 64", "tap limit 64"),
    at_most("udp: 8-byte SEND, one way, of the limit", "udp send 8", "udp limit latency", 1.4, 1.15),
    at_most("xdp: 8-byte SEND, one way, of the limit", "xdp send 8", "xdp limit latency", 1.4, 1.15),
    at_most("raw: 8-byte SEND, one way, of the limit", "raw send 8", "raw limit latency"),
    at_most("tap: 8-byte SEND, one way, of the limit", "tap send 8", "tap limit latency"),
    at_most("udp: 8-byte SEND, one way, of kernel TCP", "udp send 8", "tcp latency", 1.2, 1.0),
    at_most("xdp: 8-byte SEND, one way, of kernel TCP", "xdp send 8", "tcp latency", 0.7, 0.55),
    at_most("udp: 8-byte SEND with events, of TCP with epoll", "udp send 8 events", "tcp event latency", 1.3, 1.0),
    at_most("xdp: 8-byte SEND with events, of TCP with epoll", "xdp send 8 events", "tcp event latency", 1.3, 1.0),
    at_least("udp: READ 64 KiB, of WRITE", "udp read 64k", "udp write 64k", 0.90, 1.0),
    at_least("udp: both directions at once, of one", "udp write both", "udp write one", 1.5, 1.9),
    at_least("udp: two pairs of ping, of one", "udp send 8 rate of two", "udp send 8 rate", 0.80, 0.95),
    at_least("udp: 4 KiB WRITEs of 10,000 queue pairs, of 1", "udp write 10000 qp", "udp write 1 qp", 0.80, 0.95),
    at_least("udp: 1 % loss, selective repeat over go-back-N", "udp loss selective", "udp loss go back", 3, 5),
    at_least("udp: WRITE 64 KiB, of UCX put over TCP", "udp write 64k", "ucx put"),
    at_least("udp: SEND 64 KiB, of UCX tag over TCP", "udp send 64k", "ucx tag"),
    at_most("udp: 8-byte SEND, one way, of UCX tag over TCP", "udp send 8", "ucx tag latency"),
]
