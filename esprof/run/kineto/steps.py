"""Where the steps of a trace begin and end: as the profiler was told, or else as its optimizers tell."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from esprof.run.kineto.rows import Texts
from esprof.run.kineto.scan import MISSING

RECORDERS_STEP = "esprof.step#"
"""What the names of the steps begin with that the recorder marks."""

STEP_NAMES = ("ProfilerStep", RECORDERS_STEP)
"""What the names of steps begin with."""

OPTIMIZER = "Optimizer.step#"
"""What the name of an optimizer's step begins with; torch records each, whether the profiler is told of steps or not."""

_STEP = re.compile(r"(?:ProfilerStep|esprof\.step)#\s*(\d{1,9})$")


@dataclass(frozen=True)
class TraceSteps:
    """The steps of one rank in order of start, an entry for each; times in ns on the rank's clock."""

    number: np.ndarray
    """Number of each step; MISSING where its name tells none."""
    start_ns: np.ndarray
    end_ns: np.ndarray

    def of(self, launched_ns: np.ndarray) -> np.ndarray:
        """The number of the step that began last before each of these moments; MISSING before the first, and from the end of
        the last one on."""
        slot = np.searchsorted(self.start_ns, launched_ns, side="right") - 1
        inside = (slot >= 0) & (launched_ns < self.end_ns[-1])
        return np.where(inside, self.number[slot], MISSING)


def marked(names: Texts, start_ns: np.ndarray, end_ns: np.ndarray) -> TraceSteps:
    """The steps that the profiler was told of, by rows with their names, in order of start."""
    return TraceSteps(names.map(_step_number, np.int64, MISSING), start_ns, end_ns)


def by_optimizers(
    names: Texts, tid: np.ndarray, start_ns: np.ndarray, end_ns: np.ndarray
) -> tuple[TraceSteps, int] | None:
    """(the steps that end with optimizers' steps, how many of these end one step); None where they do not repeat.

    The arguments tell of all rows on threads, in order of start; the first step begins with the first of them. Optimizers
    that take turns, as a GAN's do, are one step together. They may bear one name, and are told apart by the rows that each
    holds; where the numbers of these do not repeat, by their names alone.
    """
    steps = np.flatnonzero(names.map(lambda name: name.startswith(OPTIMIZER), bool, False))
    # The step of an optimizer that wraps another one holds the other's.
    reached = np.maximum.accumulate(np.append(0, end_ns[steps]))[:-1]
    steps = steps[end_ns[steps] > reached]
    behind = np.searchsorted(start_ns, end_ns[steps])
    sizes = [int((tid[first:end] == tid[first]).sum()) for first, end in zip(steps, behind, strict=True)]
    named = names.codes[steps].tolist()
    for turns in (list(zip(named, sizes, strict=True)), named):
        together = _period(turns)
        if turns and 2 * together <= len(turns):
            ends = end_ns[steps[together - 1 :: together]]
            return TraceSteps(np.arange(len(ends)), np.append(start_ns[0], ends[:-1]), ends), together
    return None


def _period(turns: Sequence[Any]) -> int:
    """The least distance at which all of `turns` are alike; their number where there is none."""
    # For each place, the length of the longest beginning that `turns` up to there also end with (Knuth, Morris and Pratt):
    # comparing each distance by itself would take the square of their number.
    borders = [0]
    for turn in turns[1:]:
        length = borders[-1]
        while length and turn != turns[length]:
            length = borders[length - 1]
        borders.append(length + (turn == turns[length]))
    return len(turns) - borders[-1]


def _step_number(name: str) -> int:
    match = _STEP.match(name)
    return int(match.group(1)) if match else MISSING
