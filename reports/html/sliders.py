"""The what-if explorer of the page: its controls, and the text and bar of each priced scenario, which the page looks up."""

from itertools import product
from typing import Literal

import msgspec

from esprof.analyzers.summary.explorer import Axis, Cell, Explorer, Grid, spec_of
from esprof.reports.units import duration, interval, times

_LABELS = {
    "network": "Speed of the network",
    "gpu": "Speed of the GPUs",
    "cpu": "Speed of the CPUs",
    "straggler": "No slow rank",
    "data": "No waits for input",
    "bucket_mb": "Size of gradient buckets, MiB",
    "compress": "Codec of gradients",
}
_NAMED_VALUES = ("compress",)
"""Axes whose values have no order."""


class Control(msgspec.Struct, frozen=True):
    """One axis of a grid on the page; `stride` is the distance of its neighbouring values among the cells."""

    term: str
    label: str
    kind: Literal["slider", "switch", "choice"]
    values: tuple[str, ...]
    now: int
    stride: int


class Controls(msgspec.Struct, frozen=True):
    """The controls of one grid, and what each of its cells shows: `Shown`, or None where it was declined."""

    controls: tuple[Control, ...]
    cells: tuple["Shown | None", ...]
    now: int
    """The cell of the step as recorded."""
    measured_pct: float
    """Where the measured step ends, in per cent of the width."""


class Shown(msgspec.Struct, frozen=True, array_like=True):
    """The texts of a cell, and where its bar and its interval lie, in per cent of the width."""

    text: str
    spec: str
    step_pct: float
    low_pct: float
    high_pct: float


def controls(explorer: Explorer) -> tuple[Controls, ...]:
    """The controls of each grid."""
    return tuple(_of_grid(grid, explorer.step_us) for grid in explorer.grids)


def _of_grid(grid: Grid, step_us: float) -> Controls:
    widest = max(step_us, *(cell.high_us for cell in grid.cells if cell is not None)) or 1.0
    strides = [1]
    for axis in reversed(grid.axes[1:]):
        strides.insert(0, strides[0] * len(axis.values))
    values = product(*(axis.values for axis in grid.axes))
    return Controls(
        controls=tuple(_control(axis, stride) for axis, stride in zip(grid.axes, strides, strict=True)),
        cells=tuple(
            None if cell is None else _shown(cell, spec_of(grid.axes, of), step_us, widest)
            for cell, of in zip(grid.cells, values, strict=True)
        ),
        now=sum(axis.now * stride for axis, stride in zip(grid.axes, strides, strict=True)),
        measured_pct=_pct(step_us, widest),
    )


def _control(axis: Axis, stride: int) -> Control:
    kind: Literal["slider", "switch", "choice"] = "slider"
    if axis.term in _NAMED_VALUES:
        kind = "choice"
    elif axis.values[axis.now] == "":
        kind = "switch"
    label = _LABELS.get(axis.term, axis.term)
    return Control(axis.term, label, kind, axis.values, axis.now, stride)


def _shown(cell: Cell, spec: str, step_us: float, widest: float) -> Shown:
    text = f"{duration(cell.step_us)} a step"
    if spec:
        factor = times(step_us / cell.step_us) if cell.step_us else "–"
        text += f" ({interval(cell.low_us, cell.high_us)}), {factor} as fast"
    else:
        text += ", as measured"
    return Shown(text, spec, *(_pct(us, widest) for us in (cell.step_us, cell.low_us, cell.high_us)))


def _pct(us: float, widest: float) -> float:
    return round(100 * us / widest, 2)
