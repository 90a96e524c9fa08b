"""Where a rank that computes on CPUs spends the CPU time of its training thread, from sampled stacks."""

from collections import defaultdict

import numpy as np

from esprof.analyzers.samples.job_samples import JobSamples
from esprof.core.types import Rank
from esprof.run.stacks import location_of

MIN_SAMPLES = 50
"""Least number of samples. With these, the 95 % confidence interval of a share of 20 % is 9 to 31 %."""

MIN_SHARE = 0.05
"""Least share of a place that is named."""

MAX_PLACES = 3
"""Most places that are named."""

BACKWARD, OPTIMIZERS = "in the backward pass", "in optimizers"

_ENGINE, _OPTIMIZER = ": _engine_run_backward", "torch/optim/"
"""What the frames contain that run a backward pass, or an optimizer."""


def computing_places(samples: JobSamples, rank: Rank) -> dict[str, float]:
    """Place -> share of the CPU time of the training thread in the steps without profiler, largest first.

    Places are the innermost lines of the job's own code, the backward pass and optimizers. Empty with too few samples.
    """
    of_rank = samples.of(rank)
    is_plain = np.isin(of_rank.step, samples.steps.numbers("plain"))
    chosen = is_plain & (of_rank.code >= 0) & (of_rank.cpu_ns > 0)
    if np.count_nonzero(chosen) < MIN_SAMPLES:
        return {}
    ran = np.bincount(of_rank.code[chosen], of_rank.cpu_ns[chosen], len(of_rank.stacks))
    by_place: dict[str, float] = defaultdict(float)
    for at in np.flatnonzero(ran).tolist():
        by_place[_place(of_rank.stacks[at])] += float(ran[at])
    total = float(ran.sum())
    longest = sorted(by_place, key=lambda place: -by_place[place])[:MAX_PLACES]
    return {place: by_place[place] / total for place in longest if by_place[place] >= MIN_SHARE * total}


def _place(stack: str) -> str:
    if _ENGINE in stack:
        return BACKWARD
    return OPTIMIZERS if _OPTIMIZER in stack else f"at {location_of(stack).frame}"
