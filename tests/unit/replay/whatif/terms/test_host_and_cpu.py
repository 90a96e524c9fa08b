"""`host=` and `cpu=`: the CPU work that each of them speeds up, and runs without such work."""

import pytest

from esprof.replay.building.build import build
from esprof.replay.dfg import LaneKind
from esprof.replay.ranks.blame import Blame
from esprof.replay.whatif.apply import apply
from esprof.replay.whatif.grammar import parse
from esprof.replay.whatif.pricing import what_if
from esprof.replay.whatif.scenario import Scenario
from tests.cases.graph import ddp_rank, launched, load_call, op, predicted, run_of, stage, step

MS = 1000.0


def loading(worker: bool = True):
    """Steps of 40 ms, of which 20 in waiting for a batch, and 20 in training; a batch takes its worker 40 ms."""
    rows, stages = [], []
    for n in range(6):
        at = 40 * MS * n
        rows += [
            step(n, at, at + 40 * MS),
            load_call(at, at + 20 * MS, worker=worker),
            op("aten::mm", at + 20 * MS, 20 * MS),
        ]
        stages += [
            stage("fetch", n, at - 20.1 * MS, at + 19.9 * MS, prefetch=1),
            stage("next", n, at, at + 20 * MS, prefetch=1),
        ]
    return run_of({0: rows}, stages={0: stages} if worker else None)


def changed(run, spec):
    """The graph of a run as recorded, and as a scenario changes it."""
    dfg = build(run)
    return dfg, apply(Scenario(run, Blame(dfg, dfg.marks.steps), dfg), parse(spec)).dfg


def test_a_job_without_a_gpu_has_no_host_that_feeds_it():
    run = run_of({0: ddp_rank(), 1: ddp_rank(slow=10)})
    (answer,) = what_if(run, build(run), ["host=2x"])
    assert not answer.answered
    assert "use cpu=" in (answer.reason or "")


def test_a_faster_host_shortens_operations_launches_and_short_gaps_but_no_long_ones():
    rows = [
        step(1, 0, 10_000),
        op("aten::mm", 0, 1000),
        *launched("gemm", 100, 110, 50, 1),
        op("aten::add", 1800, 1200),  # after a gap of 0.8 ms
        op("aten::mul", 8000, 2000),  # after one of 5 ms
    ]
    assert predicted(rows, "host=2x", "cpu=2x") == [pytest.approx(7500, abs=1), pytest.approx(5000, abs=1)]


def test_a_faster_cpu_makes_the_batches_of_loader_workers_sooner():
    recorded, faster = changed(run := loading(), "cpu=2x")
    batches = recorded.on(LaneKind.LOADER) & (recorded.dur_ns > 0)
    assert batches.any()
    assert faster.dur_ns[batches].tolist() == (recorded.dur_ns[batches] // 2).tolist()
    (answer,) = what_if(run, build(run), ["cpu=2x"])
    # The first batch, which the worker began before the window, is there when the first step begins.
    assert answer.predicted_us == pytest.approx((10 + 5 * 20) / 6 * MS, rel=0.01)


def test_a_faster_cpu_makes_the_batches_that_a_rank_makes_itself_sooner():
    run = loading(worker=False)
    (answer,) = what_if(run, build(run), ["cpu=2x"])
    assert answer.predicted_us == pytest.approx(20 * MS, rel=0.01)


def test_the_cpu_of_one_rank_makes_no_other_ranks_batches():
    run = run_of(
        {
            rank: [step(1, 0, 50 * MS), load_call(0, 30 * MS, worker=False), op("aten::mm", 30 * MS, 20 * MS)]
            for rank in (0, 1)
        }
    )
    recorded, faster = changed(run, "rank1.cpu=2x")
    assert (faster.dur_ns[recorded.rank == 0] == recorded.dur_ns[recorded.rank == 0]).all()
    assert faster.dur_ns[recorded.rank == 1].sum() == recorded.dur_ns[recorded.rank == 1].sum() / 2
