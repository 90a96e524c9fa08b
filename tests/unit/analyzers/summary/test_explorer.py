"""Grids of scenarios that are priced beforehand."""

from itertools import product

import pytest

from esprof.analyzers.summary import explorer as explorers
from esprof.analyzers.summary.explorer import explorer
from esprof.replay import Replayed
from tests.cases.graph import ddp_rank, op, run_of, step


def test_every_cell_is_the_price_of_its_scenario():
    replayed = Replayed.of(run_of({0: ddp_rank(), 1: ddp_rank(slow=10)}))
    grid = explorer(replayed).grids[0]
    assert {axis.term for axis in grid.axes} == {"network", "cpu", "straggler"}
    points = list(product(*(axis.values for axis in grid.axes)))
    assert len(grid.cells) == len(points)
    for point, cell in zip(points, grid.cells, strict=True):
        spec = ",".join(f"{a.term}={v}" for a, v in zip(grid.axes, point, strict=True) if v not in ("1x", ""))
        if spec:
            (answer,) = replayed.pricer.answers([spec])
            assert (cell.step_us, cell.low_us, cell.high_us) == pytest.approx(
                (answer.predicted_us, answer.low_us, answer.high_us), abs=0.1
            )
        else:
            assert cell.step_us == pytest.approx(replayed.pricer.step_ns / 1_000)


def test_what_is_declined_has_no_axis_but_a_reason():
    found = explorer(Replayed.of(run_of({0: [step(1, 0, 1_000), op("aten::mm", 0, 900)]})))
    assert [axis.term for axis in found.grids[0].axes] == ["cpu"]
    assert {"network=2x", "data=0"} <= {one.spec for one in found.declined}
    assert all(one.reason for one in found.declined)


def test_a_large_graph_gets_fewer_values(monkeypatch):
    replayed = Replayed.of(run_of({0: ddp_rank(), 1: ddp_rank(slow=10)}))
    monkeypatch.setattr(
        explorers, "MAX_NODES_TIMES_SCENARIOS", 10 * (replayed.built.dfg.nodes + 2 * explorers.NODES_OF_A_RANK)
    )
    grid = explorer(replayed).grids[0]
    assert len(grid.cells) <= 10
    assert grid.axes[0].values == ("1x", "2x")
