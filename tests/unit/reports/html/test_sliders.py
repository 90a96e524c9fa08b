"""The controls of the what-if explorer."""

from itertools import product

from esprof.analyzers.summary.explorer import Axis, Cell, Explorer, Grid
from esprof.reports.html.sliders import controls

AXES = (
    Axis(term="network", values=("0.5x", "1x", "2x"), now=1),
    Axis(term="straggler", values=("", "fix"), now=0),
    Axis(term="compress", values=("as recorded", "bf16", "int8", "int4"), now=0),
)


def test_strides_lead_from_the_controls_to_the_cell_of_their_values():
    points = list(product(*(axis.values for axis in AXES)))
    cells = tuple(Cell(1_000.0 + number, 900.0, 2_000.0) for number in range(len(points)))
    (found,) = controls(Explorer(grids=(Grid(axes=AXES, cells=cells),), step_us=1_000.0, declined=()))
    assert [(one.kind, one.stride) for one in found.controls] == [("slider", 8), ("switch", 4), ("choice", 1)]
    assert points[found.now] == ("1x", "", "as recorded")
    chosen = 2 * 8 + 1 * 4 + 3 * 1
    assert found.cells[chosen].spec == "network=2x,straggler=fix,compress=int4"
    assert found.cells[found.now].spec == ""
    assert found.measured_pct == 50.0


def test_a_declined_cell_shows_nothing_and_sets_no_scale():
    axis = Axis(term="bucket_mb", values=("as recorded", "5"), now=0)
    (found,) = controls(
        Explorer(
            grids=(Grid(axes=(axis,), cells=(Cell(1_000.0, 1_000.0, 1_000.0), None)),), step_us=1_000.0, declined=()
        )
    )
    assert found.cells[1] is None
    assert found.cells[0].step_pct == found.measured_pct == 100.0
