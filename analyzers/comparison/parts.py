"""The parts of the change of a step: the classes of the critical path, and what only the other steps show."""

from collections.abc import Callable, Iterator, Sequence
from typing import TypedDict

import numpy as np

from esprof.analyzers.comparison.answer import BEYOND_RECORDING, SLOW_STEPS, PartChange, PlaceChange, StepChange
from esprof.analyzers.comparison.intervals import (
    Figures,
    above_median,
    excused,
    figures,
    largest,
    margin_ns,
    mean,
    median,
    resampled,
)
from esprof.analyzers.comparison.pair import RunPair
from esprof.analyzers.comparison.side import ComparedSide
from esprof.core.types import ns, us
from esprof.replay.dfg import Cls

MAX_PLACES = 8
"""Most names listed in a part; the others are summed."""

OTHERS = "all others"

DATA = Cls.DATA.label

MIN_SHARE_OF_PART = 0.01
"""Least share of the time of a part of a place that shows whether places change alike."""
MIN_ALIKE = 4
"""Fewest such places."""
MIN_SHARE_ALIKE = 0.75
"""Share of the time of a part from which on its places change alike."""
MAX_UNLIKE = 0.02
"""Largest distance of the relative change of a place from that of the others, or else half of that change."""


def parts(pair: RunPair, step: StepChange) -> tuple[PartChange, ...]:
    """The parts, largest change first; they sum to the change of `step`."""
    waits = pair.samples("loader_wait")
    classes = [
        cls for cls in pair.names(lambda side: (cls for cls, _ in side.path.took_ns)) if cls != DATA or not waits
    ]
    count = len(classes) + 3
    of_classes = pair.changes(lambda side: [_on_path(side, cls) for cls in classes], count)
    found = [
        PartChange(name=cls, **one, **_places(pair, cls, one)) for cls, one in zip(classes, of_classes, strict=True)
    ]
    if waits:  # All steps know it, and in few of them loaders may happen to be ahead.
        found.append(_measured(DATA, resampled(*waits, mean, step.block, count)))
    if pair.phase == "plain":
        slow = resampled(*pair.steps_ns, above_median, step.block, count)
        found.append(_measured(SLOW_STEPS, excused(slow, _waited_us(pair, above_median))))
    found.append(_beyond_recording(pair, step, found, count))
    kept = [part for part in found if part.before_us or part.after_us]
    return tuple(sorted(kept, key=lambda part: -abs(part.change_us)))


def _measured(name: str, found: Figures) -> PartChange:
    """A part that is measured in the steps without profiler, and not on the critical path."""
    return PartChange(name=name, **found, places=(), alike_pct=None)


def _on_path(side: ComparedSide, cls: str, names: Sequence[str] | None = None) -> np.ndarray:
    """Time of each recorded step in a class of the critical path, of these names or all, ns, float64[steps]."""
    chosen = [took for (of, name), took in side.path.took_ns.items() if of == cls and (names is None or name in names)]
    return sum(chosen, np.zeros(len(side.recorded_ns)))


def _beyond_recording(pair: RunPair, step: StepChange, others: Sequence[PartChange], count: int) -> PartChange:
    """What the other parts lack of the change: the recorded steps were profiled, and few."""
    rest_us = [
        of - sum(getattr(part, name) for part in others)
        for of, name in ((step.before_us, "before_us"), (step.after_us, "after_us"))
    ]
    if pair.phase == "plain":
        (recorded,) = pair.changes(lambda side: [side.recorded_ns], count)
        usual = resampled(*pair.steps_ns, median, step.block, count)
        margin = float(np.hypot(margin_ns(recorded), margin_ns(usual)))
    else:
        # The same steps, measured and replayed: what is left is the error of replay.
        (error,) = pair.changes(lambda side: [side.steps_ns("timed") - side.recorded_ns], count)
        margin = margin_ns(error)
    # Figures are rounded: this part takes what that leaves, so that all sum to the step.
    found = figures(ns(rest_us[0]), ns(rest_us[1]), margin)
    found["change_us"] = round(step.change_us - sum(part.change_us for part in others), 3)
    found = excused(found, _waited_us(pair, median) - pair.waited_us)
    return _measured(BEYOND_RECORDING, found)


def _waited_us(pair: RunPair, statistic: Callable[[np.ndarray], np.ndarray]) -> float:
    """The change of this statistic of waits for a CPU in the steps without profiler, µs; 0 where unknown."""
    samples = pair.samples("cpu_wait")
    return us(float(statistic(samples[1]) - statistic(samples[0]))) if samples else 0.0


class _Places(TypedDict):
    """The fields of a `PartChange` on its places."""

    places: tuple[PlaceChange, ...]
    alike_pct: float | None


def _places(pair: RunPair, cls: str, part: Figures) -> _Places:
    """The names of a class with the largest changes, and the sum of all others."""
    names = pair.names(lambda side: (name for of, name in side.path.took_ns if of == cls))
    found = pair.changes(lambda side: [_on_path(side, cls, [name]) for name in names], min(len(names), MAX_PLACES))
    order = largest(found)
    lines = pair.before.path.lines | pair.after.path.lines
    named = [PlaceChange(name=names[at], line=lines.get(names[at]), **found[at]) for at in order[:MAX_PLACES]]
    others = _others(pair, cls, [names[at] for at in order[MAX_PLACES:]], part, named)
    return _Places(places=(*named, *others), alike_pct=_alike_pct(found, part["before_us"]))


def _others(
    pair: RunPair, cls: str, names: Sequence[str], part: Figures, named: Sequence[PlaceChange]
) -> Iterator[PlaceChange]:
    """The names of a class that are not listed, as one."""
    if names:
        (rest,) = pair.changes(lambda side: [_on_path(side, cls, names)], MAX_PLACES)
        rest["change_us"] = round(part["change_us"] - sum(place.change_us for place in named), 3)
        yield PlaceChange(name=OTHERS, line=None, **rest)


def _alike_pct(places: Sequence[Figures], before_us: float) -> float | None:
    """The change in per cent that most of the time shares; None if the places are few, or differ."""
    large = [one for one in places if one["before_us"] >= MIN_SHARE_OF_PART * before_us > 0]
    if len(large) < MIN_ALIKE:
        return None
    took = np.array([one["before_us"] for one in large])
    ratio = np.array([one["after_us"] for one in large]) / took
    order = np.argsort(ratio)
    middle = float(ratio[order][np.searchsorted(np.cumsum(took[order]), took.sum() / 2)])
    near = abs(ratio - middle) <= max(MAX_UNLIKE, abs(middle - 1) / 2)
    return round(100 * (middle - 1), 2) if took[near].sum() >= MIN_SHARE_ALIKE * before_us else None
