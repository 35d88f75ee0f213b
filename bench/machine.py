"""A virtual machine with the kernel's Soft-RoCE (rxe), made by the interop suite, and the measurements that need it.

The emulated machine is slow, so only ratios within it mean something. In it, rxe has a veth pair whose ends are both in the initial
namespace, because rxe has no sockets in others; routes send packets between their addresses over the pair. `roce` has another veth pair
between two namespaces. Both pairs have an MTU of 4200, and each end of a test has one of the two processors.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from commands import Failure, last_line
from groups import Group
from figures import at_least, at_most
from measurements import Measurement

INTEROP = Path(__file__).resolve().parent.parent / "cli/tests/interop"
HOST, GUEST = "198.18.0.1", "198.18.0.2"
# The addresses of the two ends of the pair of rxe, and of that of roce.
RXE, ROCE = ("198.18.90.1", "198.18.90.2"), ("198.18.91.1", "198.18.91.2")

SET_UP = """set -e
ip link add v0 mtu 4200 type veth peer name v1 mtu 4200
ip address add RXE0/32 dev v0
ip address add RXE1/32 dev v1
ip link set v0 up
ip link set v1 up
for link in all v0 v1; do
    echo 1 >/proc/sys/net/ipv4/conf/$link/accept_local
    echo 0 >/proc/sys/net/ipv4/conf/$link/rp_filter
done
# What arrives is for this host; what leaves for the other end goes over the pair, although that address is local, too.
ip rule add pref 10 iif v0 lookup local
ip rule add pref 11 iif v1 lookup local
ip route add RXE1 dev v0 src RXE0 table 100
ip route add RXE0 dev v1 src RXE1 table 101
ip rule add pref 20 from RXE0 to RXE1 lookup 100
ip rule add pref 21 from RXE1 to RXE0 lookup 101
ip rule add pref 30 lookup local
ip rule del pref 0
ip neighbour replace RXE1 lladdr $(cat /sys/class/net/v1/address) dev v0 nud permanent
ip neighbour replace RXE0 lladdr $(cat /sys/class/net/v0/address) dev v1 nud permanent
rdma link add rxv0 type rxe netdev v0
rdma link add rxv1 type rxe netdev v1
ip netns add a
ip netns add b
ip link add w0 mtu 4200 netns a type veth peer name w1 mtu 4200 netns b
ip -n a address add ROCE0/24 dev w0
ip -n b address add ROCE1/24 dev w1
ip -n a link set w0 up
ip -n b link set w1 up
""".replace("RXE0", RXE[0]).replace("RXE1", RXE[1]).replace("ROCE0", ROCE[0]).replace("ROCE1", ROCE[1])


class Machine:
    """Boots at the first use and ends with the `with` statement."""

    def __init__(self, roce):
        self.roce, self.name, self.problem = str(roce), f"compare-{os.getpid()}", None
        self.is_up = self.is_ready = False
        self.port = 19000

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if not self.is_up:
            return
        try:
            self._guest("down", self.name, patience=30)
        except Failure as failure:
            # Its watchdog ends it when this process has ended.
            print(f"compare: {failure}", file=sys.stderr)

    def _guest(self, *words, patience=60):
        try:
            done = subprocess.run([INTEROP / "guest", *words], capture_output=True, text=True, timeout=patience)
        except subprocess.TimeoutExpired:
            raise Failure(f"guest {words[0]}: not done after {patience} s") from None
        if done.returncode != 0:
            raise Failure(f"in the virtual machine: {last_line(done.stderr) or last_line(done.stdout) or done.returncode}")
        return done.stdout

    def boot(self):
        """Fails for the same reason again if it failed before."""
        if self.is_ready:
            return
        if self.problem is None:
            try:
                self._boot()
                return
            except Failure as failure:
                self.problem = failure
        raise self.problem

    def _boot(self):
        if not shutil.which("qemu-system-x86_64"):
            raise Failure("qemu-system-x86_64 is missing; install qemu-system-x86")
        # The first time, the image is built from Debian's packages.
        self._guest("up", self.name, "--kernel", "6.12", "--owner", str(os.getpid()), patience=400)
        self.is_up = True
        share = Path(self._guest("share", self.name).strip())
        shutil.copy(self.roce, share / "roce")
        (share / "set-up").write_text(SET_UP)
        self._guest("run", self.name, "--", "sh", "/share/set-up")
        self.is_ready = True

    def inside(self, *words, patience=60):
        return self._guest("run", self.name, "--timeout", str(patience), "--", *words, patience=patience + 20)

    def pair(self, serve, call):
        """Runs a server in the guest on processor 1 and a client on processor 0, and returns what the client printed."""
        self.boot()
        self.port += 1
        port = str(self.port)
        fill = lambda words: [word.replace("PORT", port) for word in words]
        script = "until grep -q ':%04X .* 0A ' /proc/net/tcp* || { [ -n \"$NS\" ] && ip netns exec $NS grep -q ':%04X .* 0A ' " \
                 "/proc/net/tcp /proc/net/tcp6; }; do sleep 0.05; done" % (self.port, self.port)
        job = self._guest("run", self.name, "--timeout", "60", "--detach", "--", "taskset", "-c", "1", *fill(serve)).strip()
        try:
            namespace = serve[3] if serve[:3] == ["ip", "netns", "exec"] else ""
            self.inside("env", f"NS={namespace}", "timeout", "10", "sh", "-c", script, patience=12)
            return self.inside("taskset", "-c", "0", *fill(call))
        finally:
            self._end_job(job)

    def _end_job(self, job):
        try:
            self._guest("wait", self.name, job, "3")
        except Failure:
            try:
                self._guest("kill", self.name, job, patience=30)
            except Failure:
                pass

    def rxe(self, program, options, server="rxv1", client="rxv0"):
        """The columns of the last row of a program of perftest, over the pair of rxe."""
        common = [*options, "-p", "PORT", "-F", "-u", "18"]
        index = lambda device: ["-x", self._gid(device)]
        serve = [program, "-d", server, *index(server), *common]
        return columns(self.pair(serve, [program, "-d", client, *index(client), *common, RXE[1]]))

    def _gid(self, device):
        """The index of the GID of its IPv4 address."""
        self.boot()
        script = f"grep -l '0000:0000:0000:0000:0000:ffff:' /sys/class/infiniband/{device}/ports/1/gids/* | head -n 1"
        return self.inside("sh", "-c", script).strip().rsplit("/", 1)[-1]

    def ours(self, words, options):
        """The columns of the last row of `roce perf`, over its own pair."""
        common = ["/share/roce", "perf", *words, *options, "-p", "PORT", "-u", "18"]
        serve = ["ip", "netns", "exec", "b", *common, "-d", f"udp:{ROCE[1]}"]
        return columns(self.pair(serve, ["ip", "netns", "exec", "a", *common, "-d", f"udp:{ROCE[0]}", ROCE[1]]))

    def read_through(self, packets, count):
        """rxe READs 1 MiB messages from `roce` on the host, through the TAP of the guest with so long a queue. Returns MB/s."""
        self.boot()
        netns = f"roce-{self.name}"
        set_length = ["ip", "-n", netns, "link", "set", "tap2", "txqueuelen", str(packets)]
        done = subprocess.run(set_length, capture_output=True, text=True)
        if done.returncode != 0:
            raise Failure(f"the queue of the TAP: {last_line(done.stderr)}")
        self.port += 1
        port = ["-p", str(self.port), "-s", "1048576", "-n", str(count), "-m", "1024", "-u", "18"]
        serve = ["ip", "netns", "exec", netns, self.roce, "perf", "read", "bw", "-d", f"udp:{HOST}", "--json", *port]
        serving = subprocess.Popen(serve, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        try:
            self._await_listener(netns, serving)
            return columns(self.inside("ib_read_bw", "-d", "rxe0", "-x", self._gid("rxe0"), "-F", *port, HOST))[3]
        finally:
            try:
                serving.wait(timeout=3)
            except subprocess.TimeoutExpired:
                serving.kill()
                serving.wait()

    def _await_listener(self, netns, serving):
        end = time.monotonic() + 10
        while serving.poll() is None and time.monotonic() < end:
            found = subprocess.run(
                ["ip", "netns", "exec", netns, "ss", "-Hltn", f"sport = :{self.port}"], capture_output=True, text=True
            )
            if found.stdout.strip():
                return
            time.sleep(0.02)
        raise Failure(last_line(serving.stderr.read()) if serving.poll() is not None else "the server does not listen")


def columns(text):
    """The numbers of the last row of perftest's table."""
    rows = []
    for line in text.splitlines():
        try:
            rows.append([float(word) for word in line.split()])
        except ValueError:
            continue
    rows = [row for row in rows if len(row) > 3]
    if not rows:
        raise Failure(f"no result: {last_line(text)}")
    return rows[-1]


def groups(machine):
    """Bandwidth and latency: sizes and columns are those of perftest, MB/s of 2^20 bytes, and the typical time in µs."""
    bandwidth = lambda row: row[3] * 2**20 * 8
    latency = lambda row: row[4] * 1e-6

    def measured(name, unit, run, count):
        return Measurement({name: unit}, lambda _, count: ({name: run(count)}, None), count)

    large = lambda count: ["-s", "65536", "-n", str(count), "-m", "4096"]
    small = lambda count: ["-s", "8", "-n", str(count)]
    queue = lambda packets: lambda count: machine.read_through(packets, count) * 2**20 * 8
    return [
        Group(
            [
                measured("rxe", "Mb/s", lambda count: bandwidth(machine.rxe("ib_write_bw", large(count))), 1_000),
                measured("roce", "Mb/s", lambda count: bandwidth(machine.ours(["write", "bw"], large(count))), 3_000),
            ],
            [at_least("in a virtual machine: WRITE 64 KiB, of rxe", "roce", "rxe", 3, 6)],
            cycles=1,
            in_machine=True,
        ),
        Group(
            [
                measured("rxe", "µs", lambda count: latency(machine.rxe("ib_write_lat", small(count))), 3_000),
                measured("roce", "µs", lambda count: latency(machine.ours(["write", "lat"], small(count))), 3_000),
            ],
            [at_most("in a virtual machine: 8-byte WRITE, one way, of rxe", "roce", "rxe", 1.0, 0.5)],
            cycles=1,
            in_machine=True,
        ),
        Group(
            [measured("short", "Mb/s", queue(1_000), 20), measured("long", "Mb/s", queue(20_000), 20)],
            [at_least("READ 1 MiB by rxe, queue of 1,000 packets, of 20,000", "short", "long", 0.5, 0.9)],
            cycles=1,
            in_machine=True,
        ),
    ]
