"""Sizes of elastic jobs: who runs, and on how many devices (Lyra, EuroSys 2023, §5.2).

Jobs get their smallest size in the order of their remaining time at that size, shortest first, while devices are left. The
devices that remain go to the sizes which save the most time in total: a multiple-choice knapsack.
"""

from collections.abc import Iterator, Sequence
from heapq import heapify, heappop, heappush
from typing import Literal

import msgspec
import numpy as np
from scipy.sparse import csr_array, vstack

from esprof.analyzers.advisors.cluster.mix import JobId, PerSecond
from esprof.analyzers.advisors.cluster.program import Program, solve_integers
from esprof.analyzers.advisors.cluster.questions.answer import (
    CheckedAnswer,
    ClusterAnswer,
    NamedJob,
    OnDevices,
    verified,
)
from esprof.analyzers.advisors.cluster.scaling import SizeChoice, deal_out
from esprof.core.errors import MismatchError

_MAX_CELLS = 200_000_000
"""Largest product of jobs and devices: the size of a table, of which each cell has up to four bytes."""

_NOT_MODELLED = (
    "jobs that arrive, and devices that are freed as jobs end",
    "the cost of changing a job's size",
    "throughputs that depend on the placement of a job's devices",
)


class SizedJob(NamedJob, frozen=True, kw_only=True):
    """An elastic job, and its measured throughput at each size."""

    steps: float
    """Remaining steps."""
    sizes: dict[int, PerSecond]
    """Steps per second by number of devices; the smallest number is what the job needs to run."""
    weight: float = 1.0

    @property
    def least(self) -> int:
        return min(self.sizes)

    def seconds(self, devices: int) -> float:
        """Remaining time on this number of devices."""
        return self.steps / self.sizes[devices]


class SizesProblem(OnDevices, frozen=True, kw_only=True):
    """Elastic jobs, and the devices of one type that they share."""

    jobs: tuple[SizedJob, ...]

    @property
    def devices(self) -> int:
        """Those that the jobs can use."""
        return min(sum(self.counts.values()), sum(max(job.sizes) for job in self.jobs))

    def fault(self) -> str | None:
        if fault := self.fault_of_lists(self.jobs):
            return fault
        if len(self.cluster) != 1:
            return f"sizes are measured on one type of device, but the cluster has {len(self.cluster)}"
        for job in self.jobs:
            numbers = (job.steps, job.weight, *job.sizes.values())
            if not job.sizes or min(job.sizes) < 1 or not all(0 < number < float("inf") for number in numbers):
                return f"job {job.name} needs steps, a weight and throughputs above 0, at sizes of at least 1"
        if self.devices * len(self.jobs) > _MAX_CELLS:
            return f"{self.devices:,} devices for {len(self.jobs):,} jobs are too many: their product may be {_MAX_CELLS:,}"
        return None


class SizeGiven(msgspec.Struct, frozen=True, kw_only=True):
    """The devices of one job."""

    job: JobId
    devices: int
    """0 for a job that waits."""
    seconds: float | None
    """Remaining time; None for a job that waits."""


class SizesAnswer(ClusterAnswer, frozen=True, kw_only=True):
    """The size of each job. The value is the weighted remaining time of all jobs that run."""

    objective: Literal["sizes"] = "sizes"
    decision: tuple[SizeGiven, ...]
    problem: SizesProblem


def sizes(problem: SizesProblem) -> SizesAnswer:
    """The sizes of the jobs with the least remaining time in total, exact."""
    run = admitted(problem)
    found = deal_out([_choices(job) for job in run], problem.devices)
    chosen = {job.name: sorted(job.sizes)[pick] for job, pick in zip(run, found.chosen, strict=True)}
    value = _total(run, chosen)
    waiting = [job.name for job in problem.jobs if job.name not in chosen]
    return SizesAnswer(
        value=value,
        unit="s of remaining time in total",
        bound=value,
        baselines={
            "the smallest sizes": _total(run, {job.name: job.least for job in run}),
            "greedy by gain per device": _total(run, _greedy(run, problem.devices)),
        },
        warnings=(f"no devices are left for {', '.join(waiting)}: shorter jobs run first",) if waiting else (),
        not_modelled=_NOT_MODELLED,
        decision=tuple(
            SizeGiven(job=job.name, devices=n, seconds=job.seconds(n) if n else None)
            for job in problem.jobs
            for n in [chosen.get(job.name, 0)]
        ),
        problem=problem,
    )


def check_sizes(answer: SizesAnswer) -> CheckedAnswer:
    """Verify by arithmetic that the sizes are possible, and by an integer program (HiGHS) that no others are better: the
    sizes themselves come from dynamic programming. Raises MismatchError."""
    problem = answer.problem
    run = admitted(problem)
    chosen = {one.job: one.devices for one in answer.decision if one.devices}
    if set(chosen) != {job.name for job in run}:
        raise MismatchError("other jobs than the shortest run")
    for job in run:
        if chosen[job.name] not in job.sizes:
            raise MismatchError(f"job {job.name} was not measured on {chosen[job.name]} devices")
    if sum(chosen.values()) > problem.devices:
        raise MismatchError(f"the sizes need {sum(chosen.values())} devices of {problem.devices}")
    return verified(answer, _total(run, chosen), _bound(run, problem.devices), "by an integer program")


def admitted(problem: SizesProblem) -> list[SizedJob]:
    """The jobs that run, in the order of the problem: the shortest first, as far as their smallest sizes fit."""
    left, names = problem.devices, set()
    for job in sorted(problem.jobs, key=lambda job: (job.seconds(job.least), job.name)):
        if job.least <= left:
            left -= job.least
            names.add(job.name)
    return [job for job in problem.jobs if job.name in names]


def _choices(job: SizedJob) -> list[SizeChoice]:
    """The sizes in ascending order, each worth the weighted time that it saves."""
    base = job.seconds(job.least)
    return [SizeChoice(n, job.weight * (base - job.seconds(n))) for n in sorted(job.sizes)]


def _total(run: Sequence[SizedJob], chosen: dict[JobId, int]) -> float:
    return sum(job.weight * job.seconds(chosen[job.name]) for job in run)


def _greedy(run: Sequence[SizedJob], devices: int) -> dict[JobId, int]:
    """Repeatedly the larger size that saves the most time per device."""
    chosen = {job.name: job.least for job in run}
    left = devices - sum(chosen.values())
    offers = [offer for at, job in enumerate(run) for offer in _larger(at, job, job.least)]
    heapify(offers)
    while offers:
        _, at, now, size = heappop(offers)
        job = run[at]
        # An offer that does not fit will not fit later either.
        if now == chosen[job.name] and size - now <= left:
            left -= size - now
            chosen[job.name] = size
            for offer in _larger(at, job, size):
                heappush(offers, offer)
    return chosen


def _larger(at: int, job: SizedJob, now: int) -> Iterator[tuple[float, int, int, int]]:
    """Larger sizes of job number `at` that save time: minus the time saved per device, the job, its present and new size."""
    for size in job.sizes:
        if size > now and (saved := job.weight * (job.seconds(now) - job.seconds(size)) / (size - now)) > 0:
            yield -saved, at, now, size


def _bound(run: Sequence[SizedJob], devices: int) -> float:
    """The least total time of any sizes: one variable per job and size."""
    items = [(at, job, n) for at, job in enumerate(run) for n in job.sizes]
    if not items:
        return 0.0
    ones, columns = np.ones(len(items)), np.arange(len(items))
    of_job = csr_array((ones, ([at for at, _, _ in items], columns)), shape=(len(run), len(items)))
    used = csr_array(np.array([[float(n) for _, _, n in items]]))
    bounds = np.concatenate([np.ones(len(run)), -np.ones(len(run)), [float(devices)]])
    costs = np.array([job.weight * job.seconds(n) for _, job, n in items])
    return -solve_integers(
        Program(-costs, vstack([of_job, -of_job, used], format="csr"), bounds), np.ones(len(items), bool)
    ).bound
