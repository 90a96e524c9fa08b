"""Garbage collections of the training threads: their time in the steps of the whole run."""

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from esprof.analyzers.price import MeasuredPrice
from esprof.analyzers.samples.job_samples import JobSamples
from esprof.analyzers.steps.step_groups import MIN_STEPS
from esprof.core.statistics import least_of_events, mean_margin
from esprof.core.types import Rank

COLLECT_LESS = (
    "If the line calls gc.collect(), call it less often or not at all. Otherwise call gc.freeze() after start-up, so that "
    "long-lived objects are not examined again, and raise gc.set_threshold. Or turn automatic collection off and collect "
    "every few steps, on all ranks in the same step."
)

TIMES_A_CLOSE_LINE_COUNTS = 100
"""Weight of a line sampled within a millisecond after a collection, relative to other lines."""


@dataclass(frozen=True)
class Collections:
    """Cost of garbage collections in the steps without profiler."""

    measured: MeasuredPrice
    count: int
    """Collections on all ranks."""
    per_step_ns: dict[Rank, float]
    """Their time in a mean step of each rank, ns."""
    location: str
    """The line sampled right after most of their time; "" if there is none."""


def collections(samples: JobSamples) -> Collections | None:
    """Garbage collections of the whole run; None if there are none, or too few steps.

    In a step in which several ranks collect, the others wait for the one that takes longest.
    """
    job = samples.steps
    steps = job.numbers("plain")
    if len(steps) < MIN_STEPS:
        return None
    by_rank: dict[Rank, np.ndarray] = {}
    behind: dict[str, float] = defaultdict(float)
    count = 0
    for rank in job.run.ranks:
        rows = job.rows(rank, steps)
        sampled = samples.collecting(rank)
        begin, end = sampled.collections.T
        at = np.searchsorted(rows.ints("start_ns"), begin, side="right") - 1
        inside = (at >= 0) & (begin < (rows.ints("start_ns") + rows.ints("dur_ns"))[at])
        count += int(inside.sum())
        by_rank[rank] = np.bincount(at[inside], (end - begin)[inside], len(steps))
        seen = zip(sampled.frames_behind(end[inside]), (end - begin)[inside].tolist(), strict=True)
        for (frame, is_close), took in seen:
            # Outside of windows with stacks, the thread may have moved on by the next sample.
            behind[frame] += took * (TIMES_A_CLOSE_LINE_COUNTS if is_close else 1)
    longest = np.max(list(by_rank.values()), axis=0)
    if not longest.any():
        return None
    step_ns = float(job.durations_ns(steps).mean())
    return Collections(
        MeasuredPrice(
            saving_ns=float(longest.mean()),
            margin_ns=mean_margin(longest),
            step_ns=step_ns,
            least_ns=least_of_events(longest),
        ),
        count,
        {rank: float(took.mean()) for rank, took in by_rank.items() if took.any()},
        max(behind, key=lambda frame: behind[frame]),
    )
