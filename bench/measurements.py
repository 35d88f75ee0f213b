"""Measurements: each runs a command, or a client and its server, and gives one or more values with their names.

A measurement is a function of a bench and of a count, which says how long it takes: messages, frames or round trips. It returns its
values by name, and the seconds that the count took; or None for these, where the time does not depend on the count.
"""

import json
import shutil
import subprocess
import time
from dataclasses import dataclass
from typing import Callable

from commands import PATIENCE, Failure, finish, last_line
from network import ADDRESSES


@dataclass
class Measurement:
    """`units` has the names of its values, each with its unit. `count` is that of a short run; a sample of `seconds` is scaled
    from it."""

    units: dict
    run: Callable
    count: int = 0
    seconds: float = 0.3


def limit(kind, name, size, frames, tcp=None):
    """Frames of `size` bytes over the device without any protocol; with `tcp`, a name for a stream of kernel TCP as well."""
    unit = "million/s" if size <= 64 else "Gb/s"

    def run(bench, count):
        client = ["-n", str(count), "-s", str(size), "--round-trips", "0", *(["--tcp"] if tcp else [])]
        found = bench.roce_run(["limit"], client=client, kind=kind)
        row = found["rows"][0]
        values = {name: row["frames_per_second"] if size <= 64 else row["bits_per_second"]}
        if tcp:
            values[tcp] = found["tcp_bits_per_second"]
        return values, row["elapsed_seconds"]

    return Measurement({name: unit} | ({tcp: "Gb/s"} if tcp else {}), run, frames)


def limit_latency(kind, name, tcp=()):
    """Half a round trip of one frame without any protocol; with `tcp`, the names for kernel TCP spinning and sleeping."""
    units = {name: "µs", **dict.fromkeys(tcp, "µs")}

    def run(bench, count):
        client = ["-n", "1000", "-s", "64", "--round-trips", str(count), *(["--tcp"] if tcp else [])]
        found = bench.roce_run(["limit"], client=client, kind=kind)
        values = {name: found["latency"]["median_seconds"]}
        if tcp:
            values |= zip(tcp, (found[key]["median_seconds"] for key in ("tcp_latency", "tcp_event_latency")))
        return values, values[name] * 2 * count

    return Measurement(units, run, 2_000)


def blast(kind, name, op, size, messages, more=(), server=(), seconds=0.3):
    """Messages in one direction."""
    unit = "million/s" if size <= 64 else "Gb/s"

    def run(bench, count):
        client = ["--op", op, "--size", str(size), "-n", str(count), *more]
        row = bench.roce_run(["blast"], client=client, server=server, kind=kind)["rows"][0]
        value = row["messages_per_second"] if size <= 64 else row["bits_per_second"]
        return {name: value}, row["elapsed_seconds"]

    return Measurement({name: unit}, run, messages, seconds)


def two_blasts(name, size, messages):
    """A client and a server on each side at once."""

    def run(bench, count):
        client = ["--op", "write", "--size", str(size), "-n", str(count)]
        pairs = [bench.roce_pair(["blast"], client=client, sides=sides) for sides in ((1, 0), (0, 1))]
        rows = [found["rows"][0] for found in bench.run(*pairs)]
        return {name: sum(row["bits_per_second"] for row in rows)}, max(row["elapsed_seconds"] for row in rows)

    # Long, so that the moments in which only one of the two runs hardly count.
    return Measurement({name: "Gb/s"}, run, messages, 1.5)


def ping(kind, name, completion, trips):
    """Half a round trip of 8 bytes, the median."""

    def run(bench, count):
        client = ["--op", "send", "--size", "8", "-n", str(count), "--completion", completion]
        row = bench.roce_run(["ping"], client=client, kind=kind)["rows"][0]
        return {name: row["percentiles_seconds"][1]}, row["elapsed_seconds"]

    return Measurement({name: "µs"}, run, trips)


def ping_rate(name, pairs_at_once, trips, seconds):
    """Messages a second of so many pings at once, each side's processes on one processor."""

    def run(bench, count):
        client = ["--op", "send", "--size", "8", "-n", str(count)]
        pairs = [bench.roce_pair(["ping"], client=client) for _ in range(pairs_at_once)]
        rows = [found["rows"][0] for found in bench.run(*pairs)]
        return {name: sum(row["messages_per_second"] for row in rows)}, max(row["elapsed_seconds"] for row in rows)

    return Measurement({name: "thousand/s"}, run, trips, seconds)


def perf(name, queue_pairs, depth, in_flight, messages, more=(), seconds=0.5):
    """4 KiB WRITEs of `perf` on many queue pairs, so many under way in all."""

    def run(bench, count):
        each = max(count // queue_pairs, 5)
        options = ["-s", "4096", "-q", str(queue_pairs), "-n", str(each), "--noPeak"]
        client = [*options, "-t", str(depth), "--in-flight", str(in_flight), *more]
        row = bench.roce_run(["perf", "write", "bw"], server=[*options, "--json"], client=client)["rows"][-1]
        # A side that gets no processor for 4 ms is probed with one packet. More of them would be part of the figure, which a short run
        # does not report.
        if not bench.short and row["retransmitted_packets"] > each * queue_pairs // 1000:
            raise Failure(f"{row['retransmitted_packets']} packets were sent again")
        rate = row["bandwidth"]["average"]["bits_per_second"]
        return {name: rate}, each * queue_pairs * 4096 * 8 / rate

    return Measurement({name: "Gb/s"}, run, messages, seconds)


def ucx(name, test, size, messages):
    """ucx_perftest over TCP on the same veth."""
    unit = "µs" if size <= 64 else "Gb/s"

    def run(bench, count):
        program = shutil.which("ucx_perftest")
        if program is None:
            raise Failure("ucx_perftest is missing; install ucx-utils")
        port = bench.next_port()
        common = ["env", "UCX_TLS=tcp,self", "UCX_NET_DEVICES=veth", program, "-p", port]
        # Without a warm-up of its own, which is longer than a short run.
        call = [*common, ADDRESSES[1], "-t", test, "-s", str(size), "-n", str(count), "-w", str(count // 10), "-f"]
        text = bench.run(((1, common), (0, call), port), output=str)[0]
        rows = [numbers(line.removeprefix("Final:")) for line in text.splitlines()]
        row = next((row for row in rows if len(row) == 8), None)
        if row is None:
            raise Failure(f"ucx_perftest: {last_line(text) or 'no result'}")
        # Iterations, median latency in µs, average, overall, bandwidth in 2^20 bytes a second, overall, messages a second, overall.
        value = row[1] * 1e-6 if size <= 64 else row[5] * 2**20 * 8
        return {name: value}, count / row[7] * (2 if size <= 64 else 1)

    return Measurement({name: unit}, run, messages)


def perftest(name, program, size, messages):
    """An unmodified program of perftest under `roce run`."""
    unit = "µs" if program.endswith("_lat") else "million/s"

    def run(bench, count):
        port = bench.next_port()
        common = lambda side: [*bench.roce_program(side, program), "-p", port, "-F", "-s", str(size), "-n", str(count)]
        text = bench.run(((1, common(1)), (0, [*common(0), ADDRESSES[1]]), port), output=str)[0]
        rows = [row for row in map(numbers, text.splitlines()) if row[:2] == [size, count]]
        if not rows:
            raise Failure(f"{program}: {last_line(text) or 'no result'}")
        # Size, iterations, least, most and typical time in µs; or size, iterations, peak, average, million messages a second.
        value = rows[0][4] * (1e-6 if unit == "µs" else 1e6)
        return {name: value}, 2 * count * value if unit == "µs" else count / value

    return Measurement({name: unit}, run, messages)


def requests(name, kind, count):
    """Requests of 32 bytes with responses, 4 sessions with 16 under way on each, by examples/costs."""

    def run(bench, count):
        port = bench.next_port()
        serve = [bench.costs, "serve", kind, ADDRESSES[1], port]
        call = [bench.costs, "call", kind, ADDRESSES[0], ADDRESSES[1], port, str(count)]
        found = bench.run(((1, serve), (0, call), port))[0]
        return {name: found["requests_per_second"]}, found["elapsed_seconds"]

    return Measurement({name: "thousand/s"}, run, count)


def cost(name, unit, words, key, count=0, seconds=0.5):
    """A result of examples/costs, which needs no other side. Where there is a count, it is the last word of the command."""

    def run(bench, count):
        found = bench.costs_alone(*words, *([str(count)] if count else []))
        return {name: found[key]}, found.get("elapsed_seconds") if count else None

    return Measurement({name: unit}, run, count, seconds)


def idle(name):
    """The share of a processor that both ends of a connection take while they wait for an event."""

    def run(bench, _):
        return {name: bench.costs_alone("idle", "1" if bench.short else "3")["processor_share"]}, None

    return Measurement({name: "%"}, run)


def engines(name, count, size):
    """Messages a second of so many engines of one context, each with a thread and a processor."""

    def run(bench, _):
        found = bench.costs_alone("engines", str(count), str(size), "100" if bench.short else "1000")
        return {name: found["messages_per_second"]}, None

    return Measurement({name: "million/s"}, run)


def numbers(line):
    try:
        return [float(word) for word in line.split()]
    except ValueError:
        return []
