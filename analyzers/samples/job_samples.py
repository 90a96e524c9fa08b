"""Stack samples of the training threads of all ranks of a Run, by time."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from esprof.analyzers.steps.job_steps import JobSteps
from esprof.core.types import Rank
from esprof.replay.cpu.sampled import RankSamples


@dataclass(frozen=True)
class StackSamples:
    """Stack samples of one rank, by time; arrays have one entry for each sample. See `schema.SAMPLES`."""

    at_ns: np.ndarray
    """Time of the sample, on the rank's clock."""
    dur_ns: np.ndarray
    """Time that the sample represents."""
    cpu_ns: np.ndarray
    """CPU time of the thread in `dur_ns`; -1 if unknown."""
    step: np.ndarray
    code: np.ndarray
    """Index into `stacks`; -1 without a stack."""
    stacks: list[str]
    """The distinct stacks, each a text of lines, the innermost last."""

    def __len__(self) -> int:
        return len(self.at_ns)

    def matches(self, wanted: Callable[[str], object]) -> np.ndarray:
        """Mask of the samples for whose stack `wanted` is true; False without a stack."""
        # The last entry is that of code -1, no stack.
        mask: np.ndarray = np.array([*(bool(wanted(stack)) for stack in self.stacks), False])[self.code]
        return mask


class JobSamples:
    """The samples of a Run on all its ranks. The table of each rank is read once, on first use."""

    def __init__(self, steps: JobSteps) -> None:
        self.steps = steps
        self.run = steps.run
        self._samples: dict[Rank, StackSamples] = {}
        self._collecting: dict[Rank, RankSamples] = {}

    def of(self, rank: Rank) -> StackSamples:
        if rank not in self._samples:
            table = self.run.samples(rank)
            code, stacks = table.codes("stack")
            at, dur, cpu, step = (table.ints(column) for column in ("at_ns", "dur_ns", "cpu_ns", "step"))
            self._samples[rank] = StackSamples(at, dur, cpu, step, code, stacks)
        return self._samples[rank]

    def collecting(self, rank: Rank) -> RankSamples:
        """The samples of `rank` with its garbage collections, as replay reads them."""
        if rank not in self._collecting:
            self._collecting[rank] = RankSamples(self.run, rank)
        return self._collecting[rank]
