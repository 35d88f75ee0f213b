"""Which measurements run next to each other, and which figures come of them."""

from dataclasses import dataclass, field

import measurements as m
from figures import Figure, at_least, at_most


@dataclass
class Group:
    """Measurements that run one after the other, in this order and then in the other, so many times in a round; each pass is a cycle.
    A figure divides two values of one cycle."""

    measurements: list
    figures: list[Figure]
    cycles: int = 2
    in_machine: bool = False
    counts: dict = field(default_factory=dict)

    @property
    def units(self):
        return {name: unit for measurement in self.measurements for name, unit in measurement.units.items()}

    def reduced(self, text):
        """The same with the figures only that have this text in their names, or None."""
        figures = [figure for figure in self.figures if text in figure.name]
        names = {name for figure in figures for name in (figure.over, figure.under)}
        needed = [measurement for measurement in self.measurements if names & measurement.units.keys()]
        return Group(needed, figures, self.cycles, self.in_machine) if figures else None

    def cycle(self, bench, backwards, warm_up=False):
        """Runs everything once. Returns the values, and the reasons of those that could not be measured."""
        values, reasons = {}, {}
        for measurement in reversed(self.measurements) if backwards else self.measurements:
            key = id(measurement)
            count = self.counts.get(key, measurement.count)
            try:
                found, seconds = measurement.run(bench, count)
            except m.Failure as failure:
                reasons |= dict.fromkeys(measurement.units, str(failure))
                continue
            except (ValueError, LookupError, TypeError) as error:
                # The result of a command is not what it should be.
                reasons |= dict.fromkeys(measurement.units, f"unexpected result: {error!r}")
                continue
            values |= found
            if warm_up and seconds:
                self.counts[key] = max(int(count * min(max(measurement.seconds / seconds, 0.05), 50)), 20)
        return values, reasons


def groups():
    """All figures that need no virtual machine."""
    return [
        Group(
            [
                m.limit("udp", "limit", 4096, 20_000, tcp="tcp"),
                m.blast("udp", "write", "write", 65536, 1_000),
                m.ucx("ucx", "ucp_put_bw", 65536, 1_000),
            ],
            [
                at_least("udp: WRITE 64 KiB, of the limit", "write", "limit", 0.75, 0.90),
                at_least("udp: WRITE 64 KiB, of kernel TCP", "write", "tcp"),
                at_least("udp: WRITE 64 KiB, of UCX put over TCP", "write", "ucx"),
            ],
        ),
        Group(
            [m.limit("udp", "limit", 1024, 50_000), m.blast("udp", "write", "write", 65536, 500, ["--mtu", "1024"])],
            [at_least("udp: WRITE 64 KiB, path MTU 1024, of the limit", "write", "limit", 0.70, 0.85)],
        ),
        *bandwidth_on("xdp", 0.85, 0.95),
        *bandwidth_on("raw"),
        *bandwidth_on("tap"),
        *small_on("udp", 0.70, 0.90),
        *small_on("xdp", 0.85, 0.95),
        *small_on("raw"),
        *small_on("tap"),
        Group(
            [m.limit("udp", "limit", 64, 50_000), m.perftest("perftest", "ib_write_bw", 64, 20_000)],
            [at_least("udp: ib_write_bw of 64 bytes under roce run, of the limit", "perftest", "limit")],
        ),
        Group(
            [m.limit_latency("udp", "limit"), m.perftest("perftest", "ib_write_lat", 8, 2_000)],
            [at_most("udp: ib_write_lat of 8 bytes under roce run, of the limit", "perftest", "limit")],
        ),
        Group(
            [
                m.limit_latency("udp", "limit", ("tcp", "tcp events")),
                m.ping("udp", "send", "poll", 2_000),
                m.ping("udp", "events", "event", 500),
                m.ucx("ucx", "tag_lat", 8, 2_000),
            ],
            [
                at_most("udp: 8-byte SEND, one way, of the limit", "send", "limit", 1.4, 1.15),
                at_most("udp: 8-byte SEND, one way, of kernel TCP", "send", "tcp", 1.2, 1.0),
                at_most("udp: 8-byte SEND with events, of TCP with epoll", "events", "tcp events", 1.3, 1.0),
                at_most("udp: 8-byte SEND, one way, of UCX tag over TCP", "send", "ucx"),
            ],
        ),
        Group(
            [
                m.limit_latency("udp", "udp limit", ("tcp", "tcp events")),
                m.ping("xdp", "send", "poll", 2_000),
                m.ping("xdp", "events", "event", 500),
                m.limit_latency("xdp", "limit"),
            ],
            [
                at_most("xdp: 8-byte SEND, one way, of the limit", "send", "limit", 1.4, 1.15),
                at_most("xdp: 8-byte SEND, one way, of kernel TCP", "send", "tcp", 0.7, 0.55),
                at_most("xdp: 8-byte SEND with events, of TCP with epoll", "events", "tcp events", 1.3, 1.0),
            ],
        ),
        *latency_on("raw"),
        *latency_on("tap"),
        Group(
            [m.blast("udp", "read", "read", 65536, 1_000), m.blast("udp", "write", "write", 65536, 1_000)],
            [at_least("udp: READ 64 KiB, of WRITE", "read", "write", 0.90, 1.0)],
        ),
        Group(
            [m.blast("udp", "send", "send", 65536, 1_000), m.ucx("ucx", "tag_bw", 65536, 1_000)],
            [at_least("udp: SEND 64 KiB, of UCX tag over TCP", "send", "ucx")],
        ),
        Group(
            [m.two_blasts("both", 65536, 2_000), m.blast("udp", "one", "write", 65536, 1_000, seconds=0.5)],
            [at_least("udp: both directions at once, of one", "both", "one", 1.5, 1.9)],
        ),
        Group(
            [m.ping_rate("two", 2, 2_000, 1.0), m.ping_rate("one", 1, 2_000, 0.5)],
            [at_least("udp: two pairs of ping on two processors, of one", "two", "one", 0.80, 0.95)],
        ),
        Group(
            [m.requests("roce", "roce", 10_000), m.requests("one port", "one-port", 10_000), m.requests("tcp", "tcp", 20_000)],
            [
                at_least("udp: requests of 32 bytes, of TCP", "roce", "tcp", 0.60, 1.00),
                at_least("udp: the same from one source port", "one port", "tcp", 0.60, 1.00),
            ],
        ),
        Group(
            [
                m.perf("many", 10_000, 1, 256, 50_000, seconds=0.8),
                m.perf("one", 1, 256, 256, 20_000),
            ],
            [at_least("udp: 4 KiB WRITEs on 10,000 queue pairs, of 1", "many", "one", 0.80, 0.95)],
            cycles=1,
        ),
        loss(),
        Group(
            [m.cost("engine", "million/s", ["engine"], "messages_per_second", 300_000)],
            [at_least("engine without I/O: 64-byte WRITEs, both ends", "engine", None, 8, 12)],
        ),
        Group(
            [m.cost("poll", "ns", ["poll"], "poll_seconds", 200_000)],
            [at_most("udp: empty poll", "poll", None, 50, 20)],
        ),
        Group(
            [
                m.cost("memory of 1", "bytes", ["memory", "10000", "1", "1"], "bytes_per_queue_pair"),
                m.cost("memory of 16", "bytes", ["memory", "10000", "16", "16"], "bytes_per_queue_pair"),
            ],
            [
                at_most("memory of an idle RC queue pair, room for 1 request and 1 receive", "memory of 1", None, 2048, 1024),
                at_most("memory of an idle RC queue pair, room for 16 and 16", "memory of 16", None, 2048, 1024),
            ],
            cycles=1,
        ),
        Group(
            [m.idle("idle")],
            [at_most("processor time of an idle connection", "idle", None, 0.05, 0.05)],
            cycles=1,
        ),
        Group(
            [m.engines("two", 2, 4096), m.engines("one", 1, 4096)],
            [at_least("two engine threads of one, 4 KiB WRITEs of 64 queue pairs", "two", "one", 1.7, 1.9)],
        ),
        Group(
            [m.engines("two", 2, 64), m.engines("one", 1, 64)],
            [at_least("two engine threads of one, 64-byte WRITEs of 64 queue pairs", "two", "one", 1.7, 1.9)],
        ),
    ]


def bandwidth_on(kind, goal=None, aim=None):
    yield Group(
        [m.limit(kind, "limit", 4096, 20_000), m.blast(kind, "write", "write", 65536, 500)],
        [at_least(f"{kind}: WRITE 64 KiB, of the limit", "write", "limit", goal, aim)],
    )


def small_on(kind, goal=None, aim=None):
    yield Group(
        [m.limit(kind, "limit", 64, 50_000), m.blast(kind, "write", "write", 64, 50_000, ["--buffers", "256"])],
        [at_least(f"{kind}: 64-byte WRITEs, of the limit", "write", "limit", goal, aim)],
    )


def latency_on(kind):
    yield Group(
        [m.limit_latency(kind, "limit"), m.ping(kind, "send", "poll", 2_000)],
        [at_most(f"{kind}: 8-byte SEND, one way, of the limit", "send", "limit")],
    )


def loss():
    """One per cent of the packets of each direction are lost, and all are 25 µs late."""
    plan = ["--fault", "drop=1%,delay=25us"]

    def transfer(name, recovery, messages, seconds):
        options = [*plan, "--recovery", recovery]
        return m.blast("udp", name, "write", 65536, messages, options, options, seconds)

    selective = "selective-repeat:rto_low=2000,rto_high=4000"
    return Group(
        [transfer("selective", selective, 500, 0.5), transfer("go back", "go-back-n", 200, 0.8)],
        [at_least("udp: 1 % loss, selective repeat over go-back-N", "selective", "go back", 3, 5)],
    )
