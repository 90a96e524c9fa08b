"""Which borrowed servers to give back so that the least work is lost (Lyra, EuroSys 2023, §5.1).

Without a server its jobs stop, or move. Lyra counts jobs; here the cost of a stop is measured: a checkpoint, the restore and
the lost work. Jobs span servers, so that servers share their costs: the optimum is found by an integer program.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from itertools import combinations
from typing import Literal

import msgspec
import numpy as np
from scipy.sparse import csr_array, diags_array, eye_array, hstack, vstack
from scipy.sparse.csgraph import connected_components

from esprof.analyzers.advisors.cluster.mix import JobId
from esprof.analyzers.advisors.cluster.program import Optimum, Program, solve_integers
from esprof.analyzers.advisors.cluster.questions.answer import (
    CheckedAnswer,
    ClusterAnswer,
    ClusterProblem,
    NamedJob,
    verified,
)
from esprof.core.errors import MismatchError

_MAX_JOBS_ENUMERATED = 12
"""Jobs that are linked by common servers, up to which the check tries all sets of stopped jobs."""

_MAX_SERVERS = 1_000
"""With more, the search may take too long to be exact."""

_NOT_MODELLED = (
    "where stopped jobs continue, and how long they wait",
    "servers that could be emptied by moving a job's workers",
)


class StoppableJob(NamedJob, frozen=True, kw_only=True):
    """A job on borrowed servers, and what a stop costs it."""

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
    def should_save(self) -> bool:
        """Whether the job loses less if it saves before it stops, although the step under way is lost."""
        return self.checkpoint_s is not None and self.checkpoint_s + self.step_s < self.since_checkpoint_s

    @property
    def stop_cost(self) -> float:
        """Device-seconds that a stop costs, with or without saving, whichever is less."""
        lost_s = self.since_checkpoint_s
        if self.should_save and self.checkpoint_s is not None:
            lost_s = self.checkpoint_s + self.step_s
        return (self.restore_s + lost_s) * self.devices


class OccupiedServer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A borrowed server, and the workers on it."""

    name: str
    jobs: tuple[int | str, ...] = ()
    """Jobs that stop without it."""
    flexible_devices: int = 0
    """Devices of workers that elastic jobs can do without."""

    @property
    def stops(self) -> frozenset[JobId]:
        return frozenset(map(str, self.jobs))


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
        if max(len(names), len(jobs)) > _MAX_SERVERS:
            return f"has {len(names):,} servers and {len(jobs):,} jobs: at most {_MAX_SERVERS:,} of each are possible"
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

    def cost(self, servers: Iterable[OccupiedServer]) -> float:
        """Device-seconds lost if these servers are given back."""
        chosen = list(servers)
        stopped = _stopped(chosen)
        jobs = sum(job.stop_cost for job in self.jobs if job.name in stopped)
        return jobs + sum(one.flexible_devices for one in chosen) * self.away_s


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
    found = _solved(problem, _rows_by_server(problem))
    chosen = [one for one, taken in zip(problem.servers, found.x, strict=False) if taken > 0.5]
    lyra = by_job_count(problem.servers, problem.give_back)
    return ReclaimAnswer(
        value=problem.cost(chosen),
        unit="device-seconds lost",
        bound=-found.bound,
        baselines={f"Lyra's count of jobs ({', '.join(one.name for one in lyra)})": problem.cost(lyra)},
        not_modelled=_NOT_MODELLED,
        decision=_decision(problem, chosen),
        problem=problem,
    )


def by_job_count(servers: Sequence[OccupiedServer], count: int) -> list[OccupiedServer]:
    """The servers that Lyra gives back: repeatedly the one with the smallest sum over its jobs of one over the number of the
    job's servers. The jobs of a returned server stop everywhere."""
    holders = defaultdict[JobId, list[int]](list)
    for at, server in enumerate(servers):
        for job in sorted(server.stops):
            holders[job].append(at)
    costs = {at: sum(1 / len(holders[job]) for job in sorted(one.stops)) for at, one in enumerate(servers)}
    running, taken = _stopped(servers), list[OccupiedServer]()
    while len(taken) < count:
        best = min(costs, key=lambda at: costs[at])
        del costs[best]
        taken.append(servers[best])
        stopped = servers[best].stops & running
        running -= stopped
        for at in {at for job in stopped for at in holders[job]} & costs.keys():
            costs[at] = sum(1 / len(holders[job]) for job in sorted(servers[at].stops & running))
    return taken


def check_reclaim(answer: ReclaimAnswer) -> CheckedAnswer:
    """Verify the cost by arithmetic, and that none is lower: by trying all sets of stopped jobs, or by another integer
    program if too many jobs are linked by common servers to try all. Raises MismatchError."""
    problem = answer.problem
    chosen = [one for one in problem.servers if one.name in answer.decision.servers]
    if len(chosen) != len(answer.decision.servers) or len(chosen) != problem.give_back:
        raise MismatchError(f"{len(chosen)} of the servers are given back, and {problem.give_back} are needed")
    if answer.decision != _decision(problem, chosen):
        raise MismatchError("other jobs stop or save than those on the servers")
    groups = _groups(problem)
    if max(len(_stopped(group)) for group in groups) <= _MAX_JOBS_ENUMERATED:
        bound, how = _enumerated(problem, groups), "by trying all sets of stopped jobs"
    else:
        bound, how = -_solved(problem, _rows_by_job(problem)).bound, "by another integer program"
    return verified(answer, problem.cost(chosen), bound, how)


def _decision(problem: ReclaimProblem, chosen: Sequence[OccupiedServer]) -> ServersBack:
    stopped = _stopped(chosen)
    return ServersBack(
        servers=tuple(one.name for one in chosen),
        stopped=tuple(sorted(stopped)),
        saving=tuple(job.name for job in problem.jobs if job.name in stopped and job.should_save),
    )


def _solved(problem: ReclaimProblem, rows: csr_array) -> Optimum:
    """The best x of zeros and ones with `rows @ x <= 0`: one for each server that is given back, then for each job that
    stops."""
    servers, jobs = problem.servers, problem.jobs
    exact = csr_array(np.concatenate([np.ones(len(servers)), np.zeros(len(jobs))])[None])
    count = float(problem.give_back)
    cost = np.array([*(one.flexible_devices * problem.away_s for one in servers), *(job.stop_cost for job in jobs)])
    program = Program(
        gain=-cost,
        rows=vstack([rows, exact, -exact, eye_array(len(cost))], format="csr"),
        bounds=np.concatenate([np.zeros(rows.shape[0]), [count, -count], np.ones(len(cost))]),
    )
    return solve_integers(program, np.ones(len(cost), bool))


def _on_servers(problem: ReclaimProblem) -> csr_array:
    """One where a server holds a job, float64[servers, jobs]."""
    at_job = {job.name: at for at, job in enumerate(problem.jobs)}
    pairs = [(at, at_job[job]) for at, one in enumerate(problem.servers) for job in sorted(one.stops)]
    servers, jobs = zip(*pairs, strict=True) if pairs else ((), ())
    return csr_array((np.ones(len(pairs)), (servers, jobs)), shape=(len(problem.servers), len(problem.jobs)))


def _rows_by_server(problem: ReclaimProblem) -> csr_array:
    """For each server and job on it: if the server is given back, the job stops."""
    servers, jobs = _on_servers(problem).nonzero()
    rows, ones = np.arange(len(servers)), np.ones(len(servers))
    columns = np.concatenate([servers, len(problem.servers) + jobs])
    shape = len(rows), len(problem.servers) + len(problem.jobs)
    return csr_array((np.concatenate([ones, -ones]), (np.concatenate([rows, rows]), columns)), shape=shape)


def _rows_by_job(problem: ReclaimProblem) -> csr_array:
    """For each job: if any of its servers is given back, it stops."""
    held = _on_servers(problem).T
    return hstack([held, -diags_array(held.sum(axis=1))], format="csr")


def _enumerated(problem: ReclaimProblem, groups: Sequence[Sequence[OccupiedServer]]) -> float:
    """The least cost of the servers: jobs of different groups have no common servers, and are tried apart."""
    # best[n]: the least cost of n servers of the groups so far.
    best = {0: 0.0}
    for group in groups:
        mine = _cheapest(problem, group)
        pairs = ((had + more, cost + extra) for had, cost in best.items() for more, extra in mine.items())
        best = _least(pairs, problem.give_back)
    return best[problem.give_back]


def _least(pairs: Iterator[tuple[int, float]], most: int) -> dict[int, float]:
    found: dict[int, float] = {}
    for count, cost in pairs:
        if count <= most:
            found[count] = min(cost, found.get(count, cost))
    return found


def _cheapest(problem: ReclaimProblem, group: Sequence[OccupiedServer]) -> dict[int, float]:
    """The least cost by number of servers of the group: for each set of stopped jobs, the cheapest servers of no other."""
    costs = {job.name: job.stop_cost for job in problem.jobs}
    jobs = sorted(_stopped(group))
    found: dict[int, float] = {}
    for size in range(len(jobs) + 1):
        for stopped in combinations(jobs, size):
            total = sum(costs[job] for job in stopped)
            free = sorted(one.flexible_devices * problem.away_s for one in group if one.stops <= set(stopped))
            for count in range(len(free) + 1):
                cost = total + sum(free[:count])
                found[count] = min(cost, found.get(count, cost))
    return found


def _groups(problem: ReclaimProblem) -> list[list[OccupiedServer]]:
    """Servers that are linked by common jobs, directly or through others."""
    held = _on_servers(problem)
    count, labels = connected_components(held @ held.T, directed=False)
    groups: list[list[OccupiedServer]] = [[] for _ in range(count)]
    for server, label in zip(problem.servers, labels.tolist(), strict=True):
        groups[label].append(server)
    return groups


def _stopped(servers: Iterable[OccupiedServer]) -> set[JobId]:
    return {job for server in servers for job in server.stops}
