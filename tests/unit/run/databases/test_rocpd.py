"""Databases of rocprofv3 and RPD."""

import sqlite3

import pytest

from esprof import load
from esprof.core.errors import InputError
from tests.cases.databases import write_rocpd, write_rpd


@pytest.mark.parametrize("write", [write_rocpd, write_rpd])
def test_kernels_copies_and_calls_are_read(tmp_path, write):
    run = load(write(tmp_path / "results.db"))
    assert (run.ranks, run.meta.source) == ([0], "rocprof")
    events = {row["kind"]: row for row in run.events(0).arrow.to_pylist()}
    call, kernel, copy = events["runtime"], events["kernel"], events["memcpy"]
    assert (call["name"], call["tid"], call["start_ns"]) == ("hipLaunchKernel", 4712, 1_000)
    assert kernel["name"].startswith("Cijk_Ailk")
    assert (kernel["device"], kernel["stream"], kernel["dur_ns"]) == (3, 1, 5_000)
    assert kernel["correlation"] == call["correlation"] is not None
    assert (copy["correlation"], copy["dur_ns"]) == (None, 500)
    assert kernel["step"] == call["step"]


def test_roctx_ranges_are_operations(tmp_path):
    events = load(write_rocpd(tmp_path / "results.db")).events(0)
    assert [row["name"] for row in events.arrow.to_pylist() if row["kind"] == "op"] == ["forward"]


@pytest.mark.parametrize("value", [None, "soon"])
def test_events_without_an_end_are_left_out(tmp_path, value):
    path = write_rocpd(tmp_path / "results.db")
    with sqlite3.connect(path) as database:
        (table,) = database.execute("SELECT name FROM sqlite_master WHERE name LIKE 'rocpd_memory_copy%'").fetchone()
        database.execute(f'UPDATE "{table}" SET "end" = ?', (value,))
    run = load(path)
    assert "memcpy" not in run.events(0).texts("kind")
    assert [one.message for one in run.warnings if one.code == "events-left-out"] == [
        "rank 0: events without a begin or an end were left out: 1"
    ]


def test_a_database_of_events_without_an_end_is_refused(tmp_path):
    path = write_rpd(tmp_path / "results.db")
    with sqlite3.connect(path) as database:
        database.execute('UPDATE rocpd_api SET "end" = NULL')
        database.execute('UPDATE rocpd_op SET "end" = NULL')
    with pytest.raises(InputError, match="has no event with a begin and an end"):
        load(path)


def test_a_process_without_a_number_is_the_last_rank(tmp_path):
    path = write_rpd(tmp_path / "results.db")
    with sqlite3.connect(path) as database:
        database.execute("INSERT INTO rocpd_api SELECT id + 1, NULL, tid, start, end, apiName_id FROM rocpd_api")
        database.execute(
            "INSERT INTO rocpd_op SELECT id + 10, gpuId, queueId, start + 9, end + 9, description_id, opType_id "
            "FROM rocpd_op WHERE id = 30"
        )
        database.execute("INSERT INTO rocpd_api_ops SELECT id + 1, api_id + 1, op_id + 10 FROM rocpd_api_ops")
    run = load(path)
    assert [len(run.events(rank)) for rank in (0, 1)] == [3, 2]  # its copy is of the process with a number
