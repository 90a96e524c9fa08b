"""The heat map of arrivals."""

import pytest

from esprof.analyzers.summary.arrival_map import arrival_map
from esprof.replay import Replayed
from tests.cases.graph import ddp_rank, gloo, op, run_of, step


def of(run):
    replayed = Replayed.of(run)
    return arrival_map(replayed, replayed.built.dfg.marks.ranks)


def test_lateness_is_counted_from_the_first_rank():
    found = of(run_of({0: ddp_rank(), 1: ddp_rank(slow=10), 2: ddp_rank(slow=4)}))
    (row,) = found.rows
    assert (row.name, row.bytes, row.last) == ("all_reduce", 4_000, 1)
    assert row.late_us == (pytest.approx(0), pytest.approx(10_000), pytest.approx(4_000))
    assert row.spread_us == found.widest_us == pytest.approx(10_000)
    assert (found.found, found.of_ranks) == (1, 3)


def test_collectives_stay_in_the_order_of_the_step():
    def rank(late):
        ms = 1_000
        return [
            step(1, 0, 60 * ms),
            op("aten::linear", 0, 10 * ms),
            *gloo(10 * ms, 10 * ms + 100, 14 * ms),
            op("aten::relu", 15 * ms, (5 + late) * ms),
            *gloo((20 + late) * ms, (20 + late) * ms + 100, 32 * ms),
            op("Optimizer.step", 40 * ms, 20 * ms),
        ]

    found = of(run_of({0: rank(0), 1: rank(3)}))
    assert [row.spread_us for row in found.rows] == [pytest.approx(0), pytest.approx(3_000)]
    assert found.rows[1].last == 1


def test_a_job_of_one_rank_has_no_arrivals():
    assert of(run_of({0: [step(1, 0, 1_000), op("aten::mm", 0, 900)]})) is None
