"""Assignment of free devices to elastic jobs by proposals (EasyScale, SC 2023, §4.3).

Each job proposes, for each type, the number of additional devices with the largest speedup per device. The best proposals
are accepted while devices are free, at most one per job and round. This is greedy and not optimal overall:
`scaling.deal_out` finds the optimum if the curves of all jobs are known.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from esprof.analyzers.advisors.cluster.mix import DeviceType, JobId
from esprof.analyzers.advisors.job.makespan import Device, fewest_seconds, waste

_MAX_WASTE_SHARE = 0.30
_MAX_TIMES_GROWN = 2
"""Largest growth of a job's devices in one round, as a factor."""


@dataclass(frozen=True)
class ElasticJob:
    """A job of logical workers, and their cost on each type of device."""

    name: JobId
    n_est: int
    kinds: Mapping[DeviceType, Device]
    least: int = 1
    """Fewest devices on which it runs."""


@dataclass(frozen=True)
class DeviceProposal:
    """More devices of one type for one job."""

    job: JobId
    kind: DeviceType
    devices: int
    speedup_each: float
    """1 plus the gain in speed per new device, relative to the job's present speed."""


Held = dict[DeviceType, int]


def ests_per_s(job: ElasticJob, held: Held) -> float:
    """Speed of a job on these devices."""
    return job.n_est / fewest_seconds(_devices(job, held), job.n_est).step_s


def proposals(job: ElasticJob, held: Held, free: Held) -> list[DeviceProposal]:
    """The best proposal for each type, best first; for a job without devices, the fewest on which it runs."""
    if not sum(held.values()):
        starts = ((kind, job.least) for kind in job.kinds if free.get(kind, 0) >= job.least)
        return [DeviceProposal(job.name, kind, count, ests_per_s(job, {kind: count})) for kind, count in starts]
    found = (max(_of_kind(job, held, kind, free), key=_rank, default=None) for kind in job.kinds)
    return sorted((one for one in found if one is not None), key=_rank, reverse=True)


def deal(jobs: Sequence[ElasticJob], held: Mapping[JobId, Held], free: Held) -> dict[JobId, Held]:
    """The devices of each job after all rounds. Jobs that do not run yet come first, in their order."""
    mine = {job.name: dict(held.get(job.name, {})) for job in jobs}
    left = dict(free)
    while True:
        waiting = [job for job in jobs if not sum(mine[job.name].values())]
        starts = [max(proposed, key=_rank) for job in waiting if (proposed := proposals(job, mine[job.name], left))]
        rest = [one for job in jobs if job not in waiting for one in proposals(job, mine[job.name], left)[:1]]
        accepted = 0
        for one in [*starts, *sorted(rest, key=_rank, reverse=True)]:
            if left.get(one.kind, 0) >= one.devices:
                left[one.kind] -= one.devices
                mine[one.job][one.kind] = mine[one.job].get(one.kind, 0) + one.devices
                accepted += 1
        if not accepted:
            return mine


def _rank(one: DeviceProposal) -> tuple[float, int, str, str]:
    """Sort key, the best largest: speedup per device, then number of devices."""
    return round(one.speedup_each, 9), one.devices, one.kind, one.job


def _of_kind(job: ElasticJob, held: Held, kind: DeviceType, free: Held) -> Iterator[DeviceProposal]:
    now, have = ests_per_s(job, held), sum(held.values())
    for more in range(1, min(free.get(kind, 0), job.n_est - have, (_MAX_TIMES_GROWN - 1) * have) + 1):
        grown = held | {kind: held.get(kind, 0) + more}
        speed = ests_per_s(job, grown)
        if speed > now and _waste(job, grown) <= _MAX_WASTE_SHARE:
            yield DeviceProposal(job.name, kind, more, (speed / now - 1) / more + 1)


def _devices(job: ElasticJob, held: Held) -> list[Device]:
    return [job.kinds[kind] for kind, count in held.items() for _ in range(count)]


def _waste(job: ElasticJob, held: Held) -> float:
    devices = _devices(job, held)
    return waste(devices, fewest_seconds(devices, job.n_est).ests)
