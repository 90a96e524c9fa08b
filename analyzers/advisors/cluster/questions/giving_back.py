"""Which borrowed servers to give back: the least work is lost (Lyra, EuroSys 2023, §5.1, with measured costs)."""

from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Literal

import msgspec
import numpy as np
from scipy.sparse import csr_array

from esprof.analyzers.advisors.cluster.mix import JobId
from esprof.analyzers.advisors.cluster.program import Program, solve_integers
from esprof.analyzers.advisors.cluster.questions.answer import CheckedAnswer, ClusterAnswer, ClusterProblem, verified
from esprof.analyzers.advisors.cluster.reclaim import BorrowedServer, StopCost, reclaim
from esprof.core.errors import MismatchError

_MAX_JOBS_ENUMERATED = 16
"""Jobs that are linked by common servers, up to which the check tries all sets of stopped jobs."""

_NOT_MODELLED = (
    "where stopped jobs continue, and how long they wait",
    "servers that could be emptied by moving a job's workers",
)


class StoppableJob(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A job on borrowed servers, and what a stop costs it."""

    id: int | str
    devices: int
    """All devices of the job: they all wait while it restarts."""
    restore_s: float
    """From the start of the new processes to the next step."""
    since_checkpoint_s: float
    """Work since the last checkpoint: lost if the job does not save before it stops."""
    checkpoint_s: float | None = None
    """Time to save before it stops; None if it cannot."""
    step_s: float = 0.0
    """Time of a step: the one under way is lost if the job saves."""

    @property
    def name(self) -> JobId:
        return str(self.id)

    @property
    def should_save(self) -> bool:
        """Whether the job loses less if it saves before it stops, although the step under way is lost."""
        return self.checkpoint_s is not None and self.checkpoint_s + self.step_s < self.since_checkpoint_s

    @property
    def cost(self) -> StopCost:
        """The cheaper of saving and of not saving."""
        saves_s, lost_s = (
            (self.checkpoint_s or 0.0, self.step_s) if self.should_save else (0.0, self.since_checkpoint_s)
        )
        return StopCost(saves_s, self.restore_s, lost_s, self.devices)


class OccupiedServer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A borrowed server, and the workers on it."""

    name: str
    jobs: tuple[int | str, ...] = ()
    """Jobs that stop without it."""
    flexible_devices: int = 0
    """Devices of workers that elastic jobs can do without."""


class ReclaimProblem(ClusterProblem, frozen=True, kw_only=True):
    """Borrowed servers, of which some must be given back."""

    give_back: int
    servers: tuple[OccupiedServer, ...]
    jobs: tuple[StoppableJob, ...]
    away_s: float = 0.0
    """How long the servers will be missed: the work that flexible workers would have done."""

    def fault(self) -> str | None:
        names = [server.name for server in self.servers]
        jobs = [job.name for job in self.jobs]
        if len(set(names)) < len(names) or len(set(jobs)) < len(jobs):
            return "lists a server or a job twice"
        if not 1 <= self.give_back <= len(names):
            return f"give_back must be from 1 to the {len(names)} servers"
        if unknown := {str(job) for server in self.servers for job in server.jobs} - set(jobs):
            return f"job {min(unknown)} of a server is not listed in jobs"
        numbers = [self.away_s, *(float(server.flexible_devices) for server in self.servers)]
        for job in self.jobs:
            numbers += [job.devices, job.restore_s, job.since_checkpoint_s, job.checkpoint_s or 0.0, job.step_s]
        if not all(0 <= number < float("inf") for number in numbers):
            return "has a number that is negative or not finite"
        return None

    def borrowed(self) -> list[BorrowedServer]:
        return [
            BorrowedServer(one.name, tuple(map(str, one.jobs)), one.flexible_devices * self.away_s)
            for one in self.servers
        ]

    def costs(self) -> dict[JobId, StopCost]:
        return {job.name: job.cost for job in self.jobs}


class ServersBack(msgspec.Struct, frozen=True, kw_only=True):
    """Servers to give back, and the jobs that stop."""

    servers: tuple[str, ...]
    stopped: tuple[JobId, ...]
    saving: tuple[JobId, ...]
    """Those that should save before they stop; the others lose less by going back to their last checkpoint."""


class ReclaimAnswer(ClusterAnswer, frozen=True, kw_only=True):
    """Servers to give back. The value is the lost time of devices."""

    objective: Literal["reclaim"] = "reclaim"
    decision: ServersBack
    problem: ReclaimProblem


def give_back(problem: ReclaimProblem) -> ReclaimAnswer:
    """The servers whose return loses the least work, exact (integer program)."""
    servers, costs = problem.borrowed(), problem.costs()
    found = reclaim(servers, costs, problem.give_back)
    lyra = by_job_count(servers, problem.give_back)
    stopped = tuple(sorted(_stopped([one for one in servers if one.name in found.servers])))
    return ReclaimAnswer(
        value=_cost([one for one in servers if one.name in found.servers], costs),
        unit="device-seconds lost",
        bound=found.bound,
        baselines={f"Lyra's count of jobs ({', '.join(one.name for one in lyra)})": _cost(lyra, costs)},
        not_modelled=_NOT_MODELLED,
        decision=ServersBack(
            servers=found.servers,
            stopped=stopped,
            saving=tuple(job.name for job in problem.jobs if job.name in stopped and job.should_save),
        ),
        problem=problem,
    )


def by_job_count(servers: Sequence[BorrowedServer], count: int) -> list[BorrowedServer]:
    """The servers that Lyra gives back: repeatedly the one with the smallest sum over its jobs of one over the number of the
    job's servers. The jobs of a returned server stop everywhere."""
    left, running = list(servers), {job for server in servers for job in server.fixed}
    taken: list[BorrowedServer] = []
    while len(taken) < count:
        spread = {job: sum(job in server.fixed for server in servers) for job in running}
        best = min(left, key=lambda one: sum(1 / spread[job] for job in one.fixed if job in running))
        running -= set(best.fixed)
        left.remove(best)
        taken.append(best)
    return taken


def check_reclaim(answer: ReclaimAnswer) -> CheckedAnswer:
    """Verify the cost by arithmetic, and that none is lower: by trying all sets of stopped jobs, or by another integer
    program if too many jobs are linked by common servers to try all. Raises MismatchError."""
    problem = answer.problem
    servers, costs = problem.borrowed(), problem.costs()
    chosen = [one for one in servers if one.name in answer.decision.servers]
    if len(chosen) != len(answer.decision.servers) or len(chosen) < problem.give_back:
        raise MismatchError(f"{len(chosen)} of the servers are given back, and {problem.give_back} are needed")
    if set(answer.decision.stopped) != _stopped(chosen):
        raise MismatchError("other jobs stop than those on the servers")
    groups = _groups(servers)
    if max(len(_stopped(group)) for group in groups) <= _MAX_JOBS_ENUMERATED:
        bound, how = _enumerated(groups, costs, problem.give_back), "by trying all sets of stopped jobs"
    else:
        bound, how = _bound(servers, costs, problem.give_back), "by another integer program"
    return verified(answer, _cost(chosen, costs), bound, how)


def _enumerated(groups: Sequence[Sequence[BorrowedServer]], costs: dict[JobId, StopCost], count: int) -> float:
    """The least cost of `count` servers: jobs of different groups have no common servers, and are tried apart."""
    # best[n]: the least cost of n servers of the groups so far.
    best = {0: 0.0}
    for group in groups:
        mine = _cheapest(group, costs)
        pairs = ((had + more, cost + extra) for had, cost in best.items() for more, extra in mine.items())
        best = _least(pairs, count)
    return best[count]


def _bound(servers: Sequence[BorrowedServer], costs: dict[JobId, StopCost], count: int) -> float:
    """The least cost of `count` servers: one row per job, that it stops if any of its servers is given back."""
    names = sorted(_stopped(servers))
    held = np.array([[float(name in server.fixed) for server in servers] for name in names])
    exact = np.concatenate([np.ones(len(servers)), np.zeros(len(names))])
    rows = np.vstack([np.hstack([held, -np.diag(held.sum(axis=1))]), exact, -exact, np.eye(len(exact))])
    bounds = np.concatenate([np.zeros(len(names)), [float(count), -float(count)], np.ones(len(exact))])
    cost = np.array([*(server.flexible_cost for server in servers), *(costs[name].cost for name in names)])
    return -solve_integers(Program(-cost, csr_array(rows), bounds), np.ones(len(cost), bool)).bound


def _least(pairs: Iterator[tuple[int, float]], most: int) -> dict[int, float]:
    found: dict[int, float] = {}
    for count, cost in pairs:
        if count <= most:
            found[count] = min(cost, found.get(count, cost))
    return found


def _cheapest(group: Sequence[BorrowedServer], costs: dict[JobId, StopCost]) -> dict[int, float]:
    """The least cost by number of servers of the group: for each set of stopped jobs, the cheapest servers of no other."""
    jobs = sorted(_stopped(group))
    found: dict[int, float] = {}
    for size in range(len(jobs) + 1):
        for stopped in combinations(jobs, size):
            total = sum(costs[job].cost for job in stopped)
            free = sorted(one.flexible_cost for one in group if set(one.fixed) <= set(stopped))
            for count in range(len(free) + 1):
                cost = total + sum(free[:count])
                found[count] = min(cost, found.get(count, cost))
    return found


def _groups(servers: Sequence[BorrowedServer]) -> list[list[BorrowedServer]]:
    """Servers that are linked by common jobs, directly or through others."""
    groups: list[list[BorrowedServer]] = []
    for server in servers:
        linked = [group for group in groups if any(set(server.fixed) & set(one.fixed) for one in group)]
        groups = [group for group in groups if group not in linked]
        groups.append([server, *(one for group in linked for one in group)])
    return groups


def _stopped(servers: Sequence[BorrowedServer]) -> set[JobId]:
    return {job for server in servers for job in server.fixed}


def _cost(servers: Sequence[BorrowedServer], costs: dict[JobId, StopCost]) -> float:
    return sum(one.flexible_cost for one in servers) + sum(costs[job].cost for job in sorted(_stopped(servers)))
