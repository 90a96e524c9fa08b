"""Ranks that are built and contracted one by one, against the graph of the whole job."""

from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import replace
from multiprocessing import get_context

import msgspec
import numpy as np
import pytest

import esprof
from benchmarks.known.jobs import SHAPES, job
from benchmarks.known.kineto import write
from benchmarks.known.machine import run
from benchmarks.skeletons import compared, compared_program
from esprof.core.errors import InputError, UsageError
from esprof.replay.dfg import JOIN_LANE
from esprof.replay.engine.timeline import replay
from esprof.replay.over_ranks import RankWorkers
from esprof.replay.replayed import Replayed, answer
from esprof.replay.skeleton import large
from esprof.replay.skeleton.contract import contract
from esprof.replay.skeleton.joined import CyclesAcrossRanks, join
from esprof.replay.skeleton.large import LargeReplay, replayed
from esprof.replay.skeleton.ranks import with_gpu_ends
from esprof.run.run import Run
from tests.cases.exported import cpu_run
from tests.cases.graph import call, kernel, launched, nccl, nccl_ranks, op, run_of, step
from tests.cases.random_graphs import dfg_of
from tests.cases.run_directory import write_run

OWN = ("what_if", "timing_s")
"""What the answer of a large run has of its own."""


def both_answers(run):
    whole = answer(Replayed.of(run))
    by_rank = answer(LargeReplay.by_rank(run))
    return [
        {name: value for name, value in msgspec.to_builtins(one).items() if name not in OWN} for one in (whole, by_rank)
    ]


@pytest.mark.parametrize("hosts", [None, {0: "a", 1: "b"}])
def test_the_answer_of_ranks_built_one_by_one_is_that_of_the_whole_graph(hosts):
    whole, by_rank = both_answers(run_of(nccl_ranks(), hosts=hosts))
    assert by_rank == whole
    assert whole["graph"]["nodes"] > 10


def test_ranks_that_compute_on_cpus_have_the_same_answer():
    whole, by_rank = both_answers(cpu_run())
    assert by_rank == whole


def several_steps(rank):
    """Six steps on a GPU with two all-reduces each, whose order changes, and durations that do, too."""
    rows, end = [], 0.0
    for number in range(1, 7):
        begin, end = end, end + 900 + 10 * number
        rows += [step(number, begin, end), op("aten::mm", begin, 90 + rank * 7 * number)]
        for one in (0, 1):
            at, done = begin + 150 + 250 * one, begin + 300 + 250 * one + 3 * number
            rows += nccl(at, at + 10 + rank * number, done, 10 * number + one)
        rows += [op("aten::add", begin + 700, 90)]
    return rows


def test_steps_held_out_are_predicted_alike():
    whole, by_rank = both_answers(run_of({rank: several_steps(rank) for rank in (0, 1, 2)}))
    assert by_rank == whole
    assert len(whole["prediction"]["held_out"]) == 3


def test_a_rank_alone_has_no_peers():
    whole, by_rank = both_answers(run_of({0: [step(1, 0, 100), op("aten::mm", 0, 90)]}))
    assert by_rank == whole


def test_work_from_before_the_window_is_warned_of():
    rows = [
        op("aten::mm", 0, 100),
        *launched("gemm", 50, 5000, 1000, 1),
        call("cudaStreamSynchronize", 120, 5900, 2),
        op("aten::item", 6020, 80),
    ]
    whole, by_rank = both_answers(run_of({0: rows, 1: rows}))
    assert by_rank == whole
    assert "work-before-window" in {one["code"] for one in whole["warnings"]}


def test_an_executor_of_threads_gives_the_same():
    with ThreadPoolExecutor(2) as pool:
        at_once = LargeReplay.by_rank(cpu_run(), workers=RankWorkers(pool))
    one_by_one = LargeReplay.by_rank(cpu_run())
    assert replay(at_once.built.dfg).end_ns.tolist() == replay(one_by_one.built.dfg).end_ns.tolist()
    assert at_once.path == one_by_one.path


@pytest.mark.slow
def test_processes_that_open_the_run_by_name_give_the_same(tmp_path):
    run = run_of({rank: several_steps(rank) for rank in (0, 1, 2)})
    write_run(tmp_path / "run", run.meta, {("events", rank): run.events(rank) for rank in run.ranks})
    run = esprof.load(tmp_path / "run")
    with ProcessPoolExecutor(2, get_context("spawn")) as pool:
        at_once = LargeReplay.by_rank(run, workers=RankWorkers(pool))
    one_by_one = LargeReplay.by_rank(run)
    assert replay(at_once.built.dfg).end_ns.tolist() == replay(one_by_one.built.dfg).end_ns.tolist()
    assert at_once.path == one_by_one.path


def test_runs_are_replayed_rank_by_rank_above_a_size(monkeypatch):
    run = cpu_run()
    assert type(replayed(run)) is Replayed
    events = sum(meta.events for meta in run.meta.ranks)
    monkeypatch.setattr(large, "MAX_EVENTS", events - 1)
    found = replayed(run)
    assert type(found) is LargeReplay
    (price,) = answer(found, ["cpu=2x"]).what_if
    assert price.answered
    assert price.predicted_us == answer(run, ["cpu=2x"]).what_if[0].predicted_us
    with pytest.raises(UsageError):
        answer(found, ["gpu=fast"])


def test_a_run_whose_ranks_form_a_cycle_is_replayed_whole(monkeypatch):
    def in_a_cycle(*_, **options):
        raise CyclesAcrossRanks

    monkeypatch.setattr(large, "MAX_EVENTS", 0)
    monkeypatch.setattr(LargeReplay, "by_rank", in_a_cycle)
    assert type(replayed(cpu_run())) is Replayed


def skeleton_of(first, second):
    """The skeleton of a rank that comes to the collective `first` and then to `second`."""
    dfg = dfg_of([0, JOIN_LANE, 0, JOIN_LANE], [1, 0, 1, 0], [(0, 1, 0), (1, 2, 0), (2, 3, 0)])
    dfg = replace(dfg, collective=np.array([-1, first, -1, second], np.int32))
    return contract(dfg, dfg.lane == JOIN_LANE)


def test_ranks_that_meet_in_different_orders_form_a_cycle():
    assert join([skeleton_of(4, 7), skeleton_of(4, 7)]).collectives.tolist() == [4, 7]
    with pytest.raises(CyclesAcrossRanks):
        join([skeleton_of(4, 7), skeleton_of(7, 4)])


def test_a_rank_without_cpu_operations_has_no_graph():
    rows = [step(1, 0, 100), kernel("k", 0, 90, 1)]
    with pytest.raises(InputError, match="CPU operation"):
        LargeReplay.by_rank(run_of({0: rows, 1: rows}))


def test_graphs_without_gpu_stay_as_they_are():
    dfg = dfg_of([0, 0], [1, 1], [(0, 1, 0)])
    assert with_gpu_ends(dfg) is dfg


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(122, id="a rank lacks the last collectives", marks=pytest.mark.slow),
        pytest.param(207, id="workers are not recorded, and one rank alone waits for its device"),
    ],
)
def test_jobs_that_once_differed_are_exact(seed):
    found = compared_program(seed)
    assert (found.declined, found.differs) == ("", ())


@pytest.mark.slow
@pytest.mark.parametrize("shape", [name for name, one in SHAPES.items() if one.is_common])
@pytest.mark.parametrize("seed", [1, 2])
def test_simulated_jobs_are_exact(shape, seed, tmp_path):
    made = job(shape, seed)
    write(tmp_path, made.program, run(made.program), made.groups, made.recording)
    found = compared(tmp_path)
    assert not found.declined
    assert not found.differs
    assert found.skeleton_nodes < found.nodes


def test_a_run_can_keep_the_tables_of_one_rank():
    read = []
    tables = cpu_run()
    one = Run(tables.meta, lambda name, rank: read.append((name, rank)) or tables.recorded(name, rank))
    one.keeps_one_rank = True
    for rank in (0, 0, 1, 0):
        assert len(one.events(rank)) == len(tables.events(rank))
        assert len(one.steps(rank)) == len(tables.steps(rank))
    assert [rank for name, rank in read if name == "events"] == [0, 1, 0]
    assert [rank for name, rank in read if name == "steps"] == [0, 1]
