"""Cost of finishing a mix of jobs sooner, with preemptible devices, and break-even prices."""

from collections.abc import Iterator

import msgspec
import numpy as np

from esprof.analyzers.advisors.cluster.mix import DeviceType, Mix, Together
from esprof.analyzers.advisors.cluster.policies import Posed, Prices, pose
from esprof.analyzers.advisors.cluster.program import Infeasible, Optimum, solve

_PER_HOUR = 3_600

_HORIZONS = (1.0, 1.1, 1.25, 1.5, 2.0, 3.0, 5.0)
"""Time limits for all jobs, as multiples of the shortest makespan."""

_MIN_SHARE_USED = 1e-9


class Recovery(msgspec.Struct, frozen=True, kw_only=True):
    """Cost of checkpoints and interruptions of a job."""

    restore_s: float = 0.0
    checkpoint_every_s: float = 0.0
    """On average half of this time is lost in an interruption."""
    checkpoint_share: float = 0.0
    """Share of all time spent on checkpoints."""


class Tradeoff(msgspec.Struct, frozen=True, kw_only=True):
    """Time limit for all jobs and the least cost that meets it."""

    hours: float
    money: float


def longer(interruptions_per_hour: float, recovery: Recovery) -> float:
    """Factor by which checkpoints and interruptions prolong a job, to first order in their rate (Narayanan et al.,
    DISPA 2020): 1 + overhead + rate (restore + interval / 2)."""
    lost_s = recovery.restore_s + recovery.checkpoint_every_s / 2
    return 1 + recovery.checkpoint_share + interruptions_per_hour * lost_s / _PER_HOUR


def interrupted(mix: Mix, interruptions_per_hour: dict[DeviceType, float], recovery: Recovery) -> Mix:
    """The mix with throughputs reduced by the interruptions of each type of device."""

    def slower(kind: DeviceType) -> float:
        return longer(interruptions_per_hour.get(kind, 0.0), recovery)

    def left_together(pair: Together) -> Together:
        both = pair.throughput_steps_per_s.items()
        left = {kind: (mine / slower(kind), its / slower(kind)) for kind, (mine, its) in both}
        return msgspec.structs.replace(pair, throughput_steps_per_s=left)

    jobs = []
    for job in mix.jobs:
        alone = {kind: rate / slower(kind) for kind, rate in job.throughput_steps_per_s.items()}
        together = tuple(left_together(pair) for pair in job.together)
        jobs.append(msgspec.structs.replace(job, throughput_steps_per_s=alone, together=together))
    return msgspec.structs.replace(mix, jobs=tuple(jobs))


def frontier(mix: Mix, prices: Prices | None) -> Iterator[Tradeoff]:
    """Least cost for increasing time limits, from the shortest feasible one until more time saves nothing. The jobs' own
    deadlines are met."""
    shortest = pose(mix, "makespan")
    makespan_s = shortest.value_of(solve(shortest.program).value)
    before = float("inf")
    for times in _HORIZONS:
        within_s = makespan_s * times * (1 + _MIN_SHARE_USED)  # Slack for the rounding of the optimum.
        jobs = tuple(
            msgspec.structs.replace(job, deadline_s=min(job.deadline_s or within_s, within_s)) for job in mix.jobs
        )
        posed = pose(msgspec.structs.replace(mix, jobs=jobs), "cost", prices)
        try:
            money = posed.value_of(solve(posed.program).value)
        except Infeasible:
            continue
        if money >= before * (1 - _MIN_SHARE_USED):
            return
        before = money
        yield Tradeoff(hours=within_s / _PER_HOUR, money=money)


def break_even(posed: Posed, found: Optimum) -> dict[DeviceType, float]:
    """Price per hour below which each type that the optimum leaves unused would be used, from the least reduced cost of its
    variables."""
    assert found.duals is not None
    sharing = posed.sharing
    reduced = posed.program.rows.T @ found.duals - posed.program.gain
    kinds = np.array([sharing.columns[at][2] for at, _ in posed.columns])
    held = np.array([sharing.first(sharing.columns[at][0]).scale_factor for at, _ in posed.columns])
    prices: dict[DeviceType, float] = {}
    for number, kind in enumerate(sharing.kinds):
        mine = kinds == number
        if mine.any() and not (found.x[: len(kinds)][mine] > _MIN_SHARE_USED).any():
            price = -posed.program.gain[: len(kinds)][mine] / held[mine]
            prices[kind] = float((price - reduced[: len(kinds)][mine] / held[mine]).max())
    return prices
