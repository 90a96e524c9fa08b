"""What is known of the waits of one rank for input data."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from esprof.analyzers.findings.data.batch_reads import BatchReads, batch_reads
from esprof.analyzers.findings.data.batch_source import BatchSource, batch_source
from esprof.analyzers.rule import Case
from esprof.analyzers.views.batch_waits import SLOW_TIMES_MEDIAN, BatchWaits, waits
from esprof.core.types import Rank
from esprof.replay.whatif.host.host_cpus import cpus_of
from esprof.replay.whatif.loading.batches import RecordedBatches, batches_of
from esprof.replay.whatif.scenario import Declined

MIN_SLOW_BATCHES = 3
"""Least number of slow batches that show an interval: two differences."""

MIN_SHARE_REGULAR = 0.75
"""Least share of the differences between slow batches that must be the same: one slow batch by chance may spoil two."""

MAX_LOAD = 0.9
"""Largest share of the workers' time that their batches may take if they keep up: a queue that is fuller than that waits
for any scatter."""


@dataclass(frozen=True)
class Burst:
    """Slow batches at regular intervals."""

    every: int
    slow_ns: float
    """Median time to make one, ns."""
    usual_ns: float
    """Median time to make another, ns."""


@dataclass(frozen=True)
class RankWaits:
    """The waits of one rank for input data, how its batches are made, and what changes would save."""

    case: Case
    rank: Rank
    with_workers_ns: float
    """Saving of a step if other processes make the batches of the waiting ranks, within the limits of the CPUs, ns."""
    is_limited: bool
    """Whether the CPUs are the limit of that."""
    saving_ns: Callable[[str], float | None]
    """Saving of a step by a term of a what-if for the waiting ranks, ns; None where it is declined."""

    @cached_property
    def waits(self) -> BatchWaits:
        return waits(self.case.run, self.rank, self.case.replayed.steps.steady)

    @cached_property
    def source(self) -> BatchSource:
        return batch_source(self.case.run, self.case.replayed.built.dfg, self.rank)

    @cached_property
    def reads(self) -> BatchReads:
        return batch_reads(self.case.run, self.rank)

    @cached_property
    def cpus(self) -> float | None:
        """At most so many CPUs for each rank; None if unknown."""
        return cpus_of(self.case.run, self.rank)

    @cached_property
    def starved_ns(self) -> float:
        """How long the training thread waits for a CPU in a mean step, wherever it is; 0 if unknown."""
        steps = self.case.run.steps(self.rank)
        waited = steps.ints("ready_ns")[np.isin(steps.ints("step"), self.case.replayed.steps.steady)]
        return float(np.maximum(waited, 0).mean()) if len(waited) else 0.0

    @property
    def unstalled_ns(self) -> float:
        """A step without waiting for data, ns."""
        return max(self.case.pricer.step_ns - self.with_workers_ns, 1.0)

    @property
    def load(self) -> float | None:
        """How many workers such steps would keep busy; None where that is unknown."""
        batches = self.waits.batches or 1.0
        return None if self.source.make_ns is None else batches * self.source.make_ns / self.unstalled_ns

    @property
    def workers_needed(self) -> int | None:
        """Number of workers that would keep up; None where that is unknown."""
        return None if self.load is None else math.ceil(self.load)

    @property
    def needs_more_cpus(self) -> bool:
        """Whether the CPUs of the rank are too few for its batches."""
        if self.is_limited or not self.cpus or not self.source.cpu_ns:
            return self.is_limited
        batches = self.waits.batches or 1.0
        return batches * self.source.cpu_ns / self.unstalled_ns > max(self.cpus - 1, self.cpus / 2)

    @property
    def keeps_up(self) -> bool:
        """Whether the workers make batches as fast as the steps need them on average, with a reserve (`MAX_LOAD`)."""
        return bool(self.source.workers and self.load is not None and self.load <= MAX_LOAD * self.source.workers)

    @property
    def burst(self) -> Burst | None:
        """Slow batches at regular intervals; None if there are none."""
        return None if self.batches is None else burst_of(self.batches.took_ns)

    @cached_property
    def batches(self) -> RecordedBatches | None:
        """The batches of its training passes; None where too few were recorded, or of several loaders."""
        try:
            return batches_of(self.case.run, self.rank, self.case.replayed.steps.steady)
        except Declined:
            return None


def burst_of(took_ns: np.ndarray) -> Burst | None:
    """Slow batches at regular intervals among batches that took so long to make, ns, in the order of their delivery.

    A batch is slow from half the mean time of the slowest ones on: on a busy machine, others take a little longer, too.
    """
    limit = SLOW_TIMES_MEDIAN * float(np.median(took_ns))
    excess = np.maximum(took_ns - limit, 0)
    if not excess.any():
        return None
    is_slow = took_ns > max(limit, float(np.average(took_ns, weights=excess)) / 2)
    at = np.flatnonzero(is_slow)
    if len(at) < MIN_SLOW_BATCHES:
        return None
    intervals, counts = np.unique(np.diff(at), return_counts=True)
    every = int(intervals[counts.argmax()])
    if every == 1 or counts.max() < MIN_SHARE_REGULAR * (len(at) - 1):
        return None
    slow, usual = (float(np.median(took_ns[mask])) for mask in (is_slow, ~is_slow))
    return Burst(every, slow, usual)
