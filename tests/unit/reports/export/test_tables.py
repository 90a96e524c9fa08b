"""Exports as tables."""

import csv
import io

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from esprof.analyzers.tracks.node_rows import NODES, node_rows
from esprof.reports.export.tables import write_csv, write_parquet
from tests.cases.exported import cpu_run, exported
from tests.cases.graph import EPOCH_NS

MS = 1_000_000


@pytest.fixture(scope="module")
def content():
    return exported(cpu_run(), "cpu=2x")


@pytest.fixture(scope="module")
def rows(content):
    file = io.BytesIO()
    write_parquet(node_rows(content), file)
    table = pq.read_table(file)
    assert table.schema.equals(NODES)
    return table.to_pylist()


def test_parquet_has_a_row_for_each_node_in_each_timeline(rows):
    forward = [row for row in rows if row["name"] == "secret::forward" and (row["rank"], row["step"]) == (1, 2)]
    assert [row["timeline"] for row in forward] == ["replayed", "cpu=2x"]
    for row in forward:
        assert (row["lane"], row["lane_kind"], row["class"]) == ("main", "cpu", "compute")
        assert (row["measured_start_ns"], row["measured_dur_ns"]) == (EPOCH_NS + 100 * MS, 10 * MS)
    replayed, faster = (row["replayed_end_ns"] - row["replayed_start_ns"] for row in forward)
    assert (replayed, faster) == (10 * MS, 5 * MS)


def test_collectives_have_their_number_and_bytes_on_all_ranks(rows):
    found = [row for row in rows if row["name"] == "gloo:all_reduce" and row["timeline"] == "replayed"]
    assert {row["bytes"] for row in found} == {4000}
    assert len({row["collective"] for row in found}) == 6
    assert len(found) == 12


def test_the_critical_path_runs_through_the_late_rank(rows):
    backward = [row for row in rows if "Backward" in row["name"] and row["timeline"] == "replayed" and row["step"] == 2]
    assert {row["rank"]: row["on_critical_path"] for row in backward} == {0: False, 1: True}


def test_csv_has_the_same_rows_in_microseconds(content, rows):
    file = io.BytesIO()
    write_csv(node_rows(content), file, content.start_ns)
    found = list(csv.DictReader(io.StringIO(file.getvalue().decode())))
    assert len(found) == len(rows)
    for one, row in zip(found, rows, strict=True):
        assert (one["name"], int(one["rank"])) == (row["name"], row["rank"])
        assert float(one["replayed_start_us"]) == (row["replayed_start_ns"] - content.start_ns) / 1000
        assert float(one["measured_dur_us"]) == row["measured_dur_ns"] / 1000


def test_no_name_of_the_job_is_in_a_redacted_table():
    names = pa.Table.from_batches(node_rows(exported(cpu_run(), redact=True)))["name"].to_pylist()
    assert names
    assert all(name.startswith("node-") for name in names)
