"""The geometry of the chart of steps; the template draws it as SVG."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from math import ceil, floor, log10
from statistics import median

import msgspec

from esprof.run.logs import JobEvent, LiveStep

SIDE = 1_000
"""Both sides of the drawing, which the page stretches."""

_MIN_STEPS = 2
_HEIGHT_OVER_LONGEST = 1.15
_MAX_OVER_HIGHEST_MEDIAN = 1.6
"""The axis ends at this multiple of the highest median, so that one slow step does not flatten all others."""
_MIN_TICK_FROM_TOP_PCT = 5.0
"""Smallest distance of a tick from the top; its label is above its line."""
_LABEL_SHARE_OF_WIDTH = 0.14
"""Share of the width that a label takes."""


@dataclass(frozen=True)
class Tick:
    at_pct: float
    value: float


@dataclass(frozen=True)
class Level:
    """The median of the steps with one plan."""

    from_x: int
    to_x: int
    y: int
    us: float


@dataclass(frozen=True)
class EventMark:
    at_pct: float
    event: JobEvent
    has_room: bool
    """Whether its label does not overlap the previous label."""


@dataclass(frozen=True)
class Chart:
    """The geometry of the chart. `path`, levels and `over` are in units of SIDE, the rest in per cent; y points down."""

    path: str
    levels: tuple[Level, ...]
    over: tuple[int, ...]
    """x of the steps above the range of the axis."""
    longest_us: float
    across: tuple[Tick, ...]
    """Ticks of the horizontal axis: step numbers."""
    up: tuple[Tick, ...]
    """Ticks of the vertical axis, us."""
    marks: tuple[EventMark, ...]
    data: str
    """JSON of [step, us, x in per cent] for each step, for the readout under the pointer."""


def chart_of(steps: Sequence[LiveStep], marks: Sequence[JobEvent]) -> Chart | None:
    """The chart of these steps and events; None if there are too few steps."""
    shown = [step for step in steps if not step.twice]
    if len(shown) < _MIN_STEPS:
        return None
    first, last = shown[0].step, shown[-1].step
    took = [step.took_us for step in shown]
    groups = [list(group) for _, group in groupby(shown, key=lambda step: (step.version, step.ests))]
    medians = [median(step.took_us for step in group) for group in groups]
    top_us = _HEIGHT_OVER_LONGEST * min(max(took), _MAX_OVER_HIGHEST_MEDIAN * max(medians)) or 1.0

    def x(step: float) -> float:
        return (step - first) / (last - first) if last > first else 0.0

    def y(us: float) -> int:
        return round(SIDE * (1 - min(1.0, us / top_us)))

    points = [f"{round(SIDE * x(step.step))} {y(step.took_us)}" for step in shown]
    levels = [
        Level(round(SIDE * x(group[0].step)), round(SIDE * x(group[-1].step)), y(us), us)
        for group, us in zip(groups, medians, strict=True)
    ]
    up = [Tick(100 * (1 - value / top_us), value) for value in _ticks(0.0, top_us, 4, least=1e-3)]
    return Chart(
        path="M" + "L".join(points),
        levels=tuple(levels),
        over=tuple(round(SIDE * x(step.step)) for step in shown if step.took_us > top_us),
        longest_us=max(took),
        across=tuple(Tick(100 * x(value), value) for value in _ticks(first, last, 5, least=1.0)),
        up=tuple(tick for tick in up if tick.at_pct > _MIN_TICK_FROM_TOP_PCT),
        marks=tuple(_marks([(x(event.step - 0.5), event) for event in marks])),
        data=msgspec.json.encode(
            [[step.step, round(step.took_us, 1), round(100 * x(step.step), 2)] for step in shown]
        ).decode(),
    )


def _ticks(low: float, high: float, most: int, least: float) -> list[float]:
    """Round numbers in the range, about `most` of them, at least `least` apart."""
    rough = max((high - low) / most, least)
    unit = 10.0 ** floor(log10(rough))
    step = next(unit * factor for factor in (1, 2, 5, 10) if unit * factor >= rough * (1 - 1e-9))
    return [step * number for number in range(ceil(low / step), floor(high / step) + 1)]


def _marks(placed: Sequence[tuple[float, JobEvent]]) -> list[EventMark]:
    found: list[EventMark] = []
    free = -1.0
    for at, event in placed:
        at = min(1.0, max(0.0, at))
        has_room = at >= free
        free = at + _LABEL_SHARE_OF_WIDTH if has_room else free
        found.append(EventMark(100 * at, event, has_room))
    return found
