"""Captures as tables."""

import datetime

import polars
import pyarrow
import pytest
from places import ROOT

import roce
from roce import capture

OPERATIONS = ROOT / "pcaps" / "rc-operations.pcapng"


def test_a_table_has_a_row_for_each_packet(capture_path):
    table = capture.read(capture_path)
    frame = capture.to_polars(table)
    packets = list(capture.packets(capture_path))
    assert len(table) == len(frame) == len(packets)
    assert frame["number"].to_list() == [packet.number for packet in packets]
    assert frame["length"].to_list() == [packet.length for packet in packets]
    # The table and the layers are two ways to read a packet.
    for row, packet in zip(frame.iter_rows(named=True), packets):
        if packet.link is None:
            continue
        headers = packet.parse()
        bth = headers.get(roce.layers.BTH)
        assert (row["psn"], row["dest_qp"]) == ((bth.psn, bth.dest_qp) if bth else (None, None))
        assert row["protocol"] == headers.protocol
        assert row["icrc_ok"] == (headers.icrc_ok if bth else None)
        for name, layer, field in [
            ("va", roce.layers.RETH, "va"), ("msn", roce.layers.AETH, "msn"), ("q_key", roce.layers.DETH, "q_key"),
            ("original", roce.layers.AtomicAckETH, "original"), ("immediate", roce.layers.ImmDt, "data"),
            ("source_port", roce.layers.UDP, "source_port"), ("vlan", roce.layers.VLAN, "vid"),
        ]:  # fmt: skip
            header = headers.get(layer)
            if header is not None and len(header.raw) >= header.header.length:
                assert row[name] == getattr(header, field), (row["number"], name)


def test_values_of_an_operation():
    frame = capture.to_polars(capture.read(OPERATIONS))
    assert frame["icrc_ok"].all() and set(frame["protocol"]) == {"RoCE v2"}
    writes = frame.filter(polars.col("operation").cast(str).str.starts_with("RC_RDMA_WRITE_"))
    assert len(writes) > 0 and writes["destination_port"].unique().to_list() == [4791]
    answers = frame.filter(polars.col("operation") == "RC_ACKNOWLEDGE")["answer"].cast(str)
    assert len(answers) > 0 and all(answer.startswith("ACK") for answer in answers)
    assert frame["time"].dtype == polars.Datetime("ns", "UTC")
    first = next(capture.packets(OPERATIONS))
    assert frame["time"][0] - first.time < datetime.timedelta(microseconds=1)
    managed = capture.to_polars(capture.read(ROOT / "pcaps" / "rxe" / "cm-rping.pcap"))
    assert set(managed["cm"].drop_nulls().cast(str)) == {"REQ", "REP", "RTU", "DREQ", "DREP"}


def test_pandas_and_pyarrow_read_the_columns():
    table = capture.read(OPERATIONS)
    frame = capture.to_pandas(table)
    assert list(frame.columns) == table.column_names
    assert frame["psn"].notna().all() and frame["va"].isna().any()
    arrow = pyarrow.table(table)
    assert arrow.num_rows == len(table) and arrow.schema.field("va").type == pyarrow.uint64()
    assert pyarrow.schema(table).names == table.column_names


def test_errors_are_exceptions_of_python(tmp_path):
    with pytest.raises(FileNotFoundError, match="none.pcap"):
        capture.read(tmp_path / "none.pcap")
    damaged = tmp_path / "damaged.pcapng"
    damaged.write_bytes(OPERATIONS.read_bytes()[:-7])
    with pytest.raises(ValueError, match="ends|end"):
        capture.read(damaged)
    damaged.write_bytes(b"no capture at all")
    with pytest.raises(ValueError):
        list(capture.packets(damaged))
