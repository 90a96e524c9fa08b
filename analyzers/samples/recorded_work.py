"""What runs at the stack samples of recorded steps: operations, long ones, and those with a gradient."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from esprof.analyzers.samples.job_samples import JobSamples
from esprof.analyzers.views.gradients import has_gradient
from esprof.core.types import NS_PER_US, Ns, Rank

MIN_TENSOR_WORK_NS: Ns = 200 * NS_PER_US
"""Code with most samples in operations longer than this works on tensors: it is no Python overhead."""

MAX_GAP_NS: Ns = 1_000 * NS_PER_US
"""Longest gap between two operations that is attributed to code that calls them."""

MIN_RECORDED_SAMPLES = 3
"""Fewest samples of code in recorded steps from which its work is classified."""


@dataclass(frozen=True)
class RecordedWork:
    """What runs at each of some samples, bool[samples]."""

    in_operation: np.ndarray
    in_long_operation: np.ndarray
    """Whether it lies within an operation longer than `MIN_TENSOR_WORK_NS`."""
    near_operation: np.ndarray
    """Whether it lies within an operation, or in a gap of at most `MAX_GAP_NS` between two."""
    in_gradient: np.ndarray
    """Whether the gradient of that operation is computed, or of one of those two."""

    @property
    def is_on_tensors(self) -> bool:
        """Whether most samples lie within long operations."""
        return len(self.in_operation) >= MIN_RECORDED_SAMPLES and bool(self.in_long_operation.mean() > 0.5)

    @property
    def has_gradient(self) -> bool | None:
        """Whether most of the operations have a gradient; None if too few are known. A loop of small operations is mostly
        sampled between them."""
        known = self.in_gradient[self.near_operation]
        return bool(known.mean() > 0.5) if len(known) >= MIN_RECORDED_SAMPLES else None


class RecordedSamples:
    """The samples of recorded steps on all ranks. The events of each rank are searched once, on first use."""

    def __init__(self, samples: JobSamples) -> None:
        self._samples = samples
        self._of_rank: dict[Rank, tuple[np.ndarray, np.ndarray]] = {}
        """(code of the stack of each sample, the columns of `RecordedWork`)."""

    def of(self, is_chosen: Callable[[str], bool]) -> RecordedWork:
        """What runs at the samples of the stacks that `is_chosen` accepts."""
        found = []
        for rank in self._samples.run.ranks:
            code, work = self._work(rank)
            chosen = np.array([is_chosen(stack) for stack in self._samples.of(rank).stacks], bool)
            found.append(work[:, chosen[code]])
        return RecordedWork(*np.concatenate(found, axis=1))

    def _work(self, rank: Rank) -> tuple[np.ndarray, np.ndarray]:
        if rank not in self._of_rank:
            samples, events = self._samples.of(rank), self._samples.run.events(rank)
            timed = self._samples.steps.in_phase(rank, "timed")
            recorded = np.isin(samples.step, timed) & (samples.code >= 0)
            rows = np.flatnonzero(events.is_kind("op"))
            rows = rows[np.argsort(events.ints("start_ns")[rows], kind="stable")]
            begin, dur = events.ints("start_ns")[rows], events.ints("dur_ns")[rows]
            end, is_long, gradient = begin + dur, dur > MIN_TENSOR_WORK_NS, has_gradient(events)[rows]
            work = np.zeros((4, int(recorded.sum())), bool)
            for at, moment in enumerate(samples.at_ns[recorded].tolist()):
                around = (begin <= moment) & (moment < end)
                near = around if around.any() else _beside(begin, end, moment)
                work[:, at] = around.any(), is_long[around].any(), near.any(), gradient[near].any()
            self._of_rank[rank] = samples.code[recorded], work
        return self._of_rank[rank]


def _beside(begin: np.ndarray, end: np.ndarray, moment: Ns) -> np.ndarray:
    """Mask of the operations, sorted by `begin`, before and after the gap around `moment`; none if it is long."""
    mask = np.zeros(len(begin), bool)
    after = int(np.searchsorted(begin, moment, side="right"))
    if 0 < after < len(begin):
        before = int(np.argmax(end[:after]))
        mask[[before, after]] = begin[after] - end[before] <= MAX_GAP_NS
    return mask
