"""Allocation of devices to a mix of jobs, by objective: Gavel's policies (OSDI 2020, §4) as exact linear programs.

Fairness, makespan and finish-time fairness are one program: maximize t, where each job makes t times the steps per second
that its policy requires.
"""

from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.sparse import block_diag, csr_array, hstack, vstack

from esprof.analyzers.advisors.cluster.mix import DeviceType, Mix, SharingJob
from esprof.analyzers.advisors.cluster.program import Program
from esprof.analyzers.advisors.cluster.sharing import Sharing
from esprof.core.errors import UsageError

Objective = Literal["throughput", "fairness", "finish-time", "makespan", "cost"]

Prices = dict[DeviceType, float]
"""Price of a device-hour, by type."""

_PER_HOUR = 3_600


@dataclass(frozen=True)
class Row:
    """Meaning of one constraint of a program."""

    what: Literal["needs", "time", "devices"]
    """`needs`: a class makes its required steps. `time`: it runs at most all the time. `devices`: the devices of a type that
    are in use."""
    number: int
    """The class, or the type of device."""
    until_h: float | None = None
    """End of its time interval, hours; None if the program has no intervals."""


@dataclass(frozen=True)
class Posed:
    """A policy for a mix, as a linear program."""

    sharing: Sharing
    program: Program
    rows: tuple[Row, ...]
    """Meaning of each constraint."""
    columns: tuple[tuple[int, float | None], ...]
    """(column of the sharing, end of the time interval in hours) of each time variable. A variable for the objective
    itself, if any, follows them."""
    value_of: Callable[[float], float]
    """The objective from the program's gain."""
    unit: Literal["share", "hours"] = "share"
    """Unit of the variables: shares of time, or hours."""


def pose(mix: Mix, objective: Objective, prices: Prices | None = None, *, merged: bool = True) -> Posed:
    """The program of `objective`. With `merged`, jobs that it does not distinguish are one class.

    - `fairness`: the least normalised throughput, which is steps per second times devices, divided by the weight and by the
      throughput with an equal share of the cluster (Gavel's heterogeneity-aware max-min fairness; jobs of a team share its
      weight).
    - `makespan`: seconds until the last job ends.
    - `finish-time`: the largest ratio of a job's time to its time with an n-th of the cluster (Themis' rho, for jobs at
      their start).
    - `throughput`: the sum of steps per second.
    - `cost`: the least money with which all jobs end, by their deadlines if they have any.

    Raises UsageError if the mix lacks a field that the objective needs.
    """
    if objective == "cost":
        return _cost(mix, prices, merged=merged)
    if objective == "throughput":
        return _throughput(mix, merged=merged)
    needs = {"fairness": _fair, "makespan": _steps, "finish-time": _isolated}[objective](mix)
    return multiple(mix, needs, inverse=objective != "fairness", merged=merged)


def multiple(mix: Mix, needs: Sequence[float], *, inverse: bool, merged: bool) -> Posed:
    """Maximize t, where each job makes t times the steps per second that it `needs`; the value is t or its inverse."""
    sharing = Sharing.of(mix, list(map(_rounded, needs)) if merged else None)
    classes = range(len(sharing.classes))
    need = np.array([needs[jobs[0]] for jobs in sharing.classes])
    # Scaling: rows by the largest throughput of the job, t by an upper bound of it.
    most = np.array([max(sharing.first(number).throughput_steps_per_s.values()) for number in classes])
    unit = float((most / need).min())
    rows, bounds = sharing.limits
    behind = csr_array((-sharing.rates.multiply((1 / most)[:, None])).tocsr())
    t = csr_array((need / most * unit)[:, None])
    program = Program(
        gain=np.append(np.zeros(len(sharing.columns)), 1.0),
        rows=csr_array(vstack([hstack([behind, t]), hstack([rows, csr_array((len(bounds), 1))])])),
        bounds=np.concatenate([np.zeros(len(need)), bounds]),
    )
    return Posed(
        sharing,
        program,
        (*(Row("needs", number) for number in classes), *_limits(sharing)),
        tuple((at, None) for at in range(len(sharing.columns))),
        (lambda gain: 1 / (gain * unit)) if inverse else (lambda gain: gain * unit),
    )


def _throughput(mix: Mix, *, merged: bool) -> Posed:
    sharing = Sharing.of(mix, [None] * len(mix.jobs) if merged else None)
    rows, bounds = sharing.limits
    program = Program(sharing.rates.T @ sharing.sizes, rows, bounds)
    columns = tuple((at, None) for at in range(len(sharing.columns)))
    return Posed(sharing, program, tuple(_limits(sharing)), columns, lambda gain: gain)


def _cost(mix: Mix, prices: Prices | None, *, merged: bool) -> Posed:
    """The least money. Variables are hours in the intervals between deadlines. In an interval, no job runs longer than it
    lasts, and jobs use no more devices than exist: then a schedule exists (Lawler and Labetoulle, JACM 1978)."""
    priced = _known_prices(mix, prices)
    steps = _steps(mix)
    deadlines = [job.deadline_s for job in mix.jobs]
    sharing = Sharing.of(mix, list(zip(steps, deadlines, strict=True)) if merged else None)
    firsts = [sharing.first(number) for number in range(len(sharing.classes))]
    longest = _longest_s(mix)
    until = np.array([job.deadline_s or longest for job in firsts]) / _PER_HOUR
    ends = np.unique(until)
    rows, bounds = sharing.limits
    # For each interval, the variables of the jobs whose deadline is not earlier.
    opened = [
        [at for at, (mine, its, *_) in enumerate(sharing.columns) if min(until[mine], until[its]) >= end]
        for end in ends
    ]
    column = np.concatenate(opened)
    scale = np.array([_PER_HOUR / (job.steps or 1.0) for job in firsts])
    behind = csr_array((-sharing.rates.multiply(scale[:, None])).tocsr())
    price = np.array([priced[sharing.kinds[kind]] * firsts[mine].scale_factor for mine, _, kind, *_ in sharing.columns])
    program = Program(
        gain=-price[column],
        rows=csr_array(vstack([behind[:, column], block_diag([rows[:, columns] for columns in opened])])),
        bounds=np.concatenate([-np.ones(len(firsts)), *(bounds * length for length in np.diff(ends, prepend=0))]),
    )
    named = [Row("needs", number) for number in range(len(firsts))]
    named += [row for end in ends.tolist() for row in _limits(sharing, end)]
    columns = [(at, end) for end, ats in zip(ends.tolist(), opened, strict=True) for at in ats]
    return Posed(sharing, program, tuple(named), tuple(columns), lambda gain: -gain, "hours")


def _limits(sharing: Sharing, until_h: float | None = None) -> list[Row]:
    """Meanings of the rows of `Sharing.limits`."""
    times = [Row("time", number, until_h) for number in range(len(sharing.classes))]
    return times + [Row("devices", number, until_h) for number in range(len(sharing.kinds))]


def _longest_s(mix: Mix) -> float:
    """Upper bound of the time for all jobs, s: one after the other, each on its slowest type; at least every deadline."""
    slowest = [(job.steps or 0.0) / min(filter(None, job.throughput_steps_per_s.values())) for job in mix.jobs]
    return max(sum(slowest), *(job.deadline_s or 0.0 for job in mix.jobs))


def _known_prices(mix: Mix, prices: Prices | None) -> Prices:
    missing = [kind for kind in mix.cluster if kind not in (prices or {})]
    if missing or prices is None:
        raise UsageError(f"the price of {', '.join(missing)} is unknown", remedy="Pass --prices, per device and hour.")
    return prices


def normal(mix: Mix) -> list[float]:
    """Steps per second of each job at a normalised throughput of 1, without its weight."""
    devices = sum(mix.cluster.values())
    return [
        sum(_rate(job, kind) * count / devices for kind, count in mix.cluster.items()) / job.scale_factor
        for job in mix.jobs
    ]


def weights(mix: Mix, among: Sequence[bool] | None = None) -> list[float]:
    """Weight of each job: its own or, if jobs belong to teams, its share of the team's weight. With `among`, a team's weight
    is divided among these jobs only, and the others have weight 0."""
    counted = [True] * len(mix.jobs) if among is None else among
    if not has_teams(mix):
        return [job.weight if counts else 0.0 for job, counts in zip(mix.jobs, counted, strict=True)]
    total: dict[str, float] = defaultdict(float)
    for job, counts in zip(mix.jobs, counted, strict=True):
        total[job.entity] += job.weight if counts else 0.0
    return [
        mix.entities.get(job.entity, 1.0) * job.weight / total[job.entity] if counts else 0.0
        for job, counts in zip(mix.jobs, counted, strict=True)
    ]


def has_teams(mix: Mix) -> bool:
    return any(job.entity for job in mix.jobs)


def _fair(mix: Mix) -> list[float]:
    return [need * weight for need, weight in zip(normal(mix), weights(mix), strict=True)]


def _isolated(mix: Mix) -> list[float]:
    """Steps per second of each job with an n-th of every type, as far as it can use them at once."""
    found = []
    for job in mix.jobs:
        time = {kind: count / (len(mix.jobs) * job.scale_factor) for kind, count in mix.cluster.items()}
        excess = max(1.0, sum(time.values()))
        found.append(sum(_rate(job, kind) * share / excess for kind, share in time.items()))
    return found


def _steps(mix: Mix) -> list[float]:
    lacking = [job.name for job in mix.jobs if not job.steps]
    if lacking:
        raise UsageError(f"job {lacking[0]} has no number of remaining steps", remedy="Add `steps:` to the job.")
    return [job.steps or 0.0 for job in mix.jobs]


def _rate(job: SharingJob, kind: DeviceType) -> float:
    return job.throughput_steps_per_s.get(kind, 0.0)


def _rounded(need: float) -> Hashable:
    """A key that is equal for needs that differ only by rounding."""
    return float(f"{need:.12g}")
