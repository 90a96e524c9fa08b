"""Exports in the trace event format."""

import io
import json
from collections import Counter

import msgspec
import numpy as np
import pytest

from esprof import load
from esprof.replay.replayed import Replayed
from esprof.reports.export.chrome import write_chrome
from tests.cases.exported import cpu_run, exported
from tests.cases.graph import nccl_ranks, run_of

KEPT = (
    "name",
    "kind",
    "start_ns",
    "dur_ns",
    "step",
    "device",
    "stream",
    "correlation",
    "group",
    "collective",
    "in_bytes",
)


def written(content):
    file = io.BytesIO()
    write_chrome(content, file)
    return file.getvalue()


def read_back(content, tmp_path):
    path = tmp_path / "export.json"
    path.write_bytes(written(content))
    return load(path)


@pytest.fixture(scope="module")
def document():
    return json.loads(written(exported(cpu_run(), "cpu=2x")))


def test_rows_have_what_the_format_asks_for(document):
    rows = document["traceEvents"]
    assert {row["ph"] for row in rows} == {"M", "X", "C", "s", "f"}
    for row in rows:
        assert isinstance(row["pid"], str)
        assert isinstance(row.get("tid", 1), int)
        assert row["ts"] >= -10_000
    named = {row["pid"]: row["args"]["name"] for row in rows if row["name"] == "process_name"}
    assert named["rank 0"] == "rank 0 secret-host, CPU"
    threads = Counter(row["tid"] for row in rows if row["name"] == "thread_name")
    assert set(threads.values()) == {1}
    assert {row["tid"] for row in rows if row["ph"] == "X"} == set(threads)


def test_arrows_begin_and_end_at_slices(document):
    rows = document["traceEvents"]
    places = {(row["pid"], row["tid"], row["ts"]) for row in rows if row["ph"] == "X"}
    arrows = [row for row in rows if row["ph"] in ("s", "f")]
    assert {(row["pid"], row["tid"], row["ts"]) for row in arrows} <= places
    assert set(Counter((row["id"], row["cat"]) for row in arrows).values()) == {2}
    assert all(row["bp"] == "e" for row in arrows if row["ph"] == "f")


@pytest.mark.parametrize("make", [cpu_run, lambda: run_of(nccl_ranks())], ids=["gloo", "nccl"])
def test_esprof_reads_its_export_back(make, tmp_path):
    run = make()
    again = read_back(exported(run, "cpu=2x"), tmp_path)
    assert (again.ranks, again.world_size) == (run.ranks, run.world_size)
    assert [warning.code for warning in again.warnings] == []
    assert [group.name for group in again.meta.groups] == [group.name for group in run.meta.groups]
    for rank in run.ranks:
        for column in KEPT:
            assert again.events(rank).arrow[column].to_pylist() == run.events(rank).arrow[column].to_pylist(), column
    assert np.array_equal(Replayed.of(again).timeline.step_ns(), Replayed.of(run).timeline.step_ns())


def test_one_rank_is_read_back(tmp_path):
    run = run_of({1: nccl_ranks()[1]}, world=2)
    again = read_back(exported(run), tmp_path)
    assert (again.ranks, again.world_size) == ([1], 2)


def test_nothing_of_the_original_names_is_in_a_redacted_file():
    run = cpu_run()
    text = written(exported(run, "cpu=2x", redact=True))
    names = {name for rank in run.ranks for name in run.events(rank).texts("name")} | {"secret-host"}
    names -= {name for name in names if name.startswith("ProfilerStep#")}
    groups = {f'"{group.name}"' for group in run.meta.groups}
    assert not [name for name in names | groups if name.encode() in text]
    assert msgspec.json.decode(text)["distributedInfo"]["pg_config"][0]["pg_name"].startswith("group-")
