"""Which steps of a run count: steady ones, and why the others do not."""

from dataclasses import dataclass
from enum import Enum

import numpy as np

from esprof.replay import rules
from esprof.replay.building.build import common_steps
from esprof.replay.building.rank_events import step_borders
from esprof.replay.rules import call_name
from esprof.trace.run import Run
from esprof.types import Ns, Rank

ALLOCATOR_SHARE = 0.25
"""A step that spends more of its time in allocator calls, on any rank, is not steady."""

FEWEST = 4
"""From this many steps on, the window's first is left out: the profiler itself starts in it."""


class LeftOutFor(Enum):
    """Why a step is not steady."""

    FIRST = "first"
    ALLOCATOR = "allocator"


@dataclass(frozen=True)
class Reason:
    """Why one step is not steady."""

    cause: LeftOutFor
    rank: Rank | None = None
    """The last of the ranks that it was found on; None where it concerns all alike."""
    share: float | None = None
    """Of the step, what allocator calls take on that rank."""

    def __str__(self) -> str:
        if self.cause is LeftOutFor.FIRST:
            return "the window's first step"
        return f"{100 * (self.share or 0):.0f} % of it are allocator calls on rank {self.rank}"


@dataclass(frozen=True)
class SteadySteps:
    """The steps of a window, sorted into those that count and the others."""

    all: tuple[int, ...]
    """Those that the graph covers."""
    kept: tuple[int, ...]
    """Those that count."""
    left_out: dict[int, Reason]
    """The others, each with the reason."""


def steady_steps(run: Run) -> SteadySteps:
    """Sort the steps that all ranks recorded into steady ones and others. Keeps all where none would be left."""
    steps = common_steps(run)
    reasons: dict[int, Reason] = {}
    if len(steps) >= FEWEST:
        reasons[steps[0]] = Reason(LeftOutFor.FIRST)
    for rank in run.ranks:
        shares = allocator_shares(run, rank, steps)
        for step, share in shares.items():
            if share > ALLOCATOR_SHARE:
                reasons[step] = Reason(LeftOutFor.ALLOCATOR, rank, share)
    kept = tuple(step for step in steps if step not in reasons)
    return SteadySteps(tuple(steps), kept or tuple(steps), reasons if kept else {})


def allocator_shares(run: Run, rank: Rank, steps: list[int]) -> dict[int, float]:
    """Share of each step that `rank` spends in allocator calls (`cudaMalloc`, `cudaFree` and kin)."""
    events, borders = run.events(rank), step_borders(run, rank)
    codes, names = events.codes("name")
    allocators = [code for code, name in enumerate(names) if rules.ALLOCATOR.match(call_name(name))]
    calls = events.is_kind("runtime") & np.isin(codes, allocators)
    starts, durations = events.ints("start_ns")[calls], events.ints("dur_ns")[calls]
    shares = {}
    for step in steps:
        begin, end = borders[step]
        inside = (starts >= begin) & (starts < end)
        shares[step] = float(durations[inside].sum()) / max(1, end - begin)
    return shares


def measured_ns(run: Run, steps: tuple[int, ...], shift: dict[Rank, Ns]) -> np.ndarray:
    """Recorded duration of each step of the job: from when the last rank enters it to when the last rank leaves it."""
    borders = {rank: step_borders(run, rank) for rank in run.ranks}
    enter = [max(borders[rank][step][0] + shift.get(rank, 0) for rank in run.ranks) for step in steps]
    leave = [max(borders[rank][step][1] + shift.get(rank, 0) for rank in run.ranks) for step in steps]
    return np.maximum(np.array(leave, np.int64) - np.array(enter, np.int64), 1)
