"""How many GPUs a job should ask for: completion(n) = wait(n) + training(n), by the waits of a log.

A larger gang trains faster, and may wait longer for that many GPUs at once. Waits within a day depend on each other, so
whole days are resampled (block bootstrap: Künsch, Annals of Statistics 17(3), 1989).
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from esprof.analyzers.jobs.answer import GangAdvice, GangSize
from esprof.analyzers.jobs.gangs import GANGS, gang_of
from esprof.analyzers.jobs.log import S_PER_DAY, S_PER_HOUR, JobLog
from esprof.core.statistics import MIN_BLOCKS, MIN_REPLICATES

MIN_WAITS = 30
"""Least waits of jobs alike: the mean of fewer hangs on one long wait."""
MIN_SHORTEST_SHARE = 0.95
"""Share of the resampled logs in which one size must be the fastest."""


class Undecidable(Exception):
    """The log cannot tell the sizes apart at all; the message says why."""


def advise_size(log: JobLog, wait_s: np.ndarray, sizes: Mapping[int, float]) -> GangAdvice:
    """Which of `sizes` (GPUs: hours of training) completes soonest, by the waits float64[n] of the attempts of `log`.

    Raises Undecidable if fewer than two sizes have enough waits.
    """
    waited = np.flatnonzero(~np.isnan(wait_s))
    gpus, wait_h = log.gpus[waited], wait_s[waited] / S_PER_HOUR
    _, day = np.unique(np.floor(log.queued_s[waited] / S_PER_DAY), return_inverse=True)
    alike = {size: found for size in sorted(sizes) if (found := _alike(gpus, day, size)) is not None}
    if len(alike) < 2:
        raise Undecidable(
            f"fewer than two of the sizes have {MIN_WAITS} waits on {MIN_BLOCKS} days, of jobs of their size or class"
        )
    run_h = np.array([sizes[size] for size in alike])
    means, drawn = _resampled(day, wait_h, [found.waits for found in alike.values()])
    completion = drawn + run_h
    shortest = np.bincount(np.argmin(completion, axis=1), minlength=len(alike)) / len(drawn)
    choices = tuple(
        GangSize(
            gpus=size,
            waits_of=found.name,
            run_h=float(run_h[at]),
            wait_h=float(means[at]),
            completion_h=float(means[at] + run_h[at]),
            low_h=float(np.quantile(completion[:, at], 0.025)),
            high_h=float(np.quantile(completion[:, at], 0.975)),
            shortest_share=float(shortest[at]),
        )
        for at, (size, found) in enumerate(alike.items())
    )
    return _decided(choices, sorted(set(sizes) - set(alike)))


def _decided(choices: tuple[GangSize, ...], unknown: list[int]) -> GangAdvice:
    best = max(choices, key=lambda choice: choice.shortest_share)
    is_clear = best.shortest_share >= MIN_SHORTEST_SHARE
    close = [str(choice.gpus) for choice in choices if choice.shortest_share > 1 - MIN_SHORTEST_SHARE]
    reason = (
        f"{best.gpus} GPUs complete soonest in {100 * best.shortest_share:.0f} % of resampled logs"
        if is_clear
        else f"the waits vary too much to decide between {' and '.join(close)} GPUs"
    )
    if unknown:
        reason += f"; too few waits for {', '.join(map(str, unknown))} GPUs"
    return GangAdvice(sizes=choices, gpus=best.gpus if is_clear else None, reason=reason)


class _Alike(NamedTuple):
    """Waits of jobs that are like those of a size."""

    waits: np.ndarray
    """bool[waits]."""
    name: str
    """Number of GPUs of these jobs, or their class."""


def _alike(gpus: np.ndarray, day: np.ndarray, size: int) -> _Alike | None:
    """The waits of jobs of this size, else of its class; None if both are too few. `gpus` and `day` are of each wait."""
    gang = int(gang_of(np.array(size)))
    for found in (_Alike(gpus == size, str(size)), _Alike(gang_of(gpus) == gang, GANGS[gang])):
        if found.waits.sum() >= MIN_WAITS and len(np.unique(day[found.waits])) >= MIN_BLOCKS:
            return found
    return None


def _resampled(day: np.ndarray, wait_h: np.ndarray, sizes: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """(mean wait of each size, float64[sizes]; the same of resampled logs, float64[logs, sizes]), hours.

    `day` and `wait_h` are of each wait, and `sizes` are masks of them.
    """
    days = int(day.max()) + 1
    sums = np.stack([np.bincount(day[of], wait_h[of], days) for of in sizes], axis=1)
    counts = np.stack([np.bincount(day[of], minlength=days) for of in sizes], axis=1)
    weights = np.random.default_rng(0).multinomial(days, np.full(days, 1 / days), MIN_REPLICATES)
    drawn, total = weights @ sums, weights @ counts
    # All days of a resampled log may lack a size: such a log says nothing.
    whole = (total > 0).all(axis=1)
    return sums.sum(axis=0) / counts.sum(axis=0), drawn[whole] / total[whole]
