"""How much a rank works, and allocates, in each of its steps: all that finding the steps of a run needs of its events."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from esprof.core.types import Ns, Rank
from esprof.replay.run_by_name import RunByName
from esprof.replay.runtime_names import allocates
from esprof.run.schema import Table


@dataclass(frozen=True)
class RankActivity:
    """Work of a rank, counted up to each of B borders: the starts and ends of its steps, and the ends of time."""

    border_ns: np.ndarray
    """Ascending, on the rank's clock, int64[B]."""
    operations: np.ndarray
    """Number of CPU operations of the job that start before each border, int64[B]. Calls of the GPU runtime count in a trace
    without any operation, as other profilers record it."""
    allocator_ns: np.ndarray
    """Time in allocator calls (`cudaMalloc`, `cudaFree`, …) that start before each border, int64[B]. Only threads that run
    operations count: others, such as the memory-pinning thread of a loader, delay no step."""

    @property
    def works(self) -> bool:
        """Whether a CPU operation of the job was recorded."""
        return bool(self.operations[-1])

    def works_within(self, span: tuple[Ns, Ns]) -> bool:
        """Whether one starts within `span`, ns, from a border to another."""
        return self._between(self.operations, span) > 0

    def allocator_share(self, span: tuple[Ns, Ns]) -> float:
        """Share of `span`, ns, from a border to another, that allocator calls take."""
        return self._between(self.allocator_ns, span) / max(1, span[1] - span[0])

    def _between(self, before: np.ndarray, span: tuple[Ns, Ns]) -> int:
        begin, end = np.searchsorted(self.border_ns, span)
        return int(before[end] - before[begin])


@dataclass(frozen=True)
class RecordedRank:
    """A rank, and start and end of each step that it recorded, ns on its own clock, by step number."""

    source: RunByName
    rank: Rank
    boundaries: Mapping[int, tuple[Ns, Ns]]

    def activity(self) -> RankActivity:
        """Read the rank's events. Raises InputError if they are broken."""
        return _activity(self.source.run.events(self.rank), self.boundaries)


def _activity(events: Table, boundaries: Mapping[int, tuple[Ns, Ns]]) -> RankActivity:
    far = np.iinfo(np.int64)
    border_ns = np.unique([far.min, *(moment for span in boundaries.values() for moment in span), far.max])
    start, tid = events.ints("start_ns"), events.ints("tid")
    operations, runtime = events.is_kind("op", "loader"), events.is_kind("runtime")
    working = (operations if operations.any() else runtime) & (tid >= 0)
    calls = runtime & events.matches("name", allocates)
    calls &= np.isin(tid, tid[events.is_kind("op")]) if calls.any() else False
    return RankActivity(
        border_ns,
        np.searchsorted(np.sort(start[working]), border_ns),
        _sum_before(start[calls], events.ints("dur_ns")[calls], border_ns),
    )


def _sum_before(start_ns: np.ndarray, values: np.ndarray, moments: np.ndarray) -> np.ndarray:
    """Sum of the values that start before each moment."""
    order = np.argsort(start_ns, kind="stable")
    total: np.ndarray = np.append(0, np.cumsum(values[order]))[np.searchsorted(start_ns[order], moments)]
    return total
