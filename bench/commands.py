"""Runs pairs of commands on the two sides of a network and takes their results."""

import json
import os
import shutil
import subprocess
import time
from pathlib import Path

from network import ADDRESSES, TAP_ADDRESSES

PATIENCE = 60
PROGRAMS = Path(__file__).resolve().parent.parent / "target/programs/root"


class Failure(Exception):
    """A measurement that could not be made, and why."""


class Bench:
    """What measurements need: the network, the programs, and a TCP port for each pair of commands."""

    def __init__(self, network, roce, costs, short):
        self.network, self.roce, self.costs, self.short = network, str(roce), str(costs), short
        self.port = 18600

    def start(self, side, command, output=subprocess.PIPE):
        """Starts a command on a side. Where nobody reads its output it must not be kept in a pipe, which holds 64 KiB: with more, the
        process would stop."""
        command = self.network.command(side, command)
        return subprocess.Popen(command, stdout=output, stderr=subprocess.PIPE, text=True)

    def next_port(self):
        self.port += 1
        return str(self.port)

    def roce_pair(self, words, server=(), client=(), kind="udp", sides=(1, 0)):
        """The commands of a server of `roce` and of its client, each with its side, and the address that is listened on."""
        far, near = sides
        port = ["-p", self.next_port()]
        once = ["--once"] if words[0] != "perf" else []
        address = ADDRESSES[far]
        if kind == "tap" and words == ["limit"]:
            # The two sides talk about the measurement over the kernel's addresses.
            once += ["--listen", address, "--allow-peer", TAP_ADDRESSES[near]]
        elif kind == "tap":
            address = TAP_ADDRESSES[far]
        device = lambda side: ["--device", self.network.device(kind, side)]
        serve = [self.roce, *words, *device(far), *port, *once, *server]
        call = [self.roce, *words, address, *device(near), *port, "--json", *client]
        return (far, serve), (near, call), port[1] if address == ADDRESSES[far] else None

    def roce_program(self, side, name):
        """The beginning of a command that runs a program of Debian under `roce run`: an installed one, or one that
        cli/tests/programs/fetch has fetched."""
        program, libraries = shutil.which(name), []
        if program is None:
            program = str(PROGRAMS / "usr/bin" / name)
            libraries = ["env", f"LD_LIBRARY_PATH={next(PROGRAMS.glob('usr/lib/*-linux-gnu'), PROGRAMS)}"]
        if not os.access(program, os.X_OK):
            raise Failure(f"{name} is missing; install perftest, or run cli/tests/programs/fetch")
        return [self.roce, "run", "--device", self.network.device("udp", side), "--", *libraries, program]

    def run(self, *pairs, output=json.loads):
        """Starts the servers, and when all listen, their clients at once. Returns what each client printed."""
        servers, clients = [], []
        try:
            for (side, serve), _, port in pairs:
                servers.append(self.start(side, serve, subprocess.DEVNULL if port else subprocess.PIPE))
                self._await_server(servers[-1], side, port)
            for _, (side, call), _ in pairs:
                clients.append(self.start(side, call))
            end = time.monotonic() + PATIENCE
            return [output(finish(client, end)) for client in clients]
        finally:
            for process in clients + servers:
                stop(process)

    def _await_server(self, serving, side, port):
        end = time.monotonic() + 10
        while serving.poll() is None and time.monotonic() < end:
            # The connections of a tap with addresses of its own are not the kernel's.
            if self.network.listens(side, port) if port else serving.stdout.readline():
                return
            time.sleep(0.01)
        stop(serving)
        raise Failure(reason(serving.stderr.read()) or "the server does not listen")

    def roce_run(self, words, **options):
        return self.run(self.roce_pair(words, **options))[0]

    def costs_alone(self, *words, side=0):
        """The example `costs` without another side."""
        return json.loads(finish(self.start(side, [self.costs, *words]), time.monotonic() + PATIENCE))


def finish(process, end):
    """What a process prints until it ends by itself."""
    try:
        out, problem = process.communicate(timeout=max(end - time.monotonic(), 0.1))
    except subprocess.TimeoutExpired:
        raise Failure(f"not done after {PATIENCE} s") from None
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    if process.returncode != 0:
        raise Failure(reason(problem) or last_line(out or "") or f"status {process.returncode}")
    return out


def stop(process):
    """Ends a process that does not end by itself within a second."""
    try:
        process.wait(timeout=1)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def reason(problem):
    """What a command says went wrong: its line with `error:`, or its last one."""
    return next((line for line in problem.splitlines() if line.startswith("error:")), last_line(problem))


def last_line(text):
    lines = [line for line in text.strip().splitlines() if line.strip()]
    return lines[-1].strip() if lines else ""


def machine_line(roce):
    """The processors, the system, and the version under test."""
    processor = next(
        (line.split(":")[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")), "unknown"
    )
    commit = subprocess.run(
        ["git", "-C", Path(__file__).resolve().parent, "describe", "--always", "--dirty", "--abbrev=12"], capture_output=True, text=True
    ).stdout.strip()
    version = subprocess.run([roce, "--version"], capture_output=True, text=True).stdout.strip()
    return (
        f"{os.cpu_count()} processors ({processor}), Linux {os.uname().release}, {version}, "
        f"commit {commit or 'unknown'}, {time.strftime('%Y-%m-%d')}"
    )
