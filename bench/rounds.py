"""One round: every measurement once, one after the other."""

import json
import os
import shutil
import subprocess
import time

from network import ADDRESSES, TAP_ADDRESSES

PATIENCE = 60
DEVICES = ("udp", "xdp", "raw", "tap")


class Failure(Exception):
    """A measurement that could not be made, and why."""


class Round:
    def __init__(self, network, roce, short):
        self.network, self.roce = network, roce
        self.share = 20 if short else 1
        self.values, self.reasons = {}, {}
        self.port = 18600

    def measure(self, wanted):
        for kind in DEVICES:
            self._try(wanted, self._limit, kind)
            self._try(wanted, self._write, kind)
            self._try(wanted, self._ping, kind)
        for step in (self._udp, self._both, self._two_pings, self._queue_pairs, self._loss, self._ucx):
            self._try(wanted, step)
        return self

    def _try(self, wanted, step, *arguments):
        names = {name for name in wanted if self._gives(step, name, *arguments)}
        if not names:
            return
        try:
            step(names, *arguments)
        except Failure as failure:
            for name in names - self.values.keys():
                self.reasons[name] = str(failure)

    @staticmethod
    def _gives(step, name, kind=None):
        prefixes = {
            "_limit": (f"{kind} limit", "tcp ") if kind == "udp" else (f"{kind} limit",),
            "_write": tuple(f"{kind} write 64" + rest for rest in ("", "k")),
            "_ping": tuple(f"{kind} send 8" + rest for rest in ("", " events")),
            "_udp": ("udp write 64k mtu 1024", "udp read 64k", "udp send 64k"),
            "_both": ("udp write both", "udp write one"),
            "_two_pings": ("udp send 8 rate",),
            "_queue_pairs": ("udp write 10000 qp", "udp write 1 qp"),
            "_loss": ("udp loss",),
            "_ucx": ("ucx ",),
        }[step.__name__]
        if step.__name__ in ("_write", "_ping", "_udp"):
            return name in prefixes
        return name.startswith(prefixes)

    def _count(self, full):
        return str(max(full // self.share, 20))

    def _start(self, side, command):
        return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def _begin(self, words, server=(), client=(), kind="udp", sides=(1, 0)):
        """Starts a server of `roce` and, once it listens, its client."""
        self.port += 1
        far, near = sides
        port = ["-p", str(self.port)]
        device = lambda side: ["--device", self.network.device(kind, side)]
        once = ["--once"] if words[0] != "perf" else []
        address = ADDRESSES[far]
        if kind == "tap" and words == ["limit"]:
            # The two sides talk about the measurement over the kernel's addresses.
            once += ["--listen", address, "--allow-peer", TAP_ADDRESSES[near]]
        elif kind == "tap":
            address = TAP_ADDRESSES[far]
        serve = [self.roce, *words, *device(far), *port, *once, *server]
        call = [self.roce, *words, address, *device(near), *port, "--json", *client]
        serving = self._start(far, self.network.command(far, serve))
        self._await_server(serving, far, is_kernel=address == ADDRESSES[far])
        return serving, self._start(near, self.network.command(near, call))

    def _await_server(self, serving, side, is_kernel):
        end = time.monotonic() + 10
        while serving.poll() is None and time.monotonic() < end:
            # A tap's own connections are not the kernel's.
            if self.network.listens(side, self.port) if is_kernel else serving.stdout.readline():
                return
            time.sleep(0.02)
        serving.kill()
        raise Failure(last_line(serving.communicate()[1]) or "the server does not listen")

    def _end(self, serving, calling):
        try:
            out, problem = calling.communicate(timeout=PATIENCE)
            if calling.returncode != 0:
                raise Failure(last_line(problem) or f"status {calling.returncode}")
            serving.wait(timeout=10)
            return json.loads(out)
        except subprocess.TimeoutExpired:
            raise Failure(f"not done after {PATIENCE} s") from None
        finally:
            for process in (calling, serving):
                if process.poll() is None:
                    process.kill()
                process.communicate()

    def _pair(self, words, **options):
        return self._end(*self._begin(words, **options))

    def _limit(self, names, kind):
        client = ["-n", self._count(300_000), "--round-trips", self._count(10_000)]
        client += [word for size in (64, 1024, 4096) for word in ("-s", str(size))]
        if kind == "udp":
            client.append("--tcp")
        found = self._pair(["limit"], client=client, kind=kind)
        rows = {row["size"]: row for row in found["rows"]}
        self.values[f"{kind} limit 64"] = rows[64]["frames_per_second"]
        for size in (1024, 4096):
            self.values[f"{kind} limit {size}"] = rows[size]["bits_per_second"]
        self.values[f"{kind} limit latency"] = found["latency"]["median_seconds"]
        if kind == "udp":
            self.values["tcp stream"] = found["tcp_bits_per_second"]
            self.values["tcp latency"] = found["tcp_latency"]["median_seconds"]
            self.values["tcp event latency"] = found["tcp_event_latency"]["median_seconds"]

    def _blast(self, op, size, count, kind="udp", more=()):
        client = ["--op", op, "--size", str(size), "-n", self._count(count), *more]
        return self._pair(["blast"], client=client, kind=kind)["rows"][0]

    def _write(self, names, kind):
        self.values[f"{kind} write 64k"] = self._blast("write", 65536, 30_000, kind)["bits_per_second"]
        small = self._blast("write", 64, 1_000_000, kind, ["--buffers", "256"])
        self.values[f"{kind} write 64"] = small["messages_per_second"]

    def _ping(self, names, kind):
        for name, completion, count in ((f"{kind} send 8", "poll", 30_000), (f"{kind} send 8 events", "event", 5_000)):
            if name in names:
                client = ["--op", "send", "--size", "8", "-n", self._count(count), "--completion", completion]
                row = self._pair(["ping"], client=client, kind=kind)["rows"][0]
                self.values[name] = row["percentiles_seconds"][1]

    def _udp(self, names):
        small = self._blast("write", 65536, 10_000, more=["--mtu", "1024"])
        self.values["udp write 64k mtu 1024"] = small["bits_per_second"]
        self.values["udp read 64k"] = self._blast("read", 65536, 30_000)["bits_per_second"]
        self.values["udp send 64k"] = self._blast("send", 65536, 30_000)["bits_per_second"]

    def _both(self, names):
        """Two clients, one on each side, and then one."""
        client = ["--op", "write", "--size", "65536", "-n", self._count(20_000)]
        running = [self._begin(["blast"], client=client, sides=sides) for sides in ((1, 0), (0, 1))]
        both = [self._end(*pair)["rows"][0]["bits_per_second"] for pair in running]
        self.values["udp write both"] = sum(both)
        self.values["udp write one"] = self._pair(["blast"], client=client)["rows"][0]["bits_per_second"]

    def _two_pings(self, names):
        client = ["--op", "send", "--size", "8", "-n", self._count(40_000)]
        self.values["udp send 8 rate"] = self._pair(["ping"], client=client)["rows"][0]["messages_per_second"]
        running = [self._begin(["ping"], client=client) for _ in range(2)]
        self.values["udp send 8 rate of two"] = sum(
            self._end(*pair)["rows"][0]["messages_per_second"] for pair in running
        )

    def _perf(self, options):
        words = ["perf", "write", "bw"]
        found = self._pair(words, server=options, client=options)
        row = found["rows"][-1]
        return row["bandwidth"]["average"]["bits_per_second"]

    def _queue_pairs(self, names):
        for count in (1, 10_000):
            depth, total = ("512", "200000") if count == 1 else ("1", "20")
            options = ["-s", "4096", "-q", str(count), "-t", depth, "-n", total]
            self.values[f"udp write {count} qp"] = self._perf(options)

    def _loss(self, names):
        plan = ["--fault", "drop=1%,delay=50us"]
        for name, recovery in (("selective", "selective-repeat:rto_low=2000,rto_high=4000"), ("go back", "go-back-n")):
            options = [*plan, "--recovery", recovery]
            client = ["--op", "write", "--size", "65536", "-n", self._count(2_000), *options]
            row = self._pair(["blast"], server=options, client=client)["rows"][0]
            self.values[f"udp loss {name}"] = row["bits_per_second"]

    def _ucx(self, names):
        program = shutil.which("ucx_perftest")
        if program is None:
            raise Failure("ucx_perftest is missing; install ucx-utils")
        for name, test, size, count in (
            ("ucx put", "ucp_put_bw", 65536, 30_000),
            ("ucx tag", "tag_bw", 65536, 30_000),
            ("ucx tag latency", "tag_lat", 8, 20_000),
        ):
            self.values[name] = self._ucx_test(program, test, size, count)

    def _ucx_test(self, program, test, size, count):
        self.port += 1
        common = [program, "-p", str(self.port)]
        load = ["-t", test, "-s", str(size), "-n", self._count(count), "-f"]
        environment = ["env", "UCX_TLS=tcp,self", "UCX_NET_DEVICES=veth"]
        serving = self._start(1, self.network.command(1, [*environment, *common]))
        end = time.monotonic() + 10
        while not self.network.listens(1, self.port) and serving.poll() is None and time.monotonic() < end:
            time.sleep(0.02)
        calling = self._start(0, self.network.command(0, [*environment, *common, ADDRESSES[1], *load]))
        try:
            out, problem = calling.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            raise Failure(f"ucx_perftest: not done after {PATIENCE} s") from None
        finally:
            for process in (calling, serving):
                if process.poll() is None:
                    process.kill()
                process.communicate()
        rows = [numbers(line.removeprefix("Final:")) for line in out.splitlines()]
        row = next((row for row in rows if len(row) == 8), None)
        if row is None:
            raise Failure(f"ucx_perftest: {last_line(problem) or 'no result'}")
        # Iterations, median latency in µs, average, overall, bandwidth in 2^20 bytes a second, overall, messages a second, overall.
        return row[1] * 1e-6 if size == 8 else row[5] * 2**20 * 8


def numbers(line):
    try:
        return [float(word) for word in line.split()]
    except ValueError:
        return []


def last_line(text):
    lines = [line for line in text.strip().splitlines() if line.strip()]
    return lines[-1].strip() if lines else ""
