"""Which free devices elastic jobs should get, by the proposals of EasyScale (SC 2023, §4.3), and how far that is from the
best."""

from collections.abc import Iterator, Mapping
from itertools import product
from math import prod
from typing import Literal

import msgspec
import numpy as np
from scipy.sparse import csr_array

from esprof.analyzers.advisors.cluster.greedy import ElasticJob, Held, deal, ests_per_s
from esprof.analyzers.advisors.cluster.mix import DeviceType, JobId
from esprof.analyzers.advisors.cluster.program import Program, solve_integers
from esprof.analyzers.advisors.cluster.questions.answer import (
    CheckedAnswer,
    ClusterAnswer,
    NamedJob,
    OnDevices,
    verified,
)
from esprof.analyzers.advisors.job.makespan import Device
from esprof.core.errors import MismatchError

_MAX_WAYS = 5_000
"""Ways to give devices to the jobs, each to one job, that are searched for the best."""

_MAX_ESTS = 10_000

_NOT_MODELLED = (
    "the cost of changing a job's devices",
    "the time of communication, which may grow with the devices",
    "jobs that arrive, and devices that are freed as jobs end",
)


class GrowingJob(NamedJob, frozen=True, kw_only=True):
    """A job of logical workers (ESTs)."""

    n_est: int
    est_s: dict[DeviceType, float]
    """Seconds of an EST on each type of device. It cannot use the others."""
    update_s: float = 0.0
    """Seconds of the optimizer, on each device."""
    min_devices: int = 1
    held: dict[DeviceType, int] = msgspec.field(default_factory=dict)
    """Devices that it has."""

    def elastic(self) -> ElasticJob:
        kinds = {kind: Device(kind, kind, one, one, self.update_s) for kind, one in self.est_s.items()}
        return ElasticJob(self.name, self.n_est, kinds, self.min_devices)

    def alone(self) -> float:
        """ESTs per second on its fewest devices, of the type that suits it best."""
        return max(ests_per_s(self.elastic(), {kind: self.min_devices}) for kind in self.est_s)


class ProposalsProblem(OnDevices, frozen=True, kw_only=True):
    """Elastic jobs, and all devices: those that the jobs have, and the free ones."""

    jobs: tuple[GrowingJob, ...]

    def fault(self) -> str | None:
        if fault := self.fault_of_lists(self.jobs):
            return fault
        if fault := next((fault for job in self.jobs if (fault := _fault_of(job))), None):
            return fault
        if short := [kind for kind, count in self.free().items() if count < 0]:
            return f"the jobs have more devices of type {short[0]} than the cluster"
        if (ways := sum(prod(more + 1 for more in _room(self, job)) for job in self.jobs)) > _MAX_WAYS:
            return f"there are {ways:,} ways to give free devices to a job: at most {_MAX_WAYS:,} can be compared"
        return None

    def free(self) -> Held:
        kinds = {*self.counts, *(kind for job in self.jobs for kind in job.held)}
        return {
            kind: self.counts.get(kind, 0) - sum(job.held.get(kind, 0) for job in self.jobs) for kind in sorted(kinds)
        }


def _fault_of(job: GrowingJob) -> str | None:
    if not job.est_s or not all(0 < one < float("inf") for one in job.est_s.values()):
        return f"job {job.name} needs est_s above 0 on at least one type"
    if not 0 <= job.update_s < float("inf"):
        return f"job {job.name} has an update_s that is negative or not finite"
    if job.n_est > _MAX_ESTS:
        return f"job {job.name} has {job.n_est:,} ESTs: at most {_MAX_ESTS:,} are possible"
    if not 1 <= job.min_devices <= job.n_est:
        return f"job {job.name} needs min_devices from 1 to its {job.n_est} ESTs"
    held = sum(job.held.values())
    if not set(job.held) <= set(job.est_s) or min(job.held.values(), default=0) < 0:
        return f"job {job.name} has devices on which it cannot run"
    if held and not job.min_devices <= held <= job.n_est:
        return f"job {job.name} has {held} devices: from {job.min_devices} to {job.n_est} are possible"
    return None


class DevicesGiven(msgspec.Struct, frozen=True, kw_only=True):
    """The devices of one job."""

    job: JobId
    devices: dict[DeviceType, int]
    """All that it then has; none if it waits."""
    ests_per_s: float
    speedup: float | None
    """Relative to its present devices; None if it has none."""


class ProposalsAnswer(ClusterAnswer, frozen=True, kw_only=True):
    """The devices of each job. The value is the sum of the jobs' speeds, relative to that on their fewest devices."""

    objective: Literal["proposals"] = "proposals"
    decision: tuple[DevicesGiven, ...]
    problem: ProposalsProblem


def propose(problem: ProposalsProblem) -> ProposalsAnswer:
    """Accept proposals until none is left. Greedy: the bound is the best sum of speeds, found by an integer program."""
    held = {job.name: dict(job.held) for job in problem.jobs}
    given = deal([job.elastic() for job in problem.jobs], held, _usable(problem))
    found = {name: {kind: count for kind, count in mine.items() if count} for name, mine in given.items()}
    waiting = [name for name, mine in found.items() if not mine]
    return ProposalsAnswer(
        value=_total(problem, found),
        unit="times the speed on the fewest devices, summed over the jobs",
        bound=_best(problem),
        baselines={"the present devices": _total(problem, held)},
        warnings=(f"no devices are left for {', '.join(waiting)}",) if waiting else (),
        not_modelled=_NOT_MODELLED,
        decision=tuple(_given(job, found[job.name]) for job in problem.jobs),
        problem=problem,
    )


def check_proposals(answer: ProposalsAnswer) -> CheckedAnswer:
    """Verify by arithmetic that the devices are there and the speeds are as stated, and by an integer program over all ways
    to give devices how far the proposals are from the best. Raises MismatchError."""
    problem = answer.problem
    given = {one.job: one.devices for one in answer.decision}
    if set(given) != {job.name for job in problem.jobs} or len(given) < len(answer.decision):
        raise MismatchError("other jobs get devices than those of the problem")
    for job, stated in zip(problem.jobs, answer.decision, strict=True):
        mine, many = given[job.name], sum(given[job.name].values())
        if not set(mine) <= set(job.est_s) or any(mine.get(kind, 0) < count for kind, count in job.held.items()):
            raise MismatchError(f"job {job.name} gets devices on which it cannot run, or loses some")
        if many and not job.min_devices <= many <= job.n_est:
            raise MismatchError(
                f"job {job.name} gets {many} devices: from {job.min_devices} to {job.n_est} are possible"
            )
        if stated != _given(job, mine):
            raise MismatchError(f"job {job.name} has another speed than stated")
    for kind, count in problem.counts.items():
        if (needed := sum(mine.get(kind, 0) for mine in given.values())) > count:
            raise MismatchError(f"the jobs get {needed} devices of type {kind}, but there are {count}")
    value, bound = _total(problem, given), _best(problem)
    return verified(answer, value, bound, "by an integer program", most=True)


def _usable(problem: ProposalsProblem) -> Held:
    return {kind: count for kind, count in problem.free().items() if count}


def _given(job: GrowingJob, devices: Held) -> DevicesGiven:
    now, then = _speed(job, job.held), _speed(job, devices)
    return DevicesGiven(job=job.name, devices=devices, ests_per_s=then, speedup=then / now if now else None)


def _speed(job: GrowingJob, devices: Held) -> float:
    return ests_per_s(job.elastic(), devices) if sum(devices.values()) else 0.0


def _total(problem: ProposalsProblem, given: Mapping[JobId, Held]) -> float:
    return sum(_speed(job, given[job.name]) / job.alone() for job in problem.jobs)


def _room(problem: ProposalsProblem, job: GrowingJob) -> list[int]:
    """Most devices of each type that the job could get in addition."""
    free = problem.free()
    return [min(free.get(kind, 0), job.n_est) for kind in job.est_s]


def _ways(problem: ProposalsProblem, job: GrowingJob) -> Iterator[Held]:
    """All devices that the job may have: more than now, or the same."""
    for more in product(*(range(room + 1) for room in _room(problem, job))):
        mine = {kind: job.held.get(kind, 0) + one for kind, one in zip(job.est_s, more, strict=True)}
        if not sum(mine.values()) or job.min_devices <= sum(mine.values()) <= job.n_est:
            yield mine


def _best(problem: ProposalsProblem) -> float:
    """An upper bound of the sum of speeds: one variable per job and way to give it devices."""
    ways = [(at, job, mine) for at, job in enumerate(problem.jobs) for mine in _ways(problem, job)]
    kinds = list(problem.counts)
    of_job = np.array([[float(at == number) for at, _, _ in ways] for number in range(len(problem.jobs))])
    of_kind = np.array([[float(mine.get(kind, 0)) for _, _, mine in ways] for kind in kinds])
    one = np.ones(len(problem.jobs))
    bounds = np.array([*one, *-one, *(problem.counts[kind] for kind in kinds)], float)
    alone = [job.alone() for job in problem.jobs]
    gain = np.array([_speed(job, mine) / alone[at] for at, job, mine in ways])
    found = solve_integers(
        Program(gain, csr_array(np.vstack([of_job, -of_job, of_kind])), bounds), np.ones(len(ways), bool)
    )
    return found.bound
