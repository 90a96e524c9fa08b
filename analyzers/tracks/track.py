"""What a viewer of timelines shows: processes with tracks of slices, arrows between slices, and counters."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum, StrEnum

import numpy as np


class ArrowKind(StrEnum):
    """Why an arrow leads from one slice to another."""

    LAUNCH = "launch"
    COLLECTIVE = "collective"
    WAIT = "wait"


class ArrowEnd(IntEnum):
    """What a slice is to an arrow."""

    SOURCE = 0
    PASSED = 1
    TARGET = 2


@dataclass(frozen=True)
class ArrowEnds:
    """Ends of arrows at the slices of one track, one entry per end. An arrow has one id in the whole export."""

    slice: np.ndarray
    """int64, index of the slice in its track."""
    id: np.ndarray
    """int64, from 1 to below 2^53, so that JSON holds it exactly."""
    end: np.ndarray
    """int8, an `ArrowEnd`."""
    kind: Sequence[ArrowKind]

    @classmethod
    def none(cls) -> "ArrowEnds":
        nothing = np.zeros(0, np.int64)
        return cls(nothing, nothing, nothing, ())

    def by_slice(self) -> dict[int, list[tuple[int, ArrowEnd, ArrowKind]]]:
        """(id, end, kind) of the arrow ends of each slice that has any."""
        found: dict[int, list[tuple[int, ArrowEnd, ArrowKind]]] = {}
        for at, number, end, kind in zip(
            self.slice.tolist(), self.id.tolist(), self.end.tolist(), self.kind, strict=True
        ):
            found.setdefault(at, []).append((number, ArrowEnd(end), kind))
        return found


@dataclass(frozen=True)
class Slices:
    """Intervals of time by start, of those that start together the longest first; one entry per slice.

    Times are int64 ns since the epoch, on the clock of the job.
    """

    start_ns: np.ndarray
    end_ns: np.ndarray
    name: np.ndarray
    """int, an index into `names`."""
    names: Sequence[str]
    category: np.ndarray
    """int, an index into `categories`."""
    categories: Sequence[str]
    args: Mapping[str, Sequence[int | str | None]]
    """More about each slice, by name; None where a slice has no value."""

    def __len__(self) -> int:
        return len(self.start_ns)

    def depths(self) -> list[int]:
        """Number of the row of each slice: 0, or a later one where it crosses slices of row 0. Slices of a row nest."""
        rows: list[list[int]] = []  # Of each row the ends of the open slices, the innermost last.
        depths = []
        for start, end in zip(self.start_ns.tolist(), self.end_ns.tolist(), strict=True):
            depth = next((row for row, open_ends in enumerate(rows) if _fits(open_ends, start, end)), len(rows))
            if depth == len(rows):
                rows.append([])
            rows[depth].append(end)
            depths.append(depth)
        return depths


def _fits(open_ends: list[int], start: int, end: int) -> bool:
    """Whether a slice crosses none of the open ones; those that end before it are closed."""
    while open_ends and open_ends[-1] <= start:
        open_ends.pop()
    return not open_ends or end <= open_ends[-1]


@dataclass(frozen=True)
class Track:
    """What runs one thing at a time, with what it ran."""

    name: str
    slices: Slices
    arrows: ArrowEnds


@dataclass(frozen=True)
class CounterTrack:
    """An amount of bytes over time."""

    name: str
    at_ns: np.ndarray
    """int64, ns since the epoch, on the clock of the job."""
    values: np.ndarray
    """int64, bytes."""


@dataclass(frozen=True)
class TrackProcess:
    """Tracks that a viewer shows together: one rank in one timeline."""

    name: str
    """Such as `rank 3`, `rank 3 replayed`, `rank 3 network=2x`; no two have the same."""
    about: str
    """Host and device of the rank; may be empty."""
    recorded: bool
    """Whether the slices are events of the profiler: categories and arguments are those of torch.profiler's traces."""
    tracks: Sequence[Track]
    counters: Sequence[CounterTrack] = ()
