"""`esprof.load`: what it opens, how it finds each file's rank, and what it refuses."""

import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from pathlib import Path

import pytest

from esprof import load
from esprof.core.errors import InputError
from esprof.run.load import load as load_function
from esprof.run.run import RankMeta, RunMeta
from esprof.run.schema import EVENTS, table
from tests.cases import kineto as case
from tests.cases.kineto import document, row, step
from tests.cases.run_directory import write_run


def trace(*, rank=None, world=None, late_us=0, **fields):
    rows = case.moved([step(1, 0, 100), row("aten::mm", 10)], late_us)
    return document(*rows, rank=rank, world=world, **fields)


def folder(path: Path, **files) -> Path:
    """A folder of traces: `name=document`, each written as `name.json`."""
    for name, content in files.items():
        case.write(path / f"{name}.json", content)
    return path


def codes(run):
    return [warning.code for warning in run.warnings]


def test_the_public_name_is_the_function():
    assert load is load_function


# What it opens


def test_one_file(tmp_path):
    run = load(case.write(tmp_path / "trace.json.gz", trace(rank=0, world=1, host_name="node7")))
    assert (run.ranks, run.world_size, run.meta.source, run.rank(0).host) == ([0], 1, "kineto", "node7")
    assert run.warnings == ()


def test_a_folder_passes_over_hidden_and_foreign_files(tmp_path):
    folder(tmp_path, b=trace(rank=1, world=2), a=trace(rank=0, world=2))
    (tmp_path / ".partial.json").write_text("{")
    (tmp_path / "notes.txt").write_text("hello")
    assert load(tmp_path).ranks == [0, 1]
    assert load(str(tmp_path)).warnings == ()


def test_a_pattern(tmp_path):
    folder(tmp_path, a0=trace(rank=0, world=2), a1=trace(rank=1, world=2), b0=trace(rank=0, world=2))
    assert load(f"{tmp_path}/a*.json").ranks == [0, 1]


def test_a_file_whose_name_looks_like_a_pattern(tmp_path):
    assert load(case.write(tmp_path / "trace[1]*.json", trace(rank=0))).ranks == [0]


def test_a_list_of_files_and_folders(tmp_path):
    folder(tmp_path / "node0", a=trace(rank=0, world=3), b=trace(rank=1, world=3))
    last = case.write(tmp_path / "c.json", trace(rank=2, world=3))
    assert load([tmp_path / "node0", last]).ranks == [0, 1, 2]


def run_directory(path: Path) -> Path:
    write_run(
        path,
        RunMeta(world_size=1, ranks=(RankMeta(rank=0),)),
        {("events", 0): table({"name": ["aten::mm"], "kind": ["op"], "start_ns": [1], "dur_ns": [2]}, EVENTS)},
    )
    return path


def test_a_run_directory(tmp_path):
    run = load(run_directory(tmp_path / "run"))
    assert (run.meta.source, run.events(0).texts("name")) == ("esprof", ["aten::mm"])
    with pytest.raises(InputError, match="is a Run directory"):
        load([tmp_path / "run", case.write(tmp_path / "a.json", trace(rank=1))])


def test_a_pattern_of_one_folder_opens_it(tmp_path):
    alone = run_directory(tmp_path / "run-a")
    assert load(f"{tmp_path}/run-*").path == load(alone).path
    folder(tmp_path / "traces-a", a=trace(rank=0, world=2), b=trace(rank=1, world=2))
    assert load(f"{tmp_path}/traces-*").ranks == [0, 1]


def test_a_pattern_of_several_runs_names_one_of_them(tmp_path):
    first = run_directory(tmp_path / "run-a")
    run_directory(tmp_path / "run-b")
    with pytest.raises(InputError, match="is a Run directory") as caught:
        load(f"{tmp_path}/run-*")
    assert caught.value.path == first
    assert "esprof merge" in caught.value.remedy


def test_a_pattern_may_match_a_folder_that_is_no_trace(tmp_path):
    folder(tmp_path, a0=trace(rank=0, world=1))
    (tmp_path / "a1").mkdir()
    run = load(f"{tmp_path}/a*")
    assert (run.ranks, codes(run)) == ([0], ["trace-unreadable"])


@pytest.mark.integration
def test_an_executor_of_other_processes_reads_the_same(tmp_path):
    folder(tmp_path, a=trace(rank=0, world=3), b=trace(rank=1, world=3), c=b"{")
    here = load(tmp_path)
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as processes:
        there = load(tmp_path, processes)
    assert (there.meta, there.warnings) == (here.meta, here.warnings)
    assert all(there.events(rank).arrow.equals(here.events(rank).arrow) for rank in here.ranks)


class Counting(ThreadPoolExecutor):
    tasks = 0

    def submit(self, *args, **kwargs):
        self.tasks += 1
        return super().submit(*args, **kwargs)


def test_a_given_executor_reads_each_file_as_a_task_of_its_own(tmp_path):
    folder(tmp_path, **{f"r{rank}": trace(rank=rank, world=5) for rank in range(5)})
    with Counting(1) as one:
        assert load(tmp_path, one).ranks == list(range(5))
    assert one.tasks == 5


# Ranks


def test_rank_from_the_trace_before_the_name(tmp_path):
    assert load(case.write(tmp_path / "rank7.json", trace(rank=2, world=4))).ranks == [2]


@pytest.mark.parametrize(
    ("name", "rank"),
    [("rank3.pt.trace.json", 3), ("rank-12.Apr_03.json", 12), ("job_RANK_5.json", 5), ("trace.rank.0.json", 0)],
)
def test_rank_from_the_name(tmp_path, name, rank):
    run = load(case.write(tmp_path / name, trace()))
    assert (run.ranks, run.world_size) == ([rank], rank + 1)
    assert "rank-guessed" not in codes(run)


def test_a_lone_trace_without_a_rank_is_rank_0(tmp_path):
    run = load(case.write(tmp_path / "trace.json", trace()))
    assert (run.ranks, run.world_size, codes(run)) == ([0], 1, [])


def test_traces_that_do_not_tell_take_the_free_ranks_in_order(tmp_path):
    folder(tmp_path, a=trace(), b=trace(rank=0, world=3), c=trace())
    run = load(tmp_path)
    assert run.ranks == [0, 1, 2]
    assert [(w.code, w.ranks) for w in run.warnings] == [("rank-guessed", (1,)), ("rank-guessed", (2,))]
    assert "a.json" in run.warnings[0].message


def test_missing_ranks_are_named(tmp_path):
    run = load(folder(tmp_path, a=trace(rank=1, world=8), b=trace(rank=5, world=8)))
    (warning,) = run.warnings
    assert (warning.code, warning.ranks) == ("rank-missing", (0, 2, 3, 4, 6, 7))
    assert "ranks 0, 2–4, 6–7" in warning.message


def test_a_broken_file_among_good_ones_is_a_warning(tmp_path):
    folder(tmp_path, a=trace(rank=0, world=2), b=b'{"traceEvents": [')
    run = load(tmp_path)
    assert run.ranks == [0]
    assert codes(run) == ["trace-unreadable", "rank-missing"]
    assert str(tmp_path / "b.json") in run.warnings[0].message


def test_warnings_of_a_trace_name_its_rank(tmp_path):
    run = load(case.write(tmp_path / "rank1.json", document(row("aten::mm", 0), world=2)))
    assert [(w.code, w.ranks) for w in run.warnings] == [("rank-missing", (0,)), ("no-steps", (1,))]


def test_a_file_name_that_is_not_utf_8_can_be_shown(tmp_path):
    for name in (b"\xff.json", b"\xfe.json"):
        try:
            os.close(os.open(os.fsencode(tmp_path) + b"/" + name, os.O_CREAT | os.O_WRONLY))
        except OSError:
            pytest.skip("this file system refuses names that are not UTF-8")
        case.write(tmp_path / os.fsdecode(name), trace())
    case.write(tmp_path / os.fsdecode(b"\xfd.json"), b"{")
    for warning in load(tmp_path).warnings:
        warning.message.encode()


# Groups and steps


def test_groups_of_all_ranks_are_joined(tmp_path):
    groups = {
        rank: [case.group("0", [0, 1, 2, 3]), case.group("1", [rank // 2 * 2, rank // 2 * 2 + 1])] for rank in (0, 2)
    }
    run = load(folder(tmp_path, **{f"r{rank}": trace(rank=rank, world=4, groups=groups[rank]) for rank in groups}))
    assert {group.name: group.ranks for group in run.meta.groups} == {
        "0-3": (0, 1, 2, 3),
        "0-1": (0, 1),
        "2-3": (2, 3),
    }


def test_steps_come_from_the_trace(tmp_path):
    rows = [step(4, 0, 100), step(5, 100, 50), row("aten::mm", 10)]
    steps = load(case.write(tmp_path / "a.json", document(*rows))).steps(0).arrow.to_pylist()
    start = case.EPOCH_US * 1000
    assert [(s["step"], s["start_ns"], s["dur_ns"], s["phase"]) for s in steps] == [
        (4, start, 100_000, "timed"),
        (5, start + 100_000, 50_000, "timed"),
    ]


def test_without_steps_the_whole_window_is_one(tmp_path):
    run = load(case.write(tmp_path / "a.json", document(row("aten::mm", 5, 20), row("aten::add", 80, 40))))
    (only,) = run.steps(0).arrow.to_pylist()
    assert (only["step"], only["dur_ns"], only["phase"]) == (0, 115_000, "timed")
    assert codes(run) == ["no-steps"]
    assert len(run.stages(0)) == len(run.stacks(0)) == 0


def test_without_steps_those_that_optimizers_end_are_the_runs(tmp_path):
    rows = [row("aten::mm", 0), *(row("Optimizer.step#SGD.step", at, 10, cat="user_annotation") for at in (90, 190))]
    steps = load(case.write(tmp_path / "a.json", document(*rows))).steps(0)
    assert (steps.ints("step").tolist(), steps.ints("dur_ns").tolist()) == ([0, 1], [100_000, 100_000])


# What it refuses


@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({"a": trace(rank=1), "b": trace(rank=1)}, "both a.json and b.json are of rank 1"),
        ({"rank1": trace(), "x-rank-1": trace()}, "both rank1.json and x-rank-1.json are of rank 1"),
        ({"a": trace(rank=0, world=2), "b": trace(rank=1, world=4)}, "world sizes are 2, 4"),
        ({"a": trace(rank=0), "b": trace(rank=1, late_us=3_700_000_000)}, "more than an hour apart"),
    ],
)
def test_two_runs_mixed(tmp_path, files, reason):
    with pytest.raises(InputError, match="not of one run") as caught:
        load(folder(tmp_path, **files))
    assert reason in caught.value.reason
    assert caught.value.remedy


def test_windows_minutes_apart_may_be_of_one_run(tmp_path):
    assert load(folder(tmp_path, a=trace(rank=0), b=trace(rank=1, late_us=60_000_000))).ranks == [0, 1]


def test_an_empty_folder(tmp_path):
    with pytest.raises(InputError, match=r"contains no run\.json, no trace") as caught:
        load(tmp_path)
    assert caught.value.path == tmp_path


@pytest.mark.parametrize("name", ["absent", "absent/*.json", "absent/rank0.json", "x" * 5000])
def test_nothing_there(tmp_path, name):
    with pytest.raises(InputError) as caught:
        load(tmp_path / name)
    assert caught.value.remedy


def test_no_name_at_all():
    with pytest.raises(InputError, match="no trace was named"):
        load([])


@pytest.mark.parametrize("sources", ["", [""], ["trace.json", ""]])
def test_an_empty_name_is_not_the_current_folder(tmp_path, monkeypatch, sources):
    run_directory(tmp_path / "run")
    case.write(tmp_path / "run" / "trace.json", trace(rank=0))
    monkeypatch.chdir(tmp_path / "run")
    with pytest.raises(InputError, match="the name of the run is empty") as caught:
        load(sources)
    assert caught.value.remedy


def test_where_nothing_reads_the_first_fault_is_told(tmp_path):
    folder(tmp_path, a=b"{", b=b"[")
    with pytest.raises(InputError, match="not valid JSON") as caught:
        load(tmp_path)
    assert caught.value.path == tmp_path / "a.json"


def test_a_foreign_json_alone_is_no_trace(tmp_path):
    with pytest.raises(InputError, match="no Kineto trace"):
        load(case.write(tmp_path / "config.json", {"learning_rate": 0.1}))


def test_a_folder_whose_traces_lie_one_level_below_points_to_them(tmp_path):
    for name in ("epoch-1", "epoch-2"):
        folder(tmp_path / name, rank0=trace(rank=0, world=1))
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="its folders do: epoch-1, epoch-2") as error:
        load(tmp_path)
    assert f"'{tmp_path}/*/*'" in error.value.remedy
    assert load(f"{tmp_path}/epoch-1/*").ranks == [0]


def test_a_folder_of_runs_points_to_them(tmp_path):
    meta = RunMeta(world_size=1, ranks=(RankMeta(rank=0),))
    write_run(tmp_path / "my-run", meta, {("events", 0): table({}, EVENTS)})
    with pytest.raises(InputError, match="its folders do: my-run"):
        load(tmp_path)
