"""Steps of a trace: those that the profiler marked, or else those that optimizers end."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from esprof.run.kineto.rows import Texts
from esprof.run.kineto.scan import MISSING

RECORDERS_STEP = "esprof.step#"
"""Prefix of the names of steps that the recorder marks."""

STEP_NAMES = ("ProfilerStep", RECORDERS_STEP)
"""Prefixes of the names of steps."""

OPTIMIZER = "Optimizer.step#"
"""Prefix of the names of optimizer steps, which torch always records."""

_STEP = re.compile(r"(?:ProfilerStep|esprof\.step)#\s*(\d{1,9})$")


@dataclass(frozen=True)
class TraceSteps:
    """The steps of one rank, by start; times are ns on the rank's clock."""

    number: np.ndarray
    """Number of each step; MISSING if its name has none."""
    start_ns: np.ndarray
    end_ns: np.ndarray

    def of(self, launched_ns: np.ndarray) -> np.ndarray:
        """Return the number of the latest step that started before each time; MISSING before the first step and from the end
        of the last one on."""
        slot = np.searchsorted(self.start_ns, launched_ns, side="right") - 1
        inside = (slot >= 0) & (launched_ns < self.end_ns[-1])
        return np.where(inside, self.number[slot], MISSING)


def marked(names: Texts, start_ns: np.ndarray, end_ns: np.ndarray) -> TraceSteps:
    """Return the marked steps, from their names and times in order of start."""
    return TraceSteps(names.map(_step_number, np.int64, MISSING), start_ns, end_ns)


def by_optimizers(
    names: Texts, tid: np.ndarray, start_ns: np.ndarray, end_ns: np.ndarray
) -> tuple[TraceSteps, int] | None:
    """Return (steps that end with optimizer steps, number of optimizer steps per step); None if they do not repeat.

    The arguments describe all rows on threads, in order of start; the first step starts with the first row. Alternating
    optimizers, as in a GAN, form one step together. They may have the same name and are distinguished by the number of rows
    within each; if these numbers do not repeat, by their names alone.
    """
    steps = np.flatnonzero(names.map(lambda name: name.startswith(OPTIMIZER), bool, False))
    # The step of an optimizer that wraps another one contains the step of the other.
    reached = np.maximum.accumulate(np.append(0, end_ns[steps]))[:-1]
    steps = steps[end_ns[steps] > reached]
    behind = np.searchsorted(start_ns, end_ns[steps])
    sizes = [int((tid[first:end] == tid[first]).sum()) for first, end in zip(steps, behind, strict=True)]
    named = names.codes[steps].tolist()
    for sequence in (list(zip(named, sizes, strict=True)), named):
        together = _period(sequence)
        if sequence and 2 * together <= len(sequence):
            ends = end_ns[steps[together - 1 :: together]]
            return TraceSteps(np.arange(len(ends)), np.append(start_ns[0], ends[:-1]), ends), together
    return None


def _period(sequence: Sequence[Any]) -> int:
    """Return the smallest period of `sequence`; its length if it does not repeat."""
    # The failure function of Knuth, Morris and Pratt, in linear time: for each prefix, the length of its longest proper
    # prefix that is also its suffix.
    borders = [0]
    for item in sequence[1:]:
        length = borders[-1]
        while length and item != sequence[length]:
            length = borders[length - 1]
        borders.append(length + (item == sequence[length]))
    return len(sequence) - borders[-1]


def _step_number(name: str) -> int:
    match = _STEP.match(name)
    return int(match.group(1)) if match else MISSING
