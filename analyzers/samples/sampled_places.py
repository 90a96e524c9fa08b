"""Lines of the job's own code at which the training thread was seen: within stretches of time, or in calls of a library."""

import re
from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from esprof.analyzers.samples.frames import frame
from esprof.analyzers.samples.job_samples import JobSamples, RankLooks
from esprof.analyzers.steps.step_groups import SLOW_TIMES_MEDIAN
from esprof.core.types import Rank
from esprof.run.stacks import SourceLocation, location_of

MIN_SHARE_OF_SAMPLES = 0.5
"""Least share of the samples that a line, or its function, must have to be named."""


@dataclass(frozen=True)
class Seen:
    """The line at which most samples were, of the function that has most."""

    place: SourceLocation
    share: float
    """Share of the samples' time that lies in its function."""

    @property
    def text(self) -> str:
        """`file(line): function`, and what that called."""
        return self.place.frame if self.place.call is None else f"{self.place.frame}, calling {self.place.call}"


def seen_within(samples: JobSamples, rank: Rank, spans_ns: np.ndarray) -> Seen | None:
    """Where the job's own code was during `spans_ns`, int64[n, 2], on the rank's clock, which do not overlap.

    None where nothing was sampled then, or no function has most of it.
    """
    looks = samples.of(rank)
    if not len(looks) or not len(spans_ns):
        return None
    order = np.argsort(spans_ns[:, 0])
    begin, end = spans_ns[order, 0], spans_ns[order, 1]
    span = np.searchsorted(begin, looks.at_ns) - 1
    return _most(looks, (span >= 0) & (looks.at_ns <= end[span]))


def seen_calling(samples: JobSamples, rank: Rank, callee: re.Pattern[str]) -> tuple[Seen, float] | None:
    """The line of the job's own code from which a line was called that `callee` finds, and how long that takes in a mean
    step, ns; None where that was never seen, or from no function most of the time. Slow steps do not count: what they do is
    told of them."""
    looks, steps = samples.of(rank), samples.steps.table(rank)
    took = steps.ints("dur_ns")
    usual = steps.ints("step")[took <= SLOW_TIMES_MEDIAN * np.median(took)] if len(took) else took
    calls = np.array([bool(callee.search(stack)) for stack in looks.stacks] + [False])
    chosen = calls[looks.code] & np.isin(looks.step, usual)
    seen = _most(looks, chosen)
    if seen is None:
        return None
    return seen, float(looks.dur_ns[chosen].sum()) * seen.share / max(1, len(usual))


def _most(looks: RankLooks, chosen: np.ndarray) -> Seen | None:
    chosen = chosen & (looks.code >= 0)
    took = np.bincount(looks.code[chosen], looks.dur_ns[chosen], len(looks.stacks))
    of_function: dict[tuple[str, str], dict[SourceLocation, float]] = defaultdict(lambda: defaultdict(float))
    for at in np.flatnonzero(took).tolist():
        place = location_of(looks.stacks[at])
        of = frame(place.frame)
        of_function[of.file, of.function][place] += float(took[at])
    if not of_function:
        return None
    places = max(of_function.values(), key=lambda some: sum(some.values()))
    share = sum(places.values()) / float(took.sum())
    return Seen(max(places, key=lambda place: places[place]), share) if share >= MIN_SHARE_OF_SAMPLES else None
