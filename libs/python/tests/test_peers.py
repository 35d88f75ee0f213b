"""Devices, connected ends, bridges and the fixture."""

import os
import threading

import pytest

import roce
from roce import capture


def test_every_operation(roce_pair):
    near, far = roce_pair
    near.write(near.remote, b"hello").wait(timeout=10)
    assert far.memory(0, 5) == b"hello"
    far.set_memory(8, (41).to_bytes(8, "little"))
    assert near.read(near.remote.part(0, 5)).wait(timeout=10) == b"hello"
    number = near.remote.part(8, 8)
    assert near.fetch_add(number, 1).wait(timeout=10) == 41
    assert near.compare_swap(number, 42, 7).wait(timeout=10) == 42
    assert far.memory(8, 8) == (7).to_bytes(8, "little")
    sent = near.send(b"message")
    assert far.receive(timeout=10) == b"message"
    assert sent.wait(timeout=10) is None
    with pytest.raises(ValueError, match="returned its result before"):
        sent.wait()
    assert near.qpn != far.qpn


@pytest.mark.roce(fault="drop=5%", seed=3, memory=1 << 20)
def test_losses_are_repaired(roce_pair):
    near, far = roce_pair
    content = os.urandom(1 << 20)
    near.write(near.remote, content).wait(timeout=60)
    assert far.memory() == content


def test_errors_are_exceptions(roce_pair):
    near, _ = roce_pair
    with pytest.raises(ValueError, match="too long"):
        near.send(bytes(5000))
    with pytest.raises(ValueError):
        near.write(near.remote, bytes(70_000))
    with pytest.raises(ValueError, match="has only 65536 bytes"):
        near.remote.part(65_000, 600)
    with pytest.raises(TimeoutError, match="time limit"):
        near.receive(timeout=0.01)
    with pytest.raises(ValueError, match="not a time limit"):
        near.receive(timeout=-1)
    wrong = roce.RemoteMemory(near.remote.address, 4, near.remote.r_key ^ 1)
    with pytest.raises(ValueError):
        near.write(wrong, b"x").wait(timeout=10)
    near.close()
    with pytest.raises(ValueError, match="the peer is closed"):
        near.send(b"x")
    with pytest.raises(ValueError, match="unknown|expected|no"):
        roce.Device("udp:127.0.0.1", fault="lose=1%")
    with pytest.raises(ValueError):
        roce.Device("wifi:127.0.0.1")


def test_devices_connect_by_address():
    with roce.Device("udp:127.0.0.3") as server, server.listen() as listener:
        found = []
        thread = threading.Thread(target=lambda: found.append(listener.accept(timeout=10)))
        thread.start()
        with roce.Device("udp:127.0.0.4", seed=1) as client, client.connect(listener.address, timeout=10) as near:
            thread.join()
            near.send(b"over there").wait(timeout=10)
            assert found[0].receive(timeout=10) == b"over there"
            assert client.counters()["rdma_tx_packets"] > 0 and client.address == "127.0.0.4"
            found[0].close()
        with pytest.raises(ValueError, match="is closed"):
            client.counters()
        with pytest.raises(TimeoutError):
            listener.accept(timeout=0.05)


def test_a_capture_has_the_packets_of_the_pair(tmp_path):
    path = tmp_path / "pair.pcapng"
    with roce.pair(capture=path, seed=5) as (near, far):
        near.write(near.remote, bytes(3000)).wait(timeout=10)
    operations = [packet.parse()[roce.layers.BTH].opcode_name for packet in capture.packets(path)]
    assert "RC_RDMA_WRITE_FIRST" in operations and "RC_ACKNOWLEDGE" in operations


def test_the_fixture_writes_captures(pytester):
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.roce(memory=8)
        def test_fixture(roce_pair):
            near, far = roce_pair
            near.write(near.remote, b"12345678").wait(timeout=10)
            assert far.memory() == b"12345678"
        """
    )
    result = pytester.runpytest_subprocess("--roce-capture", "captures")
    result.assert_outcomes(passed=1)
    assert len(capture.read(pytester.path / "captures" / "test_fixture.pcapng")) > 4


def test_a_bridge_says_why_it_cannot_start():
    with pytest.raises((ValueError, OSError), match="none0"):
        roce.Bridge("raw:none0", "raw:none1")
    with pytest.raises(ValueError, match="a bridge needs two"):
        roce.Bridge("raw:a", "raw:a")
    with pytest.raises(ValueError, match="line 1"):
        roce.Bridge("raw:a", "raw:b", settings="drops = 1")


def can_make_interfaces():
    """Returns whether this process may create interfaces. With ROCE_TEST_REQUIRE=all, the test runs in any case."""
    return os.environ.get("ROCE_TEST_REQUIRE") == "all" or os.geteuid() == 0 and os.path.exists("/dev/net/tun")


@pytest.mark.skipif(not can_make_interfaces(), reason="needs root and /dev/net/tun")
def test_a_bridge_forwards_until_it_is_closed(tmp_path):
    path = tmp_path / "bridge.pcapng"
    with roce.Bridge("tap:rocepy0", "tap:rocepy1", settings='[left]\nfault = "drop=1%"', capture=path) as bridge:
        left, right = bridge.counters
        assert left["packets"] == right["packets"] == 0 and "fault_dropped" in left
    bridge.close()
    assert list(capture.packets(path)) is not None
