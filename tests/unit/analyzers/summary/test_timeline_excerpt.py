"""The excerpt of the timeline: who waits for whom, and the critical path."""

import pytest

from esprof.analyzers.summary import drawn_ranks as drawn
from esprof.analyzers.summary.timeline_excerpt import MAX_PIECES, WAITS, excerpt
from esprof.replay import Replayed
from tests.cases.graph import ddp_rank, load_call, nccl_ranks, op, run_of, stage, step


def of(run):
    return excerpt(Replayed.of(run))


def test_a_wait_names_the_rank_that_arrived_last():
    found = of(run_of({0: ddp_rank(), 1: ddp_rank(slow=10)}))
    (wait,) = [bar for bar in found.bars if bar.lane == WAITS]
    assert (wait.rank, wait.cls, wait.dur_us) == (0, "wait", pytest.approx(10_000))
    assert (wait.name, wait.cause) == ("wait for peers at all_reduce", "rank 1 arrived last")


def test_an_arrow_leads_from_the_last_rank_to_each_that_waits():
    found = of(run_of({0: ddp_rank(), 1: ddp_rank(slow=10), 2: ddp_rank(slow=4)}))
    arrows = [(one.late, one.rank, one.at_us, one.waited_us) for one in found.arrows]
    assert arrows == [(1, 0, pytest.approx(40_000), pytest.approx(10_000)), (1, 2, 40_000, pytest.approx(6_000))]
    lanes = {(bar.rank, bar.lane) for bar in found.bars}
    assert {(one.late, one.late_lane) for one in found.arrows} <= lanes


def test_the_critical_path_is_a_chain_that_covers_the_step():
    found = of(run_of(nccl_ranks()))
    assert found.path[0].start_us == pytest.approx(0)
    for before, after in zip(found.path, found.path[1:], strict=False):
        assert after.start_us == pytest.approx(before.start_us + before.dur_us, abs=0.01)
    assert sum(piece.dur_us for piece in found.path) == pytest.approx(found.span_us)
    # Rank 1 is late, so the path runs through its work before the collective.
    assert found.path[0].rank == 1


def test_thin_pieces_of_the_path_are_joined():
    many = [step(1, 0, 100_000)]
    many += [op(f"aten::op{n}", n * 50, 49) for n in range(2_000)]
    found = of(run_of({0: many}))
    assert len(found.path) <= MAX_PIECES
    assert sum(piece.dur_us for piece in found.path) == pytest.approx(found.span_us, rel=1e-3)


def test_a_wait_for_data_says_what_the_worker_did():
    rows = [step(1, 0, 50_000), load_call(0, 30_000), op("train", 30_000, 20_000)]
    stages = [stage("next", 0, 0, 30_000) | {"cpu_ns": 0}, stage("fetch", 0, 0, 29_000) | {"cpu_ns": 1_000_000}]
    (wait,) = [bar for bar in of(run_of({0: rows}, stages={0: stages})).bars if bar.lane == WAITS]
    assert (wait.name, wait.cls) == ("wait for data", "data")
    assert wait.cause.startswith("the loader: blocked (reads, locks, sleeps), ")


def test_a_large_job_is_drawn_by_its_extremes():
    slow = {7: 10, 20: 5}
    ranks = {rank: ddp_rank(slow=slow.get(rank, 0.01 * rank)) for rank in range(24)}
    replayed = Replayed.of(run_of(ranks))
    found = excerpt(replayed)
    assert len(found.ranks) == drawn.MAX_RANKS_DRAWN < found.of_ranks == 24
    assert {7, 20, 0} <= set(found.ranks)
    assert {bar.rank for bar in found.bars} <= set(found.ranks)
    assert drawn.drawn_ranks(replayed, 24) == tuple(range(24))
