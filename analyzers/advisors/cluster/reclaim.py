"""Choose the borrowed servers to return so that the least work is lost (Lyra, EuroSys 2023, §5.1).

Returning a server with a fixed worker of a job stops or moves the job. Lyra counts jobs; here the cost of a job is measured:
its checkpoint, its restore, and its work since the last checkpoint. Flexible workers cost the work that they contribute.
The optimum is exact, by an integer program: jobs span servers, so that servers share their costs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_array

from esprof.analyzers.advisors.cluster.mix import JobId
from esprof.analyzers.advisors.cluster.program import Program, solve_integers


@dataclass(frozen=True)
class StopCost:
    """Cost of stopping a job, in device-seconds."""

    checkpoint_s: float
    restore_s: float
    since_checkpoint_s: float
    devices: int

    @property
    def cost(self) -> float:
        return (self.checkpoint_s + self.restore_s + self.since_checkpoint_s) * self.devices


@dataclass(frozen=True)
class BorrowedServer:
    """A borrowed server and the jobs on it."""

    name: str
    fixed: tuple[JobId, ...] = ()
    """Jobs that stop without it."""
    flexible_cost: float = 0.0
    """Cost of losing its flexible workers, in the unit of `StopCost.cost`."""


@dataclass(frozen=True)
class Reclaimed:
    """Servers to return, and the cost."""

    servers: tuple[str, ...]
    stopped: tuple[JobId, ...]
    cost: float
    bound: float
    """Lower bound of the cost of any choice."""


def reclaim(servers: Sequence[BorrowedServer], jobs: Mapping[JobId, StopCost], count: int) -> Reclaimed:
    """The `count` servers with the least cost of return. Raises ValueError if there are fewer."""
    if count > len(servers):
        raise ValueError(f"{count} servers must be returned, but there are only {len(servers)}")
    names = sorted({job for server in servers for job in server.fixed})
    width = len(servers) + len(names)
    # A returned server stops its jobs: returned - stopped <= 0. At least `count` are returned, none twice.
    rows, bounds = [], []
    for at, server in enumerate(servers):
        for job in server.fixed:
            row = np.zeros(width)
            row[at], row[len(servers) + names.index(job)] = 1, -1
            rows.append(row)
            bounds.append(0.0)
    rows += [np.concatenate([-np.ones(len(servers)), np.zeros(len(names))]), *np.eye(width)]
    bounds += [-float(count), *np.ones(width)]
    costs = np.array([*(server.flexible_cost for server in servers), *(jobs[name].cost for name in names)])
    found = solve_integers(Program(-costs, csr_array(np.array(rows)), np.array(bounds)), np.ones(width, bool))
    chosen = found.x > 0.5
    return Reclaimed(
        servers=tuple(server.name for server, taken in zip(servers, chosen[: len(servers)], strict=True) if taken),
        stopped=tuple(name for name, stops in zip(names, chosen[len(servers) :], strict=True) if stops),
        cost=-found.value,
        bound=-found.bound,
    )
