"""The curves of bench/scale: what is measured against a number of objects, and how fast it may grow.

A measurement returns numbers by name for one point. It fails if the data that it transferred is not what it should be. `seconds` is
the time of an operation; the Rust side is examples/costs/src/scale.rs.
"""

import json
import os
import shutil
import subprocess
import tempfile
import time
from dataclasses import dataclass
from typing import Callable

from commands import Failure, last_line, reason, stop

# A process that runs longer is ended, and its point is not measured.
PATIENCE = 120


@dataclass
class Line:
    """A line of a plot: `key` of the values, and the exponent that it may reach, which is exceeded beyond the tolerance."""

    key: str
    title: str
    unit: str
    expected: float = 0
    tolerance: float = 0.25


@dataclass
class Curve:
    """`run` measures one point. A point is left out if it would take longer than `limit` seconds, by the time of the one before."""

    name: str
    x: str
    points: list
    short: list
    run: Callable
    lines: list
    limit: float = 30
    peer: Callable | None = None


@dataclass
class Usage:
    """What a process used: processor time in seconds, and its largest resident memory in bytes."""

    seconds: float
    bytes: int


class Programs:
    """The programs under test, and an address and a port for each connection."""

    def __init__(self, roce, costs, short):
        self.roce, self.costs, self.short, self.number = str(roce), str(costs), short, 0

    def next_pair(self):
        """Two addresses of 127.0.0.0/8 and a TCP port that no other connection of this run has."""
        self.number += 1
        part = os.getpid() & 0xFFFF
        address = lambda end: f"127.{128 + (part >> 8) % 100}.{part & 255}.{2 * self.number % 250 + end}"
        return address(1), address(2), str(18800 + self.number % 200)

    def scale(self, name):
        def run(point):
            out, _, usage = finish(start([self.costs, "scale", name, str(point)]))
            found = json.loads(out)
            if found["x"] != point:
                # A curve may need more objects than were asked for.
                found["asked"] = point
            return found | {"process_bytes": usage.bytes}

        return run


def start(command, stdin=subprocess.DEVNULL, is_piped=False):
    """Starts a process whose output goes to files, because nobody reads it before it has ended; or into a pipe to another process."""
    out, problems = None if is_piped else tempfile.TemporaryFile(), tempfile.TemporaryFile()
    process = subprocess.Popen(command, stdin=stdin, stdout=subprocess.PIPE if is_piped else out, stderr=problems)
    return process, out, problems


def finish(started, is_any_status_right=False):
    """Waits for a process. Returns its output, its messages, and what it used."""
    process, out, problems = started
    end, usage = time.monotonic() + PATIENCE, None
    try:
        while usage is None:
            pid, status, used = os.wait4(process.pid, os.WNOHANG)
            if pid:
                process.returncode = os.waitstatus_to_exitcode(status)
                usage = Usage(used.ru_utime + used.ru_stime, used.ru_maxrss * 1024)
            elif time.monotonic() > end:
                raise Failure(f"not done after {PATIENCE} s")
            else:
                time.sleep(0.005)
    finally:
        if process.returncode is None:
            process.kill()
            process.wait()
    text = lambda file: file.seek(0) or file.read().decode(errors="replace")
    messages = text(problems)
    if process.returncode != 0 and not is_any_status_right:
        raise Failure(reason(messages) or f"status {process.returncode}")
    return text(out) if out else "", messages, usage


def blast(programs, size, count, more=()):
    """WRITEs over UDP on loopback, of which both ends check the contents."""
    server, client, port = programs.next_pair()
    serving = start([programs.roce, "blast", "--once", "--device", f"udp:{server}", "-p", port, *more])
    try:
        # The client tries again until the server listens.
        command = [programs.roce, "blast", server, "--device", f"udp:{client}", "-p", port, "--json"]
        out, _, _ = finish(start([*command, "--op", "write", "-s", str(size), "-n", str(count), *more]))
    finally:
        stop(serving[0])
    row = json.loads(out)["rows"][0]
    if (row["size"], row["iterations"]) != (size, count):
        raise Failure(f"{row['iterations']} messages of {row['size']} bytes instead of {count} of {size}")
    return {"seconds": row["elapsed_seconds"] / count, "messages": count}


def message_sizes(programs):
    most = (8 if programs.short else 128) << 20
    return lambda size: {"x": size} | blast(programs, size, max(min(most // size, 50_000), 32))


def loss_rates(programs):
    count = 30 if programs.short else 200
    return lambda rate: {"x": rate} | blast(programs, 65536, count, ["--fault", f"drop={rate * 100:g}%"])


def ucx(programs):
    """The time of a message of UCX over kernel TCP on loopback; None without ucx_perftest."""
    program = shutil.which("ucx_perftest")
    if program is None:
        return None

    def run(size):
        port = programs.next_pair()[2]
        count = max(min((8 if programs.short else 128) * 2**20 // size, 20_000), 32)
        common = ["env", "UCX_TLS=tcp,self", "UCX_NET_DEVICES=lo", program, "-p", port]
        serving = start(common)
        try:
            time.sleep(0.3)
            call = [*common, "127.0.0.1", "-t", "ucp_put_bw", "-s", str(size), "-n", str(count), "-w", str(count // 10), "-f"]
            out, _, _ = finish(start(call))
        finally:
            stop(serving[0])
        rows = [line.removeprefix("Final:").split() for line in out.splitlines() if line.startswith("Final:")]
        if not rows or len(rows[0]) != 8:
            raise Failure(f"ucx_perftest: {last_line(out) or 'no result'}")
        return {"x": size, "seconds": 1 / float(rows[0][7])}

    return run


def captures(programs):
    """`roce analyze` of a capture that arrives through a pipe, so that no file is written."""

    def run(packets):
        making = start([programs.costs, "scale", "capture", str(packets)], is_piped=True)
        reading = start([programs.roce, "analyze", "-", "--json"], stdin=making[0].stdout)
        making[0].stdout.close()
        try:
            # A status other than 0 is a verdict.
            out, problem, usage = finish(reading, is_any_status_right=True)
            _, expected, _ = finish(making)
        finally:
            stop(making[0])
        try:
            found, expected = json.loads(out), json.loads(expected)
        except ValueError:
            raise Failure(reason(problem) or reason(expected) or "no document") from None
        requests = [end.get("requests") or {} for one in found["connections"] for end in one["ends"]]
        for name, value, right in [
            ("packets", found["roce_packets"], expected["packets"]),
            ("connections", len(found["connections"]), expected["connections"]),
            ("messages", sum(one.get("messages", 0) for one in requests), expected["messages"]),
            ("packets sent again", sum(one.get("resent_packets", 0) for one in requests), expected["resent"]),
        ]:
            if value != right:
                raise Failure(f"the analysis found {value} {name} instead of {right}")
        found = {"seconds": usage.seconds / packets, "object_bytes": usage.bytes / packets}
        return {"x": packets, "process_bytes": usage.bytes} | found

    return run


def curves(programs):
    time_of = lambda what, **more: Line("seconds", f"time of {what}", "s", **more)
    memory_of = lambda what, **more: Line("object_bytes", f"memory of {what}", "bytes", **more)
    creation_of = lambda what: Line("creation_seconds", f"processor time of the creation of {what}", "s")
    scale = programs.scale
    return [
        Curve(
            "queue pairs", "RC queue pairs of each side", [1, 10, 100, 1_000, 10_000, 100_000], [1, 100, 1_000], scale("queue-pairs"),
            [time_of("a 64-byte WRITE, both engines"), creation_of("a queue pair"), memory_of("a queue pair")],
        ),
        Curve(
            "memory regions", "memory regions", [1, 10, 100, 1_000, 10_000, 100_000, 1_000_000], [1, 1_000, 10_000], scale("regions"),
            [time_of("a 64-byte WRITE, both engines"), creation_of("a region"), memory_of("a region of 64 bytes")],
        ),
        Curve(
            "completion queues", "completion queues, each with a queue pair", [1, 10, 100, 1_000, 10_000, 100_000], [1, 100, 1_000],
            scale("completion-queues"),
            [time_of("a 64-byte WRITE, both engines"), creation_of("a queue with its queue pair"), memory_of("these")],
        ),
        Curve(
            "connections", "established connections", [20, 50, 200, 1_000, 5_000], [20, 50], scale("connections"),
            [time_of("a connection over rdma_cm"), memory_of("an end of a connection", tolerance=0.1)],
        ),
        Curve(
            "processes", "processes on one address", [1, 4, 16, 64, 256], [1, 3], scale("processes"),
            [time_of("an 8-byte WRITE and its acknowledgement")],
        ),
        Curve(
            "message size", "bytes of a message", [8, 64, 512, 4096, 32768, 262144, 1048576, 4194304], [64, 4096, 65536],
            message_sizes(programs), [time_of("a WRITE over UDP on loopback", expected=1, tolerance=0.2)], peer=ucx(programs),
        ),
        Curve(
            "loss", "share of the packets that is lost", [0.0001, 0.001, 0.003, 0.01, 0.03], [0.001, 0.01], loss_rates(programs),
            [time_of("a 64 KiB WRITE over UDP on loopback", expected=1, tolerance=0.5)],
        ),
        Curve(
            "simulated hosts", "hosts of a fat tree", [16, 128, 1_024, 8_192, 65_536], [16, 128], scale("hosts"),
            [Line("seconds", "processor time of a data packet", "s"), memory_of("a host")], limit=70,
        ),
        Curve(
            "simulated flows", "flows between 128 hosts", [128, 1_024, 8_192, 65_536], [128, 1_024], scale("flows"),
            [Line("seconds", "processor time of a data packet", "s"), memory_of("a flow")],
        ),
        Curve(
            "captures", "packets of a capture", [1_000, 10_000, 100_000, 1_000_000, 10_000_000], [1_000, 20_000], captures(programs),
            [Line("seconds", "processor time of a packet in roce analyze", "s"), memory_of("a packet in roce analyze")], limit=90,
        ),
    ]
