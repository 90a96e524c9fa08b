"""The saves of a job, and what they cost: steps that stop for a save, and steps beside one that is written."""

import re
from dataclasses import dataclass

import numpy as np

from esprof.analyzers.steps.job_steps import ComparedPhase, JobSteps
from esprof.core.save_cost import SaveCost
from esprof.core.statistics import mean_margin
from esprof.core.types import Rank
from esprof.run.raw.stages import SAVES, STAGING
from esprof.run.schema import Table
from esprof.run.step_rows import step_at

MAX_OVERHEAD_PCT = 3.5
"""Time that saves may take by default, in per cent of the steps without them (CheckFreq, FAST 2021)."""

MIN_SAVES = 3
"""Fewest saves in compared steps: the margin of a mean of two is nine times their standard deviation."""

MIN_CLEAN = 8
"""Fewest steps without a save."""

_SAVING = re.compile(r"(^|[^a-z])(save|saving|snapshot|checkpoint|ckpt)", re.IGNORECASE)
"""Matches stages that the job marked itself around a save."""


@dataclass(frozen=True)
class Saves:
    """The saves of a job. Times are of its compared steps, ns, float64."""

    names: tuple[str, ...]
    """The stages that are saves, as recorded."""
    begin: np.ndarray
    """Steps in which one begins, ascending, profiled ones too, int64[saves]."""
    clean_ns: np.ndarray
    """Each step in which no save runs; if there are too few, each in which none begins."""
    stops_ns: np.ndarray
    """Excess over a mean clean step of each step in which a save begins, without `waits_ns`."""
    waits_ns: np.ndarray
    """Time in that step until the save before it was durable."""
    calls_ns: np.ndarray
    """Longest time that a rank spent in the calls that save in that step."""
    writes_ns: np.ndarray
    """Time from the start of each save until it is durable, of those that are written in the background."""
    staging_ns: np.ndarray
    """Time from the start of each such save until its state is copied, where that was recorded."""
    beside_ns: np.ndarray
    """Each step during which a save is written, and in which none begins."""

    @property
    def every(self) -> int | None:
        """Median number of steps from one save to the next; None for a single save."""
        return int(np.median(np.diff(self.begin))) if len(self.begin) > 1 else None

    @property
    def is_enough(self) -> bool:
        return len(self.stops_ns) >= MIN_SAVES and len(self.clean_ns) >= MIN_CLEAN

    @property
    def is_always_written(self) -> bool:
        """Whether one is written in nearly every step, so that what writing slows is unknown."""
        return not len(self.beside_ns) and float(self.writes_ns.sum()) > float(self.clean_ns.sum()) / 2

    @property
    def mean_cost(self) -> SaveCost:
        """What a mean save costs."""
        return SaveCost(
            step_ns=float(self.clean_ns.mean()),
            stops_ns=float(self.stops_ns.mean()),
            writes_ns=float(self.writes_ns.mean()) if len(self.writes_ns) else 0.0,
            slows_ns=self.slows_ns,
        )

    @property
    def slows_ns(self) -> float:
        """Time by which writing in the background prolongs a step; 0 where that is within what steps scatter."""
        slower, margin = self.slower_ns
        return slower if slower > margin else 0.0

    @property
    def slower_ns(self) -> tuple[float, float]:
        """(by how much a step beside a save is longer than a clean one, half the width of its 95 % interval), ns."""
        if len(self.beside_ns) < MIN_SAVES:
            return 0.0, 0.0
        margin = np.hypot(mean_margin(self.beside_ns), mean_margin(self.clean_ns))
        return float(self.beside_ns.mean() - self.clean_ns.mean()), float(margin)


def saves_of(job: JobSteps) -> Saves | None:
    """The saves of a job; None if none was recorded."""
    begin, names = _begun(job)
    if not len(begin):
        return None
    phase: ComparedPhase = "plain" if len(job.numbers("plain")) else "timed"
    steps = job.numbers(phase)
    took = job.durations_ns(steps).astype(np.float64)
    begins = np.isin(steps, begin)
    written = np.zeros(len(steps), bool)
    for rank in job.run.ranks:
        written |= _is_beside(job.rows(rank, steps), _background(job, rank))
    clean, beside = took[~begins & ~written], took[~begins & written]
    if len(clean) < MIN_CLEAN:
        clean, beside = took[~begins], took[:0]
    usual = clean.mean() if len(clean) else np.nan
    calls, waits = _of_saves(job, steps[begins])
    waits = np.minimum(waits, np.maximum(0.0, took[begins] - usual))  # Some jobs let saves overlap.
    return Saves(
        names=names,
        begin=begin,
        clean_ns=clean,
        stops_ns=np.maximum(0.0, took[begins] - usual - waits),
        waits_ns=waits,
        calls_ns=calls,
        writes_ns=_writes(job, staging=False),
        staging_ns=_writes(job, staging=True),
        beside_ns=beside,
    )


def _is_save(stages: Table) -> np.ndarray:
    """Which stages of the rank itself are saves, bool[rows]."""
    is_named = stages.matches("name", lambda name: name.startswith(SAVES) or _SAVING.search(name))
    found: np.ndarray = is_named & (stages.ints("worker") < 0)
    return found


def _stopping(job: JobSteps, rank: Rank) -> Table:
    """The calls that save on the training thread of `rank`."""
    stages = job.run.stages(rank)
    return stages.where(stages.is_kind("stage") & _is_save(stages))


def _background(job: JobSteps, rank: Rank, *, staging: bool = False) -> Table:
    """The saves that `rank` writes in the background, or their staging."""
    stages = job.run.stages(rank)
    is_staging = stages.matches("name", lambda name: name.endswith(STAGING))
    return stages.where(stages.is_kind("background") & (is_staging == staging))


def _begun(job: JobSteps) -> tuple[np.ndarray, tuple[str, ...]]:
    """(steps in which a save begins on any rank, the names of the saves)."""
    begin: set[int] = set()
    names: dict[str, None] = {}
    for rank in job.run.ranks:
        for found in (_stopping(job, rank), _background(job, rank)):
            at = step_at(job.table(rank), found.ints("start_ns"))
            begin.update(at[at >= 0].tolist())
            names.update(dict.fromkeys(name or "" for name in found.texts("name")))
    return np.array(sorted(begin), np.int64), tuple(names)


def _is_beside(steps: Table, written: Table) -> np.ndarray:
    """Which steps overlap with a save that is written in the background, bool[steps]."""
    begin = steps.ints("start_ns")
    end = begin + steps.ints("dur_ns")
    beside = np.zeros(len(steps), bool)
    for start, until in zip(written.ints("start_ns").tolist(), written.ints("end_ns").tolist(), strict=True):
        beside |= (begin < until) & (start < end)
    return beside


def _of_saves(job: JobSteps, steps: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(longest time in calls that save, longest wait for the save before), over ranks, for each of `steps`, ns."""
    calls, waits = np.zeros(len(steps)), np.zeros(len(steps))
    for rank in job.run.ranks:
        rows, stopping, written = job.rows(rank, steps), _stopping(job, rank), _background(job, rank)
        begin = rows.ints("start_ns")
        end = begin + rows.ints("dur_ns")
        at = np.searchsorted(begin, stopping.ints("start_ns"), side="right") - 1
        inside = (at >= 0) & (stopping.ints("start_ns") < end[at])
        took = (stopping.ints("end_ns") - stopping.ints("start_ns"))[inside]
        calls = np.maximum(calls, np.bincount(at[inside], took, len(steps)))
        for start, until in zip(written.ints("start_ns").tolist(), written.ints("end_ns").tolist(), strict=True):
            # Only a step that saves again waits; it began while the save before was written.
            waits = np.maximum(waits, np.where(start < begin, np.minimum(until, end) - begin, 0))
    return calls, waits


def _writes(job: JobSteps, *, staging: bool) -> np.ndarray:
    """Time of each save in the background, on the slowest rank, or of its staging, ns, float64."""
    longest: dict[int, float] = {}
    for rank in job.run.ranks:
        written = _background(job, rank, staging=staging)
        at = step_at(job.table(rank), written.ints("start_ns"))
        for step, took in zip(at.tolist(), (written.ints("end_ns") - written.ints("start_ns")).tolist(), strict=True):
            longest[step] = max(longest.get(step, 0.0), took)
    return np.array([took for step, took in sorted(longest.items()) if step >= 0], np.float64)
