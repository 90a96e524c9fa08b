"""Steps of a trace: marked by the profiler, or else ended by optimizers, or begun by an annotation of the job's loop."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from esprof.core.text import printable
from esprof.run.kineto.rows import Texts
from esprof.run.kineto.scan import MISSING

RECORDERS_STEP = "esprof.step#"
"""Prefix of the names of steps that the recorder marks."""

STEP_NAMES = ("ProfilerStep", RECORDERS_STEP)
"""Prefixes of the names of steps."""

OPTIMIZER = "Optimizer.step#"
"""Prefix of the names of optimizer steps, which torch always records."""

MIN_ANNOTATED = 3
"""Least number of annotations of one family that make a loop: the time between two of them is one step."""

MIN_ANNOTATED_SHARE = 0.5
"""Least share of GPU time that has to be launched within the annotations that begin steps."""

_MAX_KINDS_NAMED = 3
"""Number of annotations that a warning names, most frequent first."""

_FAMILY = re.compile(r"[^\d\[(<{]*")
_NO_LOOP = re.compile(r"^(## Call |Torch-Compiled|nccl:|Optimizer\.)")
"""Annotations that PyTorch makes within steps: pieces of compiled models, collectives, optimizers."""

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


@dataclass(frozen=True)
class WorkOfSteps:
    """GPU work of a trace whose launch is known: when it was launched and how long it ran, ns, by launch."""

    at_ns: np.ndarray
    dur_ns: np.ndarray

    def within(self, start_ns: np.ndarray, end_ns: np.ndarray) -> float:
        """Share of the GPU time launched within disjoint intervals, from 0 to 1."""
        total = self._total_ns
        before_end, before_start = (np.searchsorted(self.at_ns, moments) for moments in (end_ns, start_ns))
        return float((total[before_end] - total[before_start]).sum() / max(int(total[-1]), 1))

    @cached_property
    def _total_ns(self) -> np.ndarray:
        """Time of the first n pieces, for each n."""
        return np.append(0, np.cumsum(self.dur_ns))


def by_annotations(
    names: Texts, tid: np.ndarray, start_ns: np.ndarray, end_ns: np.ndarray, launched: WorkOfSteps
) -> tuple[TraceSteps, str] | None:
    """Return (steps that begin with an annotation of the loop, description of the annotations); None without such a loop.

    The arguments describe the annotations on threads, in order of start. Inference servers annotate each forward pass:
    SGLang as `step[DECODE bs=16]`, vLLM as `execute_context_1(512)_generation_15(15)`. Annotations whose names differ only
    from the first digit or bracket on are a family. Of the families within which most of the GPU time is launched, the one
    with the fewest members is the outermost loop. Each step lasts to the next annotation; what follows the last is cut off.
    """
    numbers: dict[str | None, int] = {None: -1}
    family = names.map(lambda name: numbers.setdefault(_family_of(name), len(numbers) - 1), np.int64, -1)
    order = np.lexsort((family, tid))
    changes = np.flatnonzero((np.diff(tid[order]) != 0) | (np.diff(family[order]) != 0)) + 1
    best: np.ndarray | None = None
    for mine in np.split(order, changes):  # One family on one thread, in order of start.
        if len(mine) < MIN_ANNOTATED or family[mine[0]] < 0:
            continue
        reached = np.maximum.accumulate(np.append(np.iinfo(np.int64).min, end_ns[mine]))[:-1]
        mine = mine[start_ns[mine] >= reached]
        if len(mine) < MIN_ANNOTATED or launched.within(start_ns[mine], end_ns[mine]) < MIN_ANNOTATED_SHARE:
            continue
        if best is None or (len(mine), start_ns[mine[0]]) < (len(best), start_ns[best[0]]):
            best = mine
    if best is None:
        return None
    starts = start_ns[best]
    return TraceSteps(np.arange(len(best) - 1), starts[:-1], starts[1:]), _described(names, best)


def _family_of(name: str) -> str | None:
    family = _FAMILY.match(name)
    return family.group(0) if family and family.group(0) and not _NO_LOOP.match(name) else None


def _described(names: Texts, rows: np.ndarray) -> str:
    """The most frequent names of the rows, with their number: ``8 `step[DECODE bs=16]` ``."""
    counts = np.bincount(names.codes[rows], minlength=len(names.values))
    most = sorted(np.flatnonzero(counts).tolist(), key=lambda code: -counts[code])
    named = [f"{counts[code]} `{printable(names.values[code], 60)}`" for code in most[:_MAX_KINDS_NAMED]]
    return ", ".join(named) + (f" and {len(most) - len(named)} others" if len(most) > len(named) else "")


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
