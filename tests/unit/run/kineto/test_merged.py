"""Files that were merged from the traces of several ranks."""

import pytest

from esprof import load
from tests.cases import kineto as case
from tests.cases.kineto import document


def merged(label, offset=0, world=2, correlation=1000):
    """The rows of a job's ranks in one file. `label(rank, pid)` is the process id, ids are moved by rank."""
    rows = []
    for rank in range(world):
        for row in case.job(rank, world=world)["traceEvents"]:
            args = dict(row.get("args", {}))
            if "correlation" in args:
                args["correlation"] += rank * correlation
            rows.append(row | {"pid": label(rank, row["pid"] + offset * rank)} | ({"args": args} if args else {}))
    return document(*rows, rank=0, world=world, groups=[case.group("0", list(range(world)))])


def same_as_single(run, tmp_path):
    single = load(case.write_job(tmp_path / "single"))
    for rank in single.ranks:
        columns = ["name", "kind", "start_ns", "dur_ns", "step", "stream", "group"]
        assert (
            run.events(rank).arrow.select(columns).to_pylist() == single.events(rank).arrow.select(columns).to_pylist()
        )


@pytest.mark.parametrize(
    "label", [lambda rank, pid: f"[TP{rank:02d}-DP00] {pid}", lambda rank, pid: f"Rank {rank}: {pid}"]
)
def test_labels_of_processes_name_the_ranks(tmp_path, label):
    run = load(case.write(tmp_path / "merged.json", merged(label, correlation=0)))
    assert (run.ranks, run.world_size, [one.code for one in run.warnings]) == ([0, 1], 2, [])
    same_as_single(run, tmp_path)


def test_labels_that_differ_in_several_numbers_are_taken_in_order(tmp_path):
    run = load(case.write(tmp_path / "merged.json", merged(lambda rank, pid: f"[TP{rank:02d}-EP{rank:02d}] {pid}")))
    assert run.ranks == [0, 1]
    assert {one.code for one in run.warnings} == {"rank-guessed"}


def test_processes_with_operations_are_ranks_with_a_warning(tmp_path):
    run = load(case.write(tmp_path / "merged.json", merged(lambda rank, pid: pid, offset=100)))
    assert run.ranks == [0, 1]
    assert {one.code for one in run.warnings} == {"rank-guessed"}
    same_as_single(run, tmp_path)


def test_gpu_rows_of_one_device_number_go_to_the_process_that_launched_them(tmp_path):
    rows = merged(lambda rank, pid: pid if pid % 100 == 0 else pid + 50 * rank, offset=0)
    for row in rows["traceEvents"]:
        row["pid"] = 0 if row["cat"] == "kernel" else row["pid"]
    same_as_single(load(case.write(tmp_path / "merged.json", rows)), tmp_path)


def test_processes_that_share_ids_are_read_as_one_and_told(tmp_path):
    run = load(case.write(tmp_path / "merged.json", merged(lambda rank, pid: pid, offset=100, correlation=0)))
    assert run.ranks == [0]
    assert "ranks-merged" in [one.code for one in run.warnings]


def test_a_trace_of_one_rank_stays_whole(tmp_path):
    odd = [case.row("Spans", 0, cat="Trace", pid="Spans"), case.row("x", 1, cat="user_annotation", pid="Traces")]
    rows = [*case.job(0)["traceEvents"], *odd]
    assert load(case.write(tmp_path / "rank0.json", document(*rows, rank=0, world=1))).ranks == [0]
