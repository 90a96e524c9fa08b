"""Fairness among teams, then among each team's jobs: water filling, exact (Gavel, OSDI 2020, §4.3).

The levels of all jobs rise in proportion to their share of their team's weight. A job that can rise no further stops, and
its team's weight is divided among its other jobs.
"""

from dataclasses import dataclass

import numpy as np
from scipy.sparse import csr_array, hstack, vstack

from esprof.analyzers.advisors.cluster.mix import Mix
from esprof.analyzers.advisors.cluster.policies import normal, weights
from esprof.analyzers.advisors.cluster.program import Program, solve
from esprof.analyzers.advisors.cluster.sharing import Sharing

_MIN_RISE = 1e-7
"""A level that can rise by less, relative to the highest, stops."""


@dataclass(frozen=True)
class Levels:
    """Allocation by water filling."""

    x: np.ndarray
    """Time of each of the sharing's variables."""
    normal: tuple[float, ...]
    """Normalised throughput of each job, in the order of the mix."""
    stages: int
    """Number of rounds; in each, some jobs stopped."""


def fill(mix: Mix) -> tuple[Sharing, Levels]:
    """The allocation by water filling over the teams of the mix (`Job.entity`), weighed by `Mix.entities`, and within a team
    by `Job.weight`."""
    sharing = Sharing.of(mix)
    need = np.array(normal(mix))
    levels = np.zeros(len(mix.jobs))
    rising = np.ones(len(mix.jobs), bool)
    stages, x = 0, np.zeros(len(sharing.columns))
    while rising.any():
        weight = np.array(weights(mix, rising.tolist()))
        x, rise = _raised(sharing, need, levels, weight)
        levels = levels + rise * weight
        stages += 1
        rising &= np.array([_can_rise(sharing, need, levels, at) if rising[at] else False for at in range(len(levels))])
    return sharing, Levels(x, tuple((sharing.rates @ x / need).tolist()), stages)


def _raised(sharing: Sharing, need: np.ndarray, levels: np.ndarray, weight: np.ndarray) -> tuple[np.ndarray, float]:
    """The time shares with which all levels rise by the largest multiple of their weights, and that multiple."""
    rows, bounds = sharing.limits
    behind = csr_array((-sharing.rates.multiply((1 / need)[:, None])).tocsr())
    # Slightly below the levels found, which are rounded optima.
    program = Program(
        gain=np.append(np.zeros(len(sharing.columns)), 1.0),
        rows=csr_array(
            vstack([hstack([behind, csr_array(weight[:, None])]), hstack([rows, csr_array((len(bounds), 1))])])
        ),
        bounds=np.concatenate([-levels * (1 - _MIN_RISE / 10), bounds]),
    )
    found = solve(program).x
    return found[:-1], float(found[-1])


def _can_rise(sharing: Sharing, need: np.ndarray, levels: np.ndarray, at: int) -> bool:
    """Whether this job's level can rise while no other falls. Jobs that can rise alone can also rise together."""
    only = np.zeros(len(levels))
    only[at] = 1.0
    return _raised(sharing, need, levels, only)[1] > _MIN_RISE * max(1.0, float(levels.max()))
