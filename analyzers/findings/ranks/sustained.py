"""Share of the run in which ranks that are slow in the recorded steps are slow."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from esprof.analyzers.price import MeasuredPrice
from esprof.analyzers.rule import Case
from esprof.analyzers.steps.step_groups import MIN_STEPS
from esprof.core.statistics import mean_margin
from esprof.core.types import Rank

MIN_SHARE_OF_STEP = 0.25
"""Least cost of a slow rank, as a share of a step, for which delayed steps are recognised by their duration alone."""

DELAYED_FROM_SHARE = 0.6
"""A step counts as delayed if it is shorter than a recorded one by less than this share of the slow rank's cost."""

NEAR_STEPS = 8
"""Number of steps without profiler, nearest to the recorded ones, that show how long those would take without it."""

MIN_CPU_SHARE = 0.5
"""Least share of the delay that must appear as extra CPU time of the slow ranks, for CPU time to be used."""

MIN_SHARE_OF_RUN = 0.6
"""Least share of the run for which a rank counts as slow throughout."""


@dataclass(frozen=True)
class Sustained:
    """How the steps without profiler compare with the recorded ones."""

    share: float
    """Share of the run for which the ranks are this slow, from 0 to 1."""
    share_margin: float
    """Half the width of its 95 % interval."""
    near_ns: float
    """Median duration of the steps without profiler nearest to the recorded ones."""
    mean_ns: float
    """Mean duration of all steps without profiler."""

    @property
    def is_always(self) -> bool:
        return self.share >= MIN_SHARE_OF_RUN

    def measured(self, saving: float, margin: float) -> MeasuredPrice:
        """Saving of the mean step of the run if a recorded step saves `saving` ± `margin`, as shares of that step."""
        off = float(np.hypot(margin * self.share, saving * self.share_margin))
        return MeasuredPrice(
            saving_ns=saving * self.share * self.near_ns, margin_ns=off * self.near_ns, step_ns=self.mean_ns
        )


def sustained(case: Case, ranks: Sequence[Rank], saving: float, *, computes: bool) -> Sustained | None:
    """In how much of the run `ranks` are slow; None where unknown. They cost the share `saving` of a recorded step.

    Estimated from the duration of the job's steps and, with `computes`, from the ranks' CPU time: the smaller of the two.
    """
    steps = case.job.steps.numbers("plain")
    if len(steps) < MIN_STEPS:
        return None
    took = case.job.steps.durations_ns(steps)
    # The profiler makes recorded steps longer, so compare with their nearest neighbours without it.
    near = np.argsort(np.abs(steps - np.median(case.replayed.steps.steady)), kind="stable")[:NEAR_STEPS]
    near_ns = float(np.median(took[near]))
    shares = [_mean(took > near_ns * (1 - DELAYED_FROM_SHARE * saving))] if saving >= MIN_SHARE_OF_STEP else []
    if computes and not case.replayed.built.dfg.has_gpu():
        recorded = _beyond(case, ranks, np.array(case.replayed.steps.steady))
        usual = _beyond(case, ranks, steps)
        if (
            recorded is not None
            and usual is not None
            and recorded.mean() >= MIN_CPU_SHARE * saving * case.pricer.step_ns
        ):
            shares.append(_ratio(_mean(usual), _mean(recorded)))
    return Sustained(*min(shares), near_ns, float(took.mean())) if shares else None


def _mean(values: np.ndarray) -> tuple[float, float]:
    """(mean, half the width of its 95 % interval)."""
    return float(values.mean()), mean_margin(values)


def _ratio(value: tuple[float, float], total: tuple[float, float]) -> tuple[float, float]:
    """(share of `value` in `total`, half the width of its 95 % interval), both from 0 to 1."""
    share = min(1.0, max(0.0, value[0] / total[0]))
    return share, min(1.0, float(np.hypot(value[1], share * total[1])) / total[0])


def _beyond(case: Case, ranks: Sequence[Rank], steps: np.ndarray) -> np.ndarray | None:
    """Extra CPU time of the training threads of `ranks` over the median of the others in each of `steps`, ns,
    float64[steps]; None where it was not recorded."""
    ran = case.job.steps.over_ranks(steps, "cpu_ns")
    mine = np.isin(case.run.ranks, ranks)
    if (ran < 0).any() or mine.all():
        return None
    beyond: np.ndarray = ran[mine].mean(axis=0) - np.median(ran[~mine], axis=0)
    return beyond
