"""Time that calls spend waiting for other ranks."""

from esprof.replay.building.build import build
from esprof.replay.ranks.arrivals import held_ns
from tests.cases.graph import call, nccl_ranks, run_of


def test_no_call_waits_for_a_rank_that_never_arrives_last():
    """The latest rank may be one that was not asked about."""
    ranks = {rank: [*rows, call("cudaMalloc", 60, 70, 900)] for rank, rows in nccl_ranks().items()}
    dfg = build(run_of(ranks))
    found = {rank: held_ns(dfg, (rank,)).sum() for rank in (0, 1)}
    assert (found[0] > 0) + (found[1] > 0) <= 1
    assert held_ns(dfg, ()).sum() == 0
