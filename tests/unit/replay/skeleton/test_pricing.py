"""Prices of runs whose ranks are built one by one, against those on the whole graph."""

import numpy as np
import pytest

from benchmarks.skeletons import different_answers
from esprof.replay.replayed import Replayed
from esprof.replay.skeleton.calibrated_rank import CalibratedRank
from esprof.replay.skeleton.large import LargeReplay
from esprof.replay.skeleton.scenarios import needs_whole_graph
from esprof.replay.whatif.grammar import parse
from esprof.replay.whatif.scenario import Declined
from esprof.replay.whatif.terms import TERMS
from tests.cases.exported import cpu_run
from tests.cases.graph import nccl_ranks, run_of

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


def test_a_slow_rank_is_found_and_priced():
    whole, by_rank = pricers(cpu_run())
    assert by_rank.blame.slow_ranks == whole.blame.slow_ranks == (1,)
    assert by_rank.saving_ns("straggler=fix") == whole.saving_ns("straggler=fix") > 0


def test_no_timeline_of_the_job_is_known():
    _, by_rank = pricers(cpu_run())
    with pytest.raises(Declined, match="rank by rank"):
        by_rank.timeline("cpu=2x")
