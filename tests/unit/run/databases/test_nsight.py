"""Exports of Nsight Systems: processes as ranks, their events, and whole answers from them."""

import sqlite3

import pytest

from esprof import load
from esprof.analyzers import diagnose
from esprof.core.errors import InputError
from esprof.replay import answer
from tests.cases.databases import STEPS, write_nsight

BASE_NS = 1_712_000_000_000_000_000


def codes(run):
    return [warning.code for warning in run.warnings]


def test_processes_of_one_export_are_ranks_by_their_devices(tmp_path):
    run = load(write_nsight(tmp_path / "job.sqlite", device_of=lambda rank: 1 - rank))
    assert (run.ranks, run.meta.source, run.rank(0).host, run.rank(0).device) == (
        [0, 1],
        "nsight-systems",
        "node7",
        "NVIDIA H100",
    )
    pids = [run.events(rank).ints("pid")[run.events(rank).is_kind("runtime")][0] for rank in run.ranks]
    assert pids == [101, 100]
    assert codes(run) == ["rank-guessed"] * 2


def test_events_keep_their_times_names_and_launches(tmp_path):
    run = load(write_nsight(tmp_path / "rank3.sqlite", ranks=(0,)))
    assert run.ranks == [3]
    rows = [row for row in run.events(3).arrow.to_pylist() if row["step"] == 2]
    kernel = next(row for row in rows if row["kind"] == "kernel")
    call = next(row for row in rows if row["kind"] == "runtime" and row["correlation"] == kernel["correlation"])
    assert (kernel["name"], kernel["start_ns"], kernel["dur_ns"]) == ("gemm", BASE_NS + 21_000_000, 3_000_000)
    assert (kernel["device"], kernel["stream"]) == (0, 7)
    assert (call["name"], call["tid"], call["thread_role"]) == ("cudaLaunchKernel", 200, "main")
    copy = next(row for row in rows if row["kind"] == "memcpy")
    assert (copy["name"], copy["in_bytes"]) == ("Memcpy DtoH", 4096)
    assert {row["collective"] for row in rows if row["kind"] == "collective"} == {"all_reduce"}
    assert [row["name"] for row in rows if row["kind"] == "op"] == ["gemm"]


def test_a_job_is_replayed_and_its_slow_rank_named(tmp_path):
    run = load(write_nsight(tmp_path / "job.sqlite"))
    found = answer(run)
    assert len(found.steps) == STEPS - 1
    assert found.explained_pct > 90
    assert found.step_us == pytest.approx(10_000, rel=0.01)
    assert (1,) in [finding.ranks for finding in diagnose(run).findings if finding.id.startswith("ESP2")]
    even = load(write_nsight(tmp_path / "even.sqlite", slow=None))
    assert not [finding.ranks for finding in diagnose(even).findings if finding.id.startswith("ESP2")]


def test_without_nvtx_ranges_the_runtime_calls_are_replayed(tmp_path):
    run = load(write_nsight(tmp_path / "job.sqlite", marked=False))
    assert codes(run) == ["steps-by-block", "rank-guessed"] * 2
    found = answer(run)
    assert found.unit == "block"
    assert found.coverage.collectives == found.coverage.collectives_matched > 0


def test_an_export_without_gpu_work_or_broken_is_refused(tmp_path):
    with pytest.raises(InputError, match="has no process that used a GPU"):
        load(write_nsight(tmp_path / "empty.sqlite", ranks=()))
    path = write_nsight(tmp_path / "broken.sqlite")
    path.write_bytes(path.read_bytes()[:5_000])
    with pytest.raises(InputError, match=r"broken database|SQLite database"):
        load(path)
    path = write_nsight(tmp_path / "bytes.sqlite")
    path.write_bytes(path.read_bytes().replace(b"CREATE TABLE", b"CREATE T\xffBLE", 1))
    with pytest.raises(InputError, match="SQLite database"):
        load(path)


def test_an_export_above_the_memory_limit_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("ESPROF_MEMORY_LIMIT", "1000")
    with pytest.raises(InputError, match="larger than the memory limit"):
        load(write_nsight(tmp_path / "job.sqlite"))


def test_another_database_is_named(tmp_path):
    with sqlite3.connect(tmp_path / "mine.db") as database:
        database.execute("CREATE TABLE people (name TEXT)")
    database.close()
    with pytest.raises(InputError, match="SQLite database"):
        load(tmp_path / "mine.db")
