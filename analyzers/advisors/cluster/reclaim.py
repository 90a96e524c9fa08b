"""Which borrowed servers to give back, so that the least work is lost (Lyra, EuroSys 2023, §5.1).

A job's fixed workers cannot run elsewhere: a server that holds one ends or moves the whole job. Lyra counts jobs; here each
costs what was measured: its checkpoint, its restore, and what it did since the last one. Workers that a job can do without
cost what they bring. Exact, as a program in whole numbers: jobs span servers, so that their costs are shared.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_array

from esprof.analyzers.advisors.cluster.mix import JobId
from esprof.analyzers.advisors.cluster.program import Program, solve_integers


@dataclass(frozen=True)
class StopCost:
    """What it costs to stop a job, in device seconds."""

    checkpoint_s: float
    restore_s: float
    since_checkpoint_s: float
    devices: int

    @property
    def cost(self) -> float:
        return (self.checkpoint_s + self.restore_s + self.since_checkpoint_s) * self.devices


@dataclass(frozen=True)
class BorrowedServer:
    """A borrowed server, and who is on it."""

    name: str
    fixed: tuple[JobId, ...] = ()
    """Jobs that stop without it."""
    flexible_cost: float = 0.0
    """What the workers there bring that their jobs can do without, in the unit of `StopCost.cost`."""


@dataclass(frozen=True)
class Reclaimed:
    """What is given back."""

    servers: tuple[str, ...]
    stopped: tuple[JobId, ...]
    cost: float
    bound: float
    """No choice costs less."""


def reclaim(servers: Sequence[BorrowedServer], jobs: Mapping[JobId, StopCost], count: int) -> Reclaimed:
    """The `count` servers whose return costs least. Raises ValueError where there are fewer."""
    if count > len(servers):
        raise ValueError(f"{count} servers are to be given back, and there are {len(servers)}")
    names = sorted({job for server in servers for job in server.fixed})
    width = len(servers) + len(names)
    # A server given back stops its jobs: returned - stopped <= 0. At least `count` are given back, none twice.
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
