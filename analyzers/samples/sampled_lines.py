"""Sampled lines of the job's own code: during given intervals, or while it calls a library."""

import re
from collections import Counter, defaultdict
from collections.abc import Container, Iterable
from dataclasses import dataclass

import numpy as np

from esprof.analyzers.samples.job_samples import JobSamples, StackSamples
from esprof.analyzers.steps.step_groups import SLOW_TIMES_MEDIAN
from esprof.core.text import LONGEST_NAME, printable
from esprof.core.types import Rank
from esprof.replay.cpu.frames import frame
from esprof.run.stacks import SourceLocation, functions_of, is_own, location_of

MIN_SHARE_OF_SAMPLES = 0.5
"""Least share of the samples that a function must have for its line to be named."""

_COLLECTIVE_FRAME = re.compile(r"torch/distributed/(distributed_c10d|_functional_collectives)\.py\(\d+\): [\w.]+(\n|$)")
"""Matches frames of collectives, such as `all_reduce` and `all_gather_object`. Those that DDP calls from C++ have none."""


@dataclass(frozen=True)
class Seen:
    """The most frequent line of the function with the most samples."""

    location: SourceLocation
    share: float
    """Share of the samples' time spent in its function."""

    @property
    def text(self) -> str:
        """`file(line): function`, and the function that it called."""
        return (
            self.location.frame
            if self.location.call is None
            else f"{self.location.frame}, calling {self.location.call}"
        )


def seen_within(samples: JobSamples, rank: Rank, spans_ns: np.ndarray) -> Seen | None:
    """The line of the job's own code that ran during `spans_ns`, int64[n, 2]: disjoint intervals on the rank's clock.

    None if there are no samples in them, or no function has most of the time.
    """
    rank_samples = samples.of(rank)
    return _most(rank_samples, _inside(rank_samples, spans_ns))


def seen_calling(samples: JobSamples, rank: Rank, callee: re.Pattern[str]) -> tuple[Seen, float] | None:
    """(the line of the job's own code that calls a line matching `callee`, time of these calls in a mean step, ns).

    None if no such call was sampled, or no function makes most of them. Slow steps are excluded: other findings cover them.
    """
    rank_samples, steps = samples.of(rank), samples.steps.table(rank)
    took = steps.ints("dur_ns")
    usual = steps.ints("step")[took <= SLOW_TIMES_MEDIAN * np.median(took)] if len(took) else took
    chosen = rank_samples.matches(callee.search) & np.isin(rank_samples.step, usual)
    seen = _most(rank_samples, chosen)
    if seen is None:
        return None
    return seen, float(rank_samples.dur_ns[chosen].sum()) * seen.share / max(1, len(usual))


def collective_line(samples: JobSamples, ranks: Iterable[Rank], least_ns: float) -> str | None:
    """The line of the job's own code that calls collectives, with its callee, on the rank that spends most time there; None
    if that is less than `least_ns` of a mean step."""
    found = [one for rank in ranks if (one := seen_calling(samples, rank, _COLLECTIVE_FRAME)) is not None]
    seen, took_ns = max(found, key=lambda one: one[1], default=(None, 0.0))
    return printable(seen.text, LONGEST_NAME) if seen and took_ns >= least_ns else None


def seen_above(
    samples: JobSamples, rank: Rank, callee: re.Pattern[str], among: Container[str] | None = None
) -> str | None:
    """The line of the job's own code that is most often seen right above the first frame that matches `callee`, as
    `file(line): function`; None without such samples.

    Only lines of the functions (`file: function`) `among` these count, if given.
    """
    rank_samples, above = samples.of(rank), Counter[str]()
    codes = rank_samples.code[rank_samples.code >= 0]
    of_stack = np.bincount(codes, minlength=len(rank_samples.stacks))
    for stack, count in zip(rank_samples.stacks, of_stack.tolist(), strict=True):
        if count and (found := callee.search(stack)):
            own = [line for line in stack[: found.start()].split("\n") if _is_wanted(line, among)]
            above.update(dict.fromkeys(own[-1:], count))
    return above.most_common(1)[0][0] if above else None


def _is_wanted(line: str, among: Container[str] | None) -> bool:
    """Whether a line belongs to the job's own code and, if given, to one of these functions."""
    return bool(line) and is_own(line) and (among is None or any(one in among for one in functions_of(line)))


def _inside(rank_samples: StackSamples, spans_ns: np.ndarray) -> np.ndarray:
    """Mask of the samples in `spans_ns`, int64[n, 2]: disjoint intervals on the rank's clock."""
    if not len(spans_ns):
        return np.zeros(len(rank_samples), bool)
    order = np.argsort(spans_ns[:, 0])
    begin, end = spans_ns[order, 0], spans_ns[order, 1]
    span = np.searchsorted(begin, rank_samples.at_ns) - 1
    mask: np.ndarray = (span >= 0) & (rank_samples.at_ns <= end[span])
    return mask


def _most(rank_samples: StackSamples, chosen: np.ndarray) -> Seen | None:
    chosen = chosen & (rank_samples.code >= 0)
    took = np.bincount(rank_samples.code[chosen], rank_samples.dur_ns[chosen], len(rank_samples.stacks))
    of_function: dict[tuple[str, str], dict[SourceLocation, float]] = defaultdict(lambda: defaultdict(float))
    for at in np.flatnonzero(took).tolist():
        location = location_of(rank_samples.stacks[at])
        of = frame(location.frame)
        of_function[of.file, of.function][location] += float(took[at])
    if not of_function:
        return None
    by_location = max(of_function.values(), key=lambda some: sum(some.values()))
    share = sum(by_location.values()) / float(took.sum())
    return (
        Seen(max(by_location, key=lambda location: by_location[location]), share)
        if share >= MIN_SHARE_OF_SAMPLES
        else None
    )
