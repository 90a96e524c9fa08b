"""Prices of runs whose ranks are built one by one, against those on the whole graph."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.skeletons import different_answers
from esprof.replay.replayed import Replayed
from esprof.replay.skeleton.calibrated_rank import CalibratedRank
from esprof.replay.skeleton.large import LargeReplay
from esprof.replay.skeleton.scenarios import needs_whole_graph
from esprof.replay.whatif.grammar import parse
from esprof.replay.whatif.scenario import Declined
from esprof.replay.whatif.terms import TERMS
from tests.cases.exported import cpu_rank, cpu_run
from tests.cases.graph import gloo, nccl_ranks, op, run_of, step
from tests.cases.properties import thorough

MS = 1000.0

NEED_WHOLE_GRAPH = {
    "accumulate", "assign", "batch", "bucket_mb", "compress", "microbatches", "network.cc", "pipeline", "sparsity", "stages",
    "streams", "sync_every", "zero",
}  # fmt: skip


def pricers(run):
    return [
        one.pricer for one in (Replayed.of(run, max_error_pct=np.inf), LargeReplay.by_rank(run, max_error_pct=np.inf))
    ]


@pytest.mark.parametrize("run", [cpu_run(), run_of(nccl_ranks())], ids=["cpus", "gpus"])
def test_prices_are_those_of_the_whole_graph(run):
    assert [*different_answers(run)] == []


@st.composite
def jobs(draw):
    """Ranks that run some of a few operations in each step, of any length, with gaps, and reduce."""
    steps, count = draw(st.integers(1, 4)), draw(st.integers(2, 5))
    operation = st.tuples(st.sampled_from("abc"), st.integers(1, 9), st.sampled_from([0, 0, 0.05, 2]))
    ranks = {}
    for rank in range(count):
        rows = []
        for number in range(steps):
            begin = clock = number * 50 * MS
            for name, length, gap in draw(st.lists(operation, min_size=1, max_size=4)):
                clock += gap * MS
                rows.append(op(f"aten::{name}", clock, length * 0.5 * MS))
                clock += length * 0.5 * MS
            rows += [
                step(number, begin, begin + 50 * MS),
                *gloo(clock, clock + 5, begin + 40 * MS),
                op("end", begin + 40 * MS + 10, 9 * MS),
            ]
        ranks[rank] = rows
    return run_of(ranks)


@thorough(40)
@given(jobs())
def test_any_job_compared_rank_by_rank_has_the_prices_of_the_whole_graph(run):
    assert [*different_answers(run)] == []


def test_mending_twice_and_other_ranks_than_the_slow_ones_is_exact():
    """Each term sees what the one before it changed."""
    specs = ("straggler[compute]=fix,straggler[host_gap]=fix", "balance=fix,straggler=fix")
    whole, by_rank = (pricer.prices(specs) for pricer in pricers(run_of({r: cpu_rank(7 * (r == 2)) for r in range(3)})))
    assert [price.saving_ns for price in by_rank] == [price.saving_ns for price in whole]
    assert by_rank[0].saving_ns > 0


def test_a_rank_takes_little_memory_while_ranks_are_compared():
    """Columns in the smallest types; the table has an entry for each operation, not for each rank."""
    few, many = (
        LargeReplay.by_rank(run_of({rank: cpu_rank(0) for rank in range(count)})).pricer.blame for count in (2, 6)
    )
    for blame in (few, many):
        own = sum(len(mine["dur_ns"]) for mine in blame.nodes.columns)
        assert sum(values.nbytes for mine in blame.nodes.columns for values in mine.values()) <= 30 * own
    assert len(few.table.exact.identity) == len(many.table.exact.identity)


def test_each_term_is_priced_rank_by_rank_or_needs_the_whole_graph():
    assert {name for name, kind in TERMS.items() if needs_whole_graph(parse(kind.examples[0])[0])} == NEED_WHOLE_GRAPH


def test_a_term_that_needs_the_whole_graph_is_declined():
    _, by_rank = pricers(cpu_run())
    (answer,) = by_rank.answers(["bucket_mb=50,cpu=2x"])
    assert not answer.answered
    assert "bucket_mb=50 needs the graph of all ranks" in answer.reason


def test_a_term_that_no_rank_can_answer_is_declined_with_its_reason():
    for pricer in pricers(cpu_run()):
        (answer,) = pricer.answers(["gpu=2x"])
        assert "computes on CPUs" in answer.reason


def test_ranks_are_built_once_for_scenarios_that_are_asked_for_together(monkeypatch):
    _, by_rank = pricers(cpu_run())
    built, graph = [], CalibratedRank.graph
    monkeypatch.setattr(CalibratedRank, "graph", lambda self: built.append(self.rank) or graph(self))
    by_rank.prices(["cpu=2x", "rank1.cpu=2x,network=2x", "data=0", "communication=0"])
    assert built == [0, 1]
    by_rank.prices(["network=4x", "overlap=perfect", "collective[gloo]=2x"])
    assert built == [0, 1]


def test_ranks_that_a_scenario_leaves_as_they_are_are_not_built(monkeypatch):
    _, by_rank = pricers(cpu_run())
    assert by_rank.blame.slow_ranks == (1,)
    built, graph = [], CalibratedRank.graph
    monkeypatch.setattr(CalibratedRank, "graph", lambda self: built.append(self.rank) or graph(self))
    by_rank.prices(["straggler=fix", "straggler[work]=fix,network=2x"])
    assert built == [1]


def test_a_slow_rank_is_found_and_priced():
    whole, by_rank = pricers(cpu_run())
    assert by_rank.blame.slow_ranks == whole.blame.slow_ranks == (1,)
    assert by_rank.saving_ns("straggler=fix") == whole.saving_ns("straggler=fix") > 0


def test_no_timeline_of_the_job_is_known():
    _, by_rank = pricers(cpu_run())
    with pytest.raises(Declined, match="rank by rank"):
        by_rank.timeline("cpu=2x")
