"""The steps of a run: which were recorded, which count, and their durations with and without the profiler."""

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import reduce

import numpy as np

from esprof.core import readable
from esprof.core.errors import InputError, UsageError
from esprof.core.text import printable
from esprof.core.types import Ns, Rank
from esprof.replay.over_ranks import IN_THIS_PROCESS, RankWorkers
from esprof.replay.rank_activity import RankActivity, RecordedRank
from esprof.replay.run_by_name import RunByName
from esprof.run.run import Run, RunWarning, WarningCode
from esprof.run.schema import Table

MAX_ALLOCATOR_SHARE = 0.25
"""Maximum share of a step in allocator calls, on any rank, of a steady-state step."""

MIN_STEPS_TO_LEAVE_FIRST_OUT = 4
"""Window length, without steps next to a lost one, from which on the first step is excluded: the profiler starts in it."""

MAX_PLAIN_STEPS = 50
"""Maximum number of unprofiled steps in the baseline on each side of a window: the pace of a job changes over hours."""

MIN_PLAIN_STEPS = 3
"""Minimum number of unprofiled steps for a median."""


MIN_STEPS_OF_KIND = 3
"""Least number of steps of one kind of pass for the steps of all other kinds to be excluded."""


class LeftOutFor(Enum):
    """Why a step is excluded from the steady-state steps."""

    FIRST = "first"
    ALLOCATOR = "allocator"
    KIND = "kind"
    """It is another kind of pass than most of the window, such as a prefill among decode steps."""
    LOST = "lost"
    """A rank recorded nothing of it."""
    AFTER_LOST = "after lost"
    """A rank recorded nothing of the step before. It enters this one at its recorded time in every what-if, and the
    others would seem to wait for it."""


@dataclass(frozen=True)
class Reason:
    """Why one step is excluded from the steady-state steps."""

    cause: LeftOutFor
    rank: Rank | None = None
    """The last of the ranks with this cause; None for a cause of all ranks."""
    share: float | None = None
    """Share of the step that allocator calls take on `rank`, from 0 to 1; None for other causes."""
    kind: str | None = None
    """Kind of pass of the step; None for other causes."""

    def __str__(self) -> str:
        if self.cause is LeftOutFor.FIRST:
            return "the window's first step"
        if self.cause is LeftOutFor.KIND:
            return f"it is another kind of pass, {self.kind}"
        if self.cause is LeftOutFor.LOST:
            return f"rank {self.rank} did not record it"
        if self.cause is LeftOutFor.AFTER_LOST:
            return f"rank {self.rank} did not record the step before"
        return f"allocator calls take {100 * (self.share or 0):.0f} % of it on rank {self.rank}"


@dataclass(frozen=True)
class RecordedSteps:
    """The recorded steps of a run, and which of them count."""

    run: Run = field(repr=False)
    """The run, without the ranks that recorded no CPU operation in `all`."""
    boundaries: Mapping[Rank, Mapping[int, tuple[Ns, Ns]]]
    """(start, end) of each step that a rank recorded or lost (`bridged`), ns on the rank's own clock, by rank and step
    number."""
    windows: tuple[Sequence[int], ...]
    """Consecutive steps whose boundaries are known on every rank, ascending (`windows_of`)."""
    all: tuple[int, ...]
    """The steps that a graph covers: the longest window, and of equals the latest."""
    steady: tuple[int, ...]
    """The steady-state steps of `all`, or all where there are none."""
    left_out: Mapping[int, Reason]
    """The excluded steps of `all`, with the reason."""
    lost_by: Mapping[Rank, Collection[int]]
    """The steps of `all` of which each rank recorded nothing; without the ranks that recorded all."""

    @property
    def lost(self) -> list[int]:
        """Steps that some ranks recorded and others did not, ascending."""
        recorded = {step for boundaries in self.boundaries.values() for step in boundaries}
        return sorted(recorded.difference(*self.windows))

    @property
    def steady_at(self) -> np.ndarray:
        """Positions of the steady-state steps in `all`, int64."""
        return np.array([self.all.index(step) for step in self.steady])

    def measured_ns(self, correction_ns: Mapping[Rank, Ns]) -> np.ndarray:
        """Recorded duration of each step of `all`, ns: from when the last rank enters it to when the last rank leaves it.

        `correction_ns` is added to the times of each rank, which puts them on one clock.
        """
        spans = [[self.boundaries[rank][step] for rank in self.run.ranks] for step in self.all]
        by = np.array([correction_ns.get(rank, 0) for rank in self.run.ranks], np.int64)
        enter, leave = ((np.array(spans, np.int64)[:, :, end] + by).max(axis=1) for end in (0, 1))
        took: np.ndarray = np.maximum(leave - enter, 1)
        return took

    def plain_ns(self, correction_ns: Mapping[Rank, Ns]) -> np.ndarray:
        """Recorded duration of each unprofiled step near the window, ns, by time; empty below MIN_PLAIN_STEPS."""
        return plain_ns(self.run, self.all, correction_ns)


def steps_of(run: Run, workers: RankWorkers = IN_THIS_PROCESS) -> RecordedSteps:
    """Find the steps of `run`. A rank without CPU operations in them is excluded, as if its trace were missing.

    The events of each rank are read once, by `workers`. Raises InputError where its ranks have no recorded step in common,
    and RanksLost.
    """
    source, ranks = RunByName(run), run.ranks
    recorded = {rank: step_boundaries(run, rank) for rank in ranks}
    tasks = ((rank, RecordedRank(source, rank, recorded[rank])) for rank in ranks)
    activity = dict(zip(ranks, workers.over("Finding the steps", RecordedRank.activity, tasks), strict=True))
    return _steps_of(run, recorded, activity)


def _steps_of(
    run: Run, recorded: Mapping[Rank, Mapping[int, tuple[Ns, Ns]]], activity: Mapping[Rank, RankActivity]
) -> RecordedSteps:
    """`steps_of` a run, whose ranks may be some of those of `recorded` and `activity`."""
    idle = [rank for rank in run.ranks if not activity[rank].works]
    if 0 < len(idle) < len(run.ranks):
        return _steps_of(_without(run, idle), recorded, activity)
    recorded = {rank: recorded[rank] for rank in run.ranks}
    boundaries = bridged(recorded)
    windows = windows_of(run, boundaries)
    if not windows:
        raise InputError(
            "its ranks have no recorded step in common",
            path=run.path,
            remedy=_remedy(run),
        )
    longest = max(map(len, windows))
    steps = tuple([window for window in windows if len(window) == longest][-1])
    spans = {rank: (boundaries[rank][steps[0]][0], boundaries[rank][steps[-1]][1]) for rank in run.ranks}
    idle = [rank for rank in run.ranks if not activity[rank].works_within(spans[rank])]
    if 0 < len(idle) < len(run.ranks):
        return _steps_of(_without(run, idle), recorded, activity)
    lost_by = {rank: gone for rank, mine in recorded.items() if (gone := set(steps).difference(mine))}
    lost = _lost_and_next(lost_by)
    reasons = _unsteady(run, boundaries, activity, steps, len(set(steps) - set(lost))) | lost
    if len(reasons) == len(steps):  # Any steps are better than none.
        reasons = lost
    steady = tuple(step for step in steps if step not in reasons)
    return RecordedSteps(run, boundaries, tuple(windows), steps, steady, reasons, lost_by)


def _remedy(run: Run) -> str:
    """What to do about a run without a common step: a job that hung or died cannot be recorded better."""
    if any(run.flight(rank.rank).snapshots for rank in run.meta.ranks):
        return "The job was slow, hung or died while it was recorded: `esprof diagnose` of this run says where."
    return "Record the same steps on all ranks, or pass the trace of one rank."


def bridged(recorded: Mapping[Rank, Mapping[int, tuple[Ns, Ns]]]) -> dict[Rank, dict[int, tuple[Ns, Ns]]]:
    """The boundaries of the steps that each rank recorded, and of those that it lost between two that all ranks recorded.

    A rank ran every step that another one recorded: from the end of its previous step to the start of its next one.
    """
    common = set.intersection(*map(set, recorded.values()))
    lost = [step for step in set().union(*recorded.values()) - common if {step - 1, step + 1} <= common]
    return {
        rank: {step: (mine[step - 1][1], mine[step + 1][0]) for step in lost} | dict(mine)
        for rank, mine in recorded.items()
    }


def _lost_and_next(lost_by: Mapping[Rank, Collection[int]]) -> dict[int, Reason]:
    """The steps that ranks lost, and the steps after them, with the reason."""
    lost = {step: rank for rank, steps in lost_by.items() for step in steps}
    behind = {step + 1: Reason(LeftOutFor.AFTER_LOST, rank) for step, rank in lost.items()}
    return behind | {step: Reason(LeftOutFor.LOST, rank) for step, rank in lost.items()}


def _without(run: Run, idle: Sequence[Rank]) -> Run:
    text = (
        f"{readable.ranks(idle)} left out: no CPU operation recorded in these steps (record with ProfilerActivity.CPU)"
    )
    return run.without(idle, RunWarning("no-operations", text, tuple(idle)))


def step_boundaries(run: Run, rank: Rank) -> dict[int, tuple[Ns, Ns]]:
    """Step number -> (start, end), ns on the rank's clock, of the steps that the profiler recorded on `rank`.

    Steps of an abandoned window are excluded: the job's own profiler may have taken over, for example.
    """
    table = run.steps(rank)
    recorded_windows = [range(window.first, window.last + 1) for window in run.rank(rank).windows if not window.stacks]
    timed = table.where(table.matches("phase", "timed".__eq__))
    columns = (timed.ints(name).tolist() for name in ("step", "start_ns", "dur_ns"))
    return {
        step: (start, start + dur)
        for step, start, dur in zip(*columns, strict=True)
        if not recorded_windows or any(step in window for window in recorded_windows)
    }


def _unsteady(
    run: Run,
    boundaries: Mapping[Rank, Mapping[int, tuple[Ns, Ns]]],
    activity: Mapping[Rank, RankActivity],
    steps: Sequence[int],
    whole: int,
) -> dict[int, Reason]:
    """The steps to exclude, with the reason; `whole` is the number of steps that no rank lost."""
    reasons: dict[int, Reason] = {}
    if whole >= MIN_STEPS_TO_LEAVE_FIRST_OUT:
        reasons[steps[0]] = Reason(LeftOutFor.FIRST)
    reasons |= _other_passes(run, boundaries, steps)
    for rank in run.ranks:
        for step in steps:
            share = activity[rank].allocator_share(boundaries[rank][step])
            if share > MAX_ALLOCATOR_SHARE:
                reasons[step] = Reason(LeftOutFor.ALLOCATOR, rank, share)
    return reasons


def _other_passes(
    run: Run, boundaries: Mapping[Rank, Mapping[int, tuple[Ns, Ns]]], steps: Sequence[int]
) -> dict[int, Reason]:
    """Steps whose annotation is not of the kind that takes most of the window, with the reason.

    Numbers in a name say how much a pass does; 0 says that it does none of it. Prefill and decode steps of vLLM differ
    in `execute_context_0(0)_generation_16(16)`. Kinds of fewer than MIN_STEPS_OF_KIND steps are not considered.
    """
    if WarningCode.STEPS_BY_ANNOTATION not in {warning.code for warning in run.warnings}:
        return {}
    rank = run.ranks[0]
    events = run.events(rank)
    at, (name, names) = np.flatnonzero(events.is_kind("annotation")), events.codes("name")
    # Of annotations that begin together, the outermost comes first, and stays when it is set last.
    begun = dict(zip(events.ints("start_ns")[at[::-1]].tolist(), name[at[::-1]].tolist(), strict=True))
    start = {step: boundaries[rank][step][0] for step in steps}
    kinds = {step: _kind_of_pass(names[begun[start[step]]]) for step in steps if start[step] in begun}
    took: Counter[str] = Counter()
    for step, kind in kinds.items():
        took[kind] += boundaries[rank][step][1] - boundaries[rank][step][0]
    frequent = [kind for kind, count in Counter(kinds.values()).items() if count >= MIN_STEPS_OF_KIND]
    if not frequent:
        return {}
    main = max(frequent, key=lambda kind: took[kind])
    return {step: Reason(LeftOutFor.KIND, kind=printable(kind, 80)) for step, kind in kinds.items() if kind != main}


def _kind_of_pass(name: str) -> str:
    return re.sub(r"\d+", lambda number: "0" if int(number[0]) == 0 else "n", name)


def windows_of(run: Run, steps_of: Mapping[Rank, Collection[int]]) -> list[Sequence[int]]:
    """The windows of consecutive steps that all ranks have, ascending; one window where steps follow each other whatever
    their numbers (`Run.is_one_window`)."""
    common = set.intersection(*map(set, steps_of.values()))
    return [sorted(common)] if run.is_one_window and common else [*readable.stretches(common)]


def at_window(run: Run, step: int) -> Run:
    """`run` with only the window that holds `step`; unprofiled steps stay.

    Raises UsageError where no window holds that step.
    """
    windows = windows_of(run, bridged({rank: step_boundaries(run, rank) for rank in run.ranks}))
    window = next((window for window in windows if step in window), None)
    if window is None:
        known = readable.runs(step for window in windows for step in window)
        remedy = f"The windows of this run have steps {known}." if known else "This run has no window of steps."
        raise UsageError(f"step {step} is in no window", path=run.path, remedy=remedy)

    return run.with_window(step, {rank: _without_other_windows(run.steps(rank), window) for rank in run.ranks})


def _without_other_windows(steps: Table, window: Sequence[int]) -> Table:
    return steps.where(~steps.matches("phase", "timed".__eq__) | np.isin(steps.ints("step"), window))


def plain_ns(run: Run, window: Sequence[int], correction_ns: Mapping[Rank, Ns]) -> np.ndarray:
    """Durations of the unprofiled steps next to `window`, ns, by time; empty below MIN_PLAIN_STEPS.

    A step of the job lasts from when the last rank enters it to when the last rank leaves it. `correction_ns` is added to
    the times of each rank, which puts them on one clock.
    """
    plain = {rank: plain_steps(run.steps(rank)) for rank in run.ranks}
    shared = reduce(np.intersect1d, [steps.ints("step") for steps in plain.values()])
    near = np.append(shared[shared < window[0]][-MAX_PLAIN_STEPS:], shared[shared > window[-1]][:MAX_PLAIN_STEPS])
    if len(near) < MIN_PLAIN_STEPS:
        return np.empty(0)
    enter, leave = [], []
    for rank, steps in plain.items():
        rows = np.searchsorted(steps.ints("step"), near)
        enter.append(steps.ints("start_ns")[rows] + correction_ns.get(rank, 0))
        leave.append(enter[-1] + steps.ints("dur_ns")[rows])
    took: np.ndarray = np.max(leave, axis=0) - np.max(enter, axis=0)
    return took


def plain_steps(steps: Table) -> Table:
    """The rows of unprofiled steps, without the job's first step, which includes one-time work."""
    return steps.where(steps.matches("phase", "plain".__eq__) & (np.arange(len(steps)) > 0))
