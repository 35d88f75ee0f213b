"""Two network namespaces with one veth pair between them for the kernel and one for the bridges that taps are ports of."""

import os
import subprocess
import time

MTU = 4200
ADDRESSES = ("198.18.80.1", "198.18.80.2")
TAP_ADDRESSES = ("198.18.81.1", "198.18.81.2")


def ip(*words):
    done = subprocess.run(["ip", *words], capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"compare: ip {' '.join(words)}: {done.stderr.strip()}")


class Network:
    """Exists inside a `with` statement."""

    def __init__(self):
        self.names = [f"roce-compare-{os.getpid()}-{side}" for side in "ab"]

    def __enter__(self):
        try:
            self._make()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for name in self.names:
            subprocess.run(["ip", "netns", "del", name], stderr=subprocess.DEVNULL)

    def _make(self):
        near, far = self.names
        for name in self.names:
            ip("netns", "add", name)
            ip("-n", name, "link", "set", "lo", "up")
        for link in ("veth", "port"):
            ip("link", "add", link, "mtu", str(MTU), "netns", near, "type", "veth", "peer", link, "mtu", str(MTU), "netns", far)
        for name, address in zip(self.names, ADDRESSES):
            ip("-n", name, "addr", "add", f"{address}/24", "dev", "veth")
            ip("-n", name, "link", "set", "veth", "up")
            ip("-n", name, "link", "add", "bridge", "mtu", str(MTU), "type", "bridge")
            ip("-n", name, "tuntap", "add", "roce0", "mode", "tap")
            for port in ("port", "roce0"):
                ip("-n", name, "link", "set", port, "mtu", str(MTU), "master", "bridge", "up")
            ip("-n", name, "link", "set", "bridge", "up")
        for name in self.names:
            self._await_running(name)

    @staticmethod
    def _await_running(name):
        """The kernel says up to a second late that a link is up, and UCX uses none before."""
        end = time.monotonic() + 5
        while time.monotonic() < end:
            shown = subprocess.run(["ip", "-n", name, "link", "show", "veth"], capture_output=True, text=True).stdout
            if "state UP" in shown:
                return
            time.sleep(0.05)
        raise SystemExit(f"compare: the link veth in {name} does not come up")

    def device(self, kind, side):
        """What `--device` is on this side."""
        if kind == "udp":
            return f"udp:{ADDRESSES[side]}"
        if kind == "tap":
            return f"tap:roce0,ip={TAP_ADDRESSES[side]}/24"
        return f"{kind}:veth"

    def command(self, side, command, processor=None):
        """The command in the namespace of this side, on one processor: its own, unless another is named."""
        processor = side % os.cpu_count() if processor is None else processor
        return ["ip", "netns", "exec", self.names[side], "taskset", "-c", str(processor), *command]

    def listens(self, side, port):
        """Whether something listens to the TCP port on this side."""
        found = subprocess.run(
            ["ip", "netns", "exec", self.names[side], "ss", "-Hltn", f"sport = :{port}"], capture_output=True, text=True
        )
        return bool(found.stdout.strip())
