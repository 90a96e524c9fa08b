"""Stack samples of a rank's training thread within a time interval, and its garbage collections."""

import re
from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from esprof.core.types import Ns, Rank
from esprof.run.raw.stages import GARBAGE_COLLECTION
from esprof.run.run import Run
from esprof.run.stacks import MIN_SILENCE_SAMPLED_NS, SourceLocation, location_of

_COLLECTIVE = re.compile(r"torch/distributed/distributed_c10d\.py\(")
"""Matches source lines at which Python waits for a collective."""

_ENGINE = re.compile(r"torch/autograd/graph\.py\(\d+\): _engine_run_backward$")
"""Matches the source line that waits for a backward pass, in which no Python code runs unless autograd calls it."""

MIN_RUNNING_SHARE = 0.7
"""Least share of the time that the thread ran at which a line counts as computing, even in a call of a collective."""


@dataclass(frozen=True)
class LocationShare:
    """Share of a time interval that was spent at one source location."""

    location: SourceLocation
    share: float
    """Share of the time, from 0 to 1."""
    ran: float
    """Share of the time at the location that the thread ran on a CPU, from 0 to 1; NaN if unknown."""


@dataclass(frozen=True)
class RankSamples:
    """The samples of one rank. Times are on its own clock."""

    run: Run
    rank: Rank

    def __len__(self) -> int:
        return len(self._samples[0])

    @cached_property
    def collections(self) -> np.ndarray:
        """Begin and end of each recorded garbage collection, ns, int64[collections, 2], sorted by begin."""
        stages = self.run.stages(self.rank)
        mine = stages.matches("name", GARBAGE_COLLECTION.__eq__)
        # Collections in loader workers delay the thread only through the batches that it waits for.
        mine &= stages.ints("worker") < 0
        spans: np.ndarray = np.stack([stages.ints(column)[mine] for column in ("start_ns", "end_ns")], axis=1)
        return spans[np.argsort(spans[:, 0])]

    def collecting_ns(self, begin_ns: np.ndarray, end_ns: np.ndarray) -> np.ndarray:
        """Time of garbage collection within each interval, ns, float64[intervals]."""
        if not len(self.collections):
            return np.zeros(len(begin_ns))
        first, last = self.collections.T
        # Collections do not overlap, so the cumulative time is piecewise linear and grows only within collections.
        moments = self.collections.ravel()
        collected = np.repeat(np.cumsum(last - first), 2)
        collected[::2] -= last - first
        within: np.ndarray = np.interp(end_ns, moments, collected) - np.interp(begin_ns, moments, collected)
        return within

    @cached_property
    def _samples(self) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, list[str]]:
        """(time of each sample, ns; duration that it represents, ns; CPU time of that, ns; index of its stack; stacks)."""
        samples = self.run.samples(self.rank)
        codes, stacks = samples.codes("stack")
        return samples.ints("at_ns"), samples.ints("dur_ns"), samples.ints("cpu_ns"), codes, stacks

    def within(self, begin: Ns, end: Ns) -> list[LocationShare] | None:
        """Locations sampled between `begin` and `end`; None without samples."""
        at, dur, cpu, codes, texts = self._samples
        first, last = np.searchsorted(at, [begin, end], side="right").tolist()
        took: dict[SourceLocation, tuple[float, float]] = defaultdict(lambda: (0.0, 0.0))
        for index in range(first, min(last + 1, len(at))):
            inside = min(int(at[index]), end) - max(int(at[index] - dur[index]), begin)
            if inside > 0 and codes[index] >= 0:
                ns, ran = took[location := location_of(texts[codes[index]])]
                took[location] = ns + inside, ran + inside * float(cpu[index]) / max(int(dur[index]), 1)
        rows = [
            LocationShare(location, ns / (end - begin), min(1.0, ran / ns))
            for location, (ns, ran) in took.items()
            if not is_waiting(location, ran / ns)
        ]
        return rows if took else None

    def frames_behind(self, moments_ns: np.ndarray) -> list[tuple[str, bool]]:
        """(first sampled line of the job's own code, "" for none; whether it was sampled within `MIN_SILENCE_SAMPLED_NS`)
        after each of `moments_ns`."""
        at, _, _, codes, texts = self._samples
        index = np.searchsorted(at, moments_ns)
        is_close = np.append(at, np.iinfo(np.int64).max)[index] - moments_ns <= MIN_SILENCE_SAMPLED_NS
        seen = np.append(codes, -1)[index].tolist()
        return [
            (location_of(texts[code]).frame if code >= 0 else "", near)
            for code, near in zip(seen, is_close.tolist(), strict=True)
        ]


def is_waiting(location: SourceLocation, ran: float) -> bool:
    """Whether Python waits at this location for a collective or a backward pass; `ran` is the share of CPU time."""
    line = location.call or location.frame
    return bool(_ENGINE.search(line)) or (ran < MIN_RUNNING_SHARE and bool(_COLLECTIVE.search(line)))
