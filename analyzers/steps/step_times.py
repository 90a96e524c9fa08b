"""Duration of each step of the run, with windows, passes over the data, and the steps that findings name."""

from collections.abc import Iterator, Sequence
from typing import Literal, get_args

import msgspec
import numpy as np

from esprof.analyzers.finding import Finding
from esprof.analyzers.recorded_job import RecordedJob
from esprof.analyzers.steps.job_steps import JobSteps
from esprof.analyzers.steps.step_groups import SlowGroup
from esprof.core.types import NS_PER_S, NS_PER_US
from esprof.run.run import Window

Role = Literal["plain", "timed", "stack", "beside"]
"""Phases of steps, and `beside`: the job's first step, and steps in which the profiler warmed up or wrote."""

ROLES: tuple[Role, ...] = get_args(Role)
"""In order of precedence: the role of the job's step is the last of these that the step has on any rank."""

MAX_STRETCHES = 600
"""Most stretches of steps drawn separately: more would not fit on a screen."""
MAX_BOUNDARIES_MARKED = 60
"""Most windows, or passes over the data, that are marked: more would hide the steps."""

_HEADROOM = 1.25


class Series(msgspec.Struct, frozen=True, kw_only=True):
    """Steps of one kind: number, duration of the job's step in us, and seconds from the start of the job's first."""

    step: tuple[int, ...]
    us: tuple[float, ...]
    at_s: tuple[float, ...]
    of: int
    """Number of steps that these represent."""


class FindingMark(msgspec.Struct, frozen=True, kw_only=True):
    """The steps that a finding names."""

    id: str
    title: str
    steps: Series


class StepTimes(msgspec.Struct, frozen=True, kw_only=True):
    """Steps of the job over the run. If there are many, the shortest and longest of each stretch represent it."""

    series: dict[Role, Series]
    marks: tuple[FindingMark, ...]
    steps: int
    stretch: int
    """Steps in a stretch; 1 if every step is included."""
    span_s: float
    mean_us: float
    """Mean of all plain steps, drawn or not; so is `median_us`."""
    median_us: float
    plain: int
    top_us: float
    """Upper end of the axis; `above` counts the longer steps."""
    above: int
    longest_us: float
    windows: tuple[Window, ...]
    """Empty where there are more than `MAX_BOUNDARIES_MARKED`; `window_count` are all."""
    window_count: int
    passes: tuple[int, ...]
    """Steps in which the first rank begins a further pass over a DataLoader; empty where there are more than
    `MAX_BOUNDARIES_MARKED`."""
    pass_count: int


def step_times(job: RecordedJob, findings: Sequence[Finding] = ()) -> StepTimes | None:
    """Step times for the report; None if no step ran without the profiler."""
    plain = job.steps.numbers("plain")
    if not len(plain):
        return None
    steps, roles = _steps(job.steps)
    took_us = job.steps.durations_ns(steps) / NS_PER_US
    start_ns = job.steps.over_ranks(steps, "start_ns").max(axis=0)
    at_s = (start_ns - start_ns[0]) / NS_PER_S
    stretch = max(1, -(-int(steps[-1] - steps[0] + 1) // MAX_STRETCHES)) if len(steps) > 2 * MAX_STRETCHES else 1

    def series(chosen: np.ndarray) -> Series:
        """Series of the steps at these positions."""
        drawn = chosen if stretch == 1 else chosen[_extremes(steps[chosen] // stretch, took_us[chosen])]
        return Series(
            step=tuple(steps[drawn].tolist()),
            us=tuple(took_us[drawn].round(1).tolist()),
            at_s=tuple(at_s[drawn].round(3).tolist()),
            of=len(chosen),
        )

    of_plain = took_us[np.isin(steps, plain)]
    named = [
        (finding, np.flatnonzero(np.isin(steps, numbers))) for finding, numbers in _named(job.slow_groups, findings)
    ]
    slow = [float(np.median(took_us[at])) for _, at in named if len(at)]
    usual = _HEADROOM * max(float(np.quantile(of_plain, 0.99)), 2 * float(np.median(of_plain)), *slow)
    top_us = min(usual, 1.05 * float(took_us.max()))
    windows = sorted({(one.first, one.last, one.stacks) for meta in job.run.meta.ranks for one in meta.windows})
    passes = job.steps.epochs
    return StepTimes(
        series={role: series(at) for role in ROLES if len(at := np.flatnonzero(roles == role))},
        marks=tuple(
            FindingMark(id=finding.id, title=finding.title, steps=series(at)) for finding, at in named if len(at)
        ),
        steps=len(steps),
        stretch=stretch,
        span_s=round(float(at_s[-1] + took_us[-1] / 1e6), 3),
        mean_us=round(float(of_plain.mean()), 1),
        median_us=round(float(np.median(of_plain)), 1),
        plain=len(of_plain),
        top_us=round(top_us, 1),
        above=int(np.count_nonzero(took_us > top_us)),
        longest_us=round(float(took_us.max()), 1),
        windows=tuple(Window(first=first, last=last, stacks=stacks) for first, last, stacks in windows)
        if len(windows) <= MAX_BOUNDARIES_MARKED
        else (),
        window_count=len(windows),
        passes=passes if len(passes) <= MAX_BOUNDARIES_MARKED else (),
        pass_count=len(passes),
    )


def _steps(job: JobSteps) -> tuple[np.ndarray, np.ndarray]:
    """(numbers of the steps that all ranks have, ascending, int64[steps]; the role of each, str[steps])."""
    excluded = len(ROLES) - 1
    number_of: dict[str | None, int] = {role: number for number, role in enumerate(ROLES[:excluded])}
    ranks = []
    for rank in job.run.ranks:
        roles = [number_of.get(phase, excluded) for phase in job.phases(rank).tolist()]
        ranks.append(dict(zip(job.table(rank).ints("step").tolist(), roles, strict=True)))
    first = min(min(of) for of in ranks)
    steps = job.on_all_ranks
    of_job = [excluded if step == first else max(of[step] for of in ranks) for step in steps.tolist()]
    return steps, np.array(ROLES)[of_job]


def _extremes(stretch: np.ndarray, took: np.ndarray) -> np.ndarray:
    """Positions of the shortest and longest step of each stretch, ascending."""
    order = np.lexsort((took, stretch))
    is_first = np.diff(stretch[order], prepend=stretch[order[:1]] - 1) != 0
    is_last = np.append(is_first[1:], True)
    return np.unique(order[is_first | is_last])


def _named(groups: Sequence[SlowGroup], findings: Sequence[Finding]) -> Iterator[tuple[Finding, np.ndarray]]:
    """The findings that name steps, each with their numbers."""
    for finding in findings:
        by_step = [
            seen.value for seen in finding.evidence.values() if seen.by == "step" and isinstance(seen.value, dict)
        ]
        if when := finding.evidence.get("when"):
            for group in groups:
                if when.value == group.when:
                    yield finding, group.steps[group.is_slow]
        elif by_step:
            yield finding, np.array([int(step) for step in by_step[0]], np.int64)
