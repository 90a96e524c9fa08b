"""What runs at the stack samples of recorded steps: operations, long ones, and those with a gradient."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from esprof.analyzers.samples.job_samples import JobSamples
from esprof.analyzers.views.gradients import has_gradient
from esprof.core.types import NS_PER_US, Ns, Rank

MIN_TENSOR_WORK_NS: Ns = 200 * NS_PER_US
"""Code with most samples in operations longer than this works on tensors: it is no Python overhead."""

MIN_RECORDED_SAMPLES = 3
"""Fewest samples of code in recorded steps from which its work is classified."""


@dataclass(frozen=True)
class RecordedWork:
    """What runs at each of some samples, bool[samples]."""

    in_operation: np.ndarray
    in_long_operation: np.ndarray
    """Whether it lies within an operation longer than `MIN_TENSOR_WORK_NS`."""
    in_gradient: np.ndarray
    """Whether it lies within an operation whose gradient is computed."""

    @property
    def is_on_tensors(self) -> bool:
        """Whether most samples lie within long operations."""
        return len(self.in_operation) >= MIN_RECORDED_SAMPLES and bool(self.in_long_operation.mean() > 0.5)

    @property
    def has_gradient(self) -> bool | None:
        """Whether most of the operations have a gradient; None if too few are known."""
        known = self.in_gradient[self.in_operation]
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
            begin, dur = events.ints("start_ns")[rows], events.ints("dur_ns")[rows]
            end, is_long, gradient = begin + dur, dur > MIN_TENSOR_WORK_NS, has_gradient(events)[rows]
            work = np.zeros((3, int(recorded.sum())), bool)
            for at, moment in enumerate(samples.at_ns[recorded].tolist()):
                around = (begin <= moment) & (moment < end)
                work[:, at] = around.any(), is_long[around].any(), gradient[around].any()
            self._of_rank[rank] = samples.code[recorded], work
        return self._of_rank[rank]
