"""Blocks: the repeated unit of GPU work in a trace without steps, such as a decode step, a layer or a single kernel."""

from dataclasses import dataclass

import numpy as np

from esprof.core import readable
from esprof.core.text import printable
from esprof.run.kineto.rows import Texts
from esprof.run.kineto.steps.trace_steps import TraceSteps

MIN_BLOCKS, MAX_BLOCKS = 3, 2_000
"""Least and most number of blocks in a window."""

MIN_COVERED = 0.6
"""Least share of the window's work that the blocks hold together; the window may begin and end within a block."""

MAX_BACKLOG = 0.1
"""Largest share by which the GPU takes longer for the blocks than the CPU for their launches, if blocks are to be steps."""

MIN_REGULAR, MAX_DEVIATION = 0.9, 0.1
"""Least share of blocks whose number of pieces of work is within this share of the median."""


@dataclass(frozen=True)
class WorkInOrder:
    """GPU work of a trace, in the order of its launches."""

    name: Texts
    at_ns: np.ndarray
    """When each piece was launched, or began where no launch was recorded, ns."""
    started_ns: np.ndarray
    """When each piece began, ns."""


@dataclass(frozen=True)
class Blocks:
    """The blocks of a window, from the first launch of the kernel that begins them to its last."""

    at_ns: np.ndarray
    """When each block was launched, ns, and when the one after the last was."""
    started_ns: np.ndarray
    """When the first kernel of each of them began, ns."""
    kernel: str
    size: int
    """Median number of pieces of GPU work in a block."""

    def as_steps(self, *, from_end: bool) -> TraceSteps | None:
        """A step for each block; None if the CPU launches blocks faster than the GPU runs them, and does not wait for it.

        With `from_end` the last block of all ranks has the same number: their windows may begin at different blocks.
        """
        launching, running = (moments[-1] - moments[0] for moments in (self.at_ns, self.started_ns))
        if running > (1 + MAX_BACKLOG) * launching:
            return None
        count = len(self.at_ns) - 1
        first = MAX_BLOCKS - count if from_end else 0
        return TraceSteps(first + np.arange(count), self.at_ns[:-1], self.at_ns[1:])

    def __str__(self) -> str:
        took = readable.duration(float(np.median(np.diff(self.started_ns))))
        pieces = "1 piece" if self.size == 1 else f"{self.size} pieces"
        return f"{len(self.at_ns) - 1} times {pieces}, from `{self.kernel}` to the next, {took} each"


def find_blocks(work: WorkInOrder) -> Blocks | None:
    """Return the blocks of a window; None if no work repeats.

    A block lasts from one launch of some kernel to its next, if these follow each other with about the same number of
    launches in between. If several do so, the one with the longest block is taken. Kernels of one CUDA graph begin no
    block, because they are launched together.
    """
    order = np.argsort(work.name.codes, kind="stable")
    changes = np.flatnonzero(np.diff(work.name.codes[order])) + 1
    best, longest = order[:0], 0.0
    for places in np.split(order, changes):  # The launches of one name, ascending.
        size = _regular_size(places, work.at_ns, len(order))
        if size > longest or (size == longest > 0 and places[0] < best[0]):
            best, longest = places, size
    if not len(best):
        return None
    kernel = printable(work.name.values[work.name.codes[best[0]]], 80)
    return Blocks(work.at_ns[best], work.started_ns[best], kernel, round(longest))


def _regular_size(places: np.ndarray, at_ns: np.ndarray, total: int) -> float:
    """Pieces of work from one of the places to the next; 0 if these are irregular, few, or cover little of all work."""
    if not MIN_BLOCKS < len(places) <= MAX_BLOCKS + 1 or places[-1] - places[0] < MIN_COVERED * total:
        return 0.0
    sizes = np.diff(places)
    median = float(np.median(sizes))
    regular = np.abs(sizes - median) <= MAX_DEVIATION * median
    is_apart = bool((np.diff(at_ns[places]) > 0).all())
    return median if is_apart and regular.mean() >= MIN_REGULAR else 0.0
