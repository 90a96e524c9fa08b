"""What-ifs priced beforehand on grids, for sliders that only look a price up."""

from collections.abc import Iterator, Sequence
from itertools import product
from math import prod

import msgspec

from esprof.core.types import us
from esprof.replay.answer import WhatIf
from esprof.replay.replayed import Replayed
from esprof.replay.whatif.gradients.backward import NotBuckets
from esprof.replay.whatif.gradients.compressed import Compressible
from esprof.replay.whatif.gradients.shards import Shards

SPEEDS = (("0.5x", "1x", "1.5x", "2x", "4x"), ("1x", "2x", "4x"), ("1x", "2x"))
"""Values of the axes of speed, the most that can be afforded first."""

MAX_NODES_TIMES_SCENARIOS = 10_000_000
"""Most work of all replays of the joint grid together, in nodes: a page should not take long."""
NODES_OF_A_RANK = 200
"""What a rank adds to the work of a replay, in nodes."""

BUCKETS_MB = (1, 5, 10, 25, 50, 100, 200)


class Axis(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that can be changed: a what-if term, its values in order, and the position of the value as recorded."""

    term: str
    values: tuple[str, ...]
    now: int


def spec_of(axes: Sequence[Axis], values: Sequence[str]) -> str:
    """The what-if of these values, one of each axis; empty for the step as recorded."""
    return ",".join(
        f"{axis.term}={value}" for axis, value in zip(axes, values, strict=True) if value != axis.values[axis.now]
    )


class Cell(msgspec.Struct, frozen=True, array_like=True):
    """The price of one point of a grid: the mean step and its interval, in microseconds."""

    step_us: float
    low_us: float
    high_us: float


class Grid(msgspec.Struct, frozen=True, kw_only=True):
    """Prices of all combinations of the values of `axes`, the last axis varying fastest; None where one was declined."""

    axes: tuple[Axis, ...]
    cells: tuple[Cell | None, ...]


class Explorer(msgspec.Struct, frozen=True, kw_only=True):
    """Grids of scenarios. The axes of one grid are priced together, those of different grids are not."""

    grids: tuple[Grid, ...]
    step_us: float
    """The step as measured."""
    declined: tuple[WhatIf, ...]
    """Changes without an axis, with the reason."""


def explorer(replayed: Replayed) -> Explorer | None:
    """Prices of a faster or slower network, GPU and CPU, without stragglers and input stalls, in all combinations; and of
    bucket sizes and codecs, each alone. None if the run answers nothing."""
    declined: list[WhatIf] = []
    grids = [grid for axes in (_together(replayed, declined), *_alone(replayed)) if (grid := _priced(replayed, axes))]
    if not grids:
        return None
    return Explorer(grids=tuple(grids), step_us=us(replayed.pricer.step_ns), declined=tuple(declined))


def _together(replayed: Replayed, declined: list[WhatIf]) -> tuple[Axis, ...]:
    """The axes of the joint grid, with as many values as can be afforded; `declined` gets those without an answer."""
    asked = ("network=2x", "gpu=2x", "cpu=2x", "straggler=fix", "data=0")
    answers = replayed.pricer.answers(asked)
    declined += [one for one in answers if not one.answered]
    terms = [one.spec for one in answers if one.answered]
    dfg = replayed.built.dfg
    work = dfg.nodes + NODES_OF_A_RANK * len(dfg.marks.ranks)
    for speeds in SPEEDS:
        axes = tuple(_axis(term, speeds) for term in terms)
        if prod(len(axis.values) for axis in axes) * work <= MAX_NODES_TIMES_SCENARIOS:
            return axes
    return tuple(_axis(term, SPEEDS[-1]) for term in terms[:2])


def _axis(spec: str, speeds: tuple[str, ...]) -> Axis:
    term, value = spec.split("=")
    if value == "2x":
        return Axis(term=term, values=speeds, now=speeds.index("1x"))
    return Axis(term=term, values=("", value), now=0)


def _alone(replayed: Replayed) -> Iterator[tuple[Axis, ...]]:
    """Axes that are priced alone: bucket sizes, and the codecs that were measured."""
    yield (Axis(term="bucket_mb", values=("as recorded", *map(str, BUCKETS_MB)), now=0),)
    codecs = _codecs(replayed)
    if codecs:
        yield (Axis(term="compress", values=("as recorded", *codecs), now=0),)


def _codecs(replayed: Replayed) -> tuple[str, ...]:
    """The codecs that can be priced; none where gradients cannot be compressed."""
    run, dfg = replayed.run, replayed.built.dfg
    try:
        return ("bf16",) if Shards.of(run, dfg) is not None else Compressible.of(run, dfg).costs.codecs
    except NotBuckets:
        return ()


def _priced(replayed: Replayed, axes: tuple[Axis, ...]) -> Grid | None:
    """All combinations of the values of `axes`; None if nothing but the step as recorded is answered."""
    if not axes:
        return None
    specs = [spec_of(axes, values) for values in product(*(axis.values for axis in axes))]
    changed = [spec for spec in specs if spec]
    answers = dict(zip(changed, replayed.pricer.answers(changed), strict=True))
    if not any(one.answered for one in answers.values()):
        return None
    step_us = us(replayed.pricer.step_ns)
    now = Cell(step_us, step_us, step_us)
    return _without_unanswered(Grid(axes=axes, cells=tuple(_cell(answers[spec]) if spec else now for spec in specs)))


def _cell(answer: WhatIf) -> Cell | None:
    if answer.predicted_us is None or answer.low_us is None or answer.high_us is None:
        return None
    return Cell(round(answer.predicted_us, 1), round(answer.low_us, 1), round(answer.high_us, 1))


def _without_unanswered(grid: Grid) -> Grid:
    """A grid of one axis without the values that were declined."""
    if len(grid.axes) > 1:
        return grid
    (axis,) = grid.axes
    answered = [number for number, cell in enumerate(grid.cells) if cell is not None]
    values = tuple(axis.values[number] for number in answered)
    return Grid(
        axes=(Axis(term=axis.term, values=values, now=answered.index(axis.now)),),
        cells=tuple(grid.cells[number] for number in answered),
    )
