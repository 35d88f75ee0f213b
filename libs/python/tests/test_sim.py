"""Simulations."""

import polars
import pytest

import roce.sim

TWO_TO_ONE = """
name = "two to one"
[topology]
kind = "star"
hosts = 3
rate = "10Gbps"
[switch]
marking = { kmin = "5KB", kmax = "200KB", pmax = 0.1 }
[measure]
interval = "100us"
[[flows]]
kind = "incast"
degree = 2
to = "h2"
bytes = "1MB"
"""


def test_a_run_returns_tables():
    results = roce.sim.run(TWO_TO_ONE, seed=3)
    flows = polars.DataFrame(results.flows)
    assert flows["bytes"].to_list() == [1_000_000] * 2 and flows["state"].to_list() == ["complete"] * 2
    assert flows["source"].to_list() == ["h0", "h1"] and set(flows["destination"]) == {"h2"}
    assert set(flows["table"]) == {"flows.0"} and set(flows["collective"]) == {None}
    assert flows["slowdown"].min() >= 1 and flows["delivered"].to_list() == [1_000_000] * 2
    assert 1.6e-3 < flows["completion_s"].max() < 3e-3
    ports = polars.DataFrame(results.ports)
    assert len(ports) == 6 and "s0->h2" in ports["name"].to_list()
    assert ports["tx_bytes"].sum() > 2 * 2_000_000
    rates = polars.DataFrame(results.rates)
    assert set(rates["flow"]) == {0, 1} and rates["time_s"].is_sorted()
    assert polars.DataFrame(results.queues)["bytes"].max() > 5_000
    assert len(results.totals) > 5 and len(results.pauses) >= 0
    assert results.events > 1000 and results.data_packets > 1900 and results.name == "two to one"


def test_equal_seeds_give_equal_runs():
    def hashes(seed, **more):
        return roce.sim.run(TWO_TO_ONE, seed=seed, set={"host.congestion": "dcqcn"}, **more).trace_hash

    assert hashes(3) == hashes(3, threads=2) != hashes(4)


def test_a_scenario_of_the_package_and_a_file(tmp_path):
    assert "dcqcn-incast" in roce.sim.scenarios()
    path = tmp_path / "own.toml"
    path.write_text(TWO_TO_ONE)
    assert roce.sim.run(path).trace_hash == roce.sim.run(str(path)).trace_hash
    assert roce.sim.run("two-to-one", set={"stop": "1ms", "flows.0.bytes": "100KB"}).end_s == pytest.approx(1e-3)


def test_errors_name_the_line_and_the_scenario(tmp_path):
    with pytest.raises(ValueError, match="line 11: an incast of 3 needs at least 4 hosts"):
        roce.sim.run(TWO_TO_ONE.replace("degree = 2", "degree = 3"))
    with pytest.raises(ValueError, match="did you mean two-to-one"):
        roce.sim.run("two-to-on")
    with pytest.raises(FileNotFoundError):
        roce.sim.run(tmp_path / "none.toml")
    with pytest.raises(ValueError, match="there is no congestion control"):
        roce.sim.run(TWO_TO_ONE, set={"host.congestion": "none-such"})


class Halve(roce.sim.Algorithm):
    """Halves the rate at a notification, and raises it in steps."""

    made = 0

    def __init__(self, now, qpn, mtu, line_rate):
        super().__init__(now, qpn, mtu, line_rate)
        type(self).made += 1

    def on_cnp(self, now):
        self.rate = max(self.rate / 2, 1e8)
        self.next_timer = now + 50_000

    def on_timer(self, now):
        self.rate = min(self.rate + 1e8, self.line_rate)
        self.next_timer = now + 50_000 if self.rate < self.line_rate else None


def test_an_algorithm_is_a_class():
    Halve.made = 0
    without = polars.DataFrame(roce.sim.run(TWO_TO_ONE).flows)
    results = roce.sim.run(TWO_TO_ONE, algorithm=Halve)
    flows = polars.DataFrame(results.flows)
    assert Halve.made >= 2
    assert flows["cnps_handled"].sum() > 0 and without["cnps_handled"].sum() == 0
    assert flows["completion_s"].max() > without["completion_s"].max()
    assert results.trace_hash == roce.sim.run(TWO_TO_ONE, algorithm=Halve).trace_hash
    rates = polars.DataFrame(results.rates)
    assert rates["rate_bps"].min() < 6e9
    named = roce.sim.run(TWO_TO_ONE, algorithms={"halve": Halve}, set={"host.congestion": "halve"})
    assert polars.DataFrame(named.flows)["cnps_handled"].sum() > 0


def test_an_algorithm_with_a_window_sees_round_trips():
    seen = []

    class Window(roce.sim.Algorithm):
        def __init__(self, *start):
            super().__init__(*start)
            self.window = 8_000

        def on_ack(self, now, bytes, in_flight, rtt, marked):
            seen.append((now, bytes, in_flight, rtt))

    flows = polars.DataFrame(roce.sim.run(TWO_TO_ONE, algorithm=Window).flows)
    assert sum(bytes for _, bytes, _, _ in seen) == 2_000_000 and any(rtt for *_, rtt in seen)
    assert max(in_flight for _, _, in_flight, _ in seen) <= 9_024
    assert flows["state"].to_list() == ["complete"] * 2


def test_the_exception_of_an_algorithm_ends_the_run():
    class Broken(Halve):
        def on_cnp(self, now):
            raise RuntimeError("no idea")

    with pytest.raises(RuntimeError, match="no idea"):
        roce.sim.run(TWO_TO_ONE, algorithm=Broken)

    class NoRate(roce.sim.Algorithm):
        def __init__(self, *start):
            super().__init__(*start)
            self.rate = "fast"

    with pytest.raises(TypeError):
        roce.sim.run(TWO_TO_ONE, algorithm=NoRate)
    with pytest.raises(TypeError, match="not a class below"):
        roce.sim.run(TWO_TO_ONE, algorithm=int)
