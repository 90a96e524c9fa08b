"""For how much of the run a rank is slow that is slow in the recorded steps."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from esprof.analyzers.price import MeasuredPrice
from esprof.analyzers.rule import Case
from esprof.analyzers.steps.step_groups import MIN_STEPS
from esprof.core.statistics import mean_margin
from esprof.core.types import Rank

MIN_SHARE_OF_STEP = 0.25
"""Least share of a step that a slow rank must cost, for steps without it to be told by their duration alone."""

DELAYED_FROM_SHARE = 0.6
"""A step counts as delayed from which on it is longer than one without the slow rank by the rest of this share."""

NEAR_STEPS = 8
"""Steps without profiler that are taken for what the recorded ones would be without it."""

MIN_CPU_SHARE = 0.5
"""Least share of the delay that the slow ranks must have in CPU time beyond the others, for that to tell."""

MIN_SHARE_OF_RUN = 0.6
"""Share of the run from which on a rank counts as slow all the time."""


@dataclass(frozen=True)
class Lasting:
    """How the steps without profiler compare with the recorded ones."""

    share: float
    """Share of the run for which the ranks are as slow, from 0 to 1."""
    share_margin: float
    """Half the width of its 95 % interval."""
    near_ns: float
    """What a step without profiler next to the recorded ones takes."""
    mean_ns: float
    """What a step without profiler takes, the mean over the run."""

    @property
    def is_always(self) -> bool:
        return self.share >= MIN_SHARE_OF_RUN

    def measured(self, saving: float, margin: float) -> MeasuredPrice:
        """What the mean step of the run would gain where a recorded one gains `saving` ± `margin`, shares of it."""
        off = float(np.hypot(margin * self.share, saving * self.share_margin))
        return MeasuredPrice(
            saving_ns=saving * self.share * self.near_ns, margin_ns=off * self.near_ns, step_ns=self.mean_ns
        )


def lasting(case: Case, ranks: Sequence[Rank], saving: float, *, computes: bool) -> Lasting | None:
    """For how much of the run `ranks` are slow, which cost `saving` of a recorded step, a share; None where nothing tells.

    By the duration of the job's steps, and, where the ranks are slow because of what their CPUs compute, by their CPU time:
    the least of the two.
    """
    steps = case.job.steps.numbers("plain")
    if len(steps) < MIN_STEPS:
        return None
    took = case.job.steps.durations_ns(steps)
    # The profiler makes recorded steps longer: the nearest without it tell what they would take.
    near = np.argsort(np.abs(steps - np.median(case.replayed.steps.steady)), kind="stable")[:NEAR_STEPS]
    near_ns = float(np.median(took[near]))
    told = [_mean(took > near_ns * (1 - DELAYED_FROM_SHARE * saving))] if saving >= MIN_SHARE_OF_STEP else []
    if computes and not case.replayed.built.dfg.has_gpu():
        recorded = _beyond(case, ranks, np.array(case.replayed.steps.steady))
        usual = _beyond(case, ranks, steps)
        if (
            recorded is not None
            and usual is not None
            and recorded.mean() >= MIN_CPU_SHARE * saving * case.pricer.step_ns
        ):
            told.append(_ratio(_mean(usual), _mean(recorded)))
    return Lasting(*min(told), near_ns, float(took.mean())) if told else None


def _mean(values: np.ndarray) -> tuple[float, float]:
    """(mean, half the width of its 95 % interval)."""
    return float(values.mean()), mean_margin(values)


def _ratio(part: tuple[float, float], whole: tuple[float, float]) -> tuple[float, float]:
    """(share of a whole, half the width of its 95 % interval), neither beyond 0 and 1."""
    share = min(1.0, max(0.0, part[0] / whole[0]))
    return share, min(1.0, float(np.hypot(part[1], share * whole[1])) / whole[0])


def _beyond(case: Case, ranks: Sequence[Rank], steps: np.ndarray) -> np.ndarray | None:
    """By how much the training threads of `ranks` run longer than the median of the others in each of `steps`, ns,
    float64[steps]; None where that was not recorded."""
    ran = case.job.steps.over_ranks(steps, "cpu_ns")
    mine = np.isin(case.run.ranks, ranks)
    if (ran < 0).any() or mine.all():
        return None
    beyond: np.ndarray = ran[mine].mean(axis=0) - np.median(ran[~mine], axis=0)
    return beyond
