"""How many GPUs a job should ask for: completion(n) = wait(n) + training(n), by the waits of a log.

A larger gang trains faster, and may wait longer for that many GPUs at once. Waits within a day depend on each other, so
whole days are resampled (block bootstrap: Künsch, Annals of Statistics 17(3), 1989).
"""

from collections.abc import Mapping

import numpy as np

from esprof.analyzers.jobs.answer import GangAdvice, GangSize
from esprof.analyzers.jobs.gangs import GANGS, gang_of
from esprof.analyzers.jobs.log import JobLog
from esprof.core.statistics import MIN_BLOCKS, MIN_REPLICATES

MIN_WAITS = 30
"""Least waits of a class: the mean of fewer hangs on one long wait."""
MIN_SHORTEST_SHARE = 0.95
"""Share of the resampled logs in which one size must be the fastest."""

_S_PER_HOUR = 3_600.0
_S_PER_DAY = 86_400.0


class Undecidable(Exception):
    """The log cannot tell the sizes apart at all; the message says why."""


def advise_size(log: JobLog, wait_s: np.ndarray, sizes: Mapping[int, float]) -> GangAdvice:
    """Which of `sizes` (GPUs: hours of training) completes soonest, by the waits float64[n] of the attempts of `log`.

    Raises Undecidable if fewer than two sizes are in classes with enough waits.
    """
    gpus = np.array(sorted(sizes))
    gangs = gang_of(gpus)
    means, drawn = _resampled(log, wait_s)
    known = [at for at in range(len(gpus)) if not np.isnan(means[gangs[at]])]
    if len(known) < 2:
        raise Undecidable(
            f"fewer than two of the sizes have {MIN_WAITS} waits on {MIN_BLOCKS} days of jobs of their class"
        )
    run_h = np.array([sizes[count] for count in gpus.tolist()])
    completion = drawn[:, gangs] + run_h
    shortest = np.bincount(np.nanargmin(completion[:, known], axis=1), minlength=len(known)) / len(drawn)
    choices = tuple(
        GangSize(
            gpus=int(gpus[at]),
            gang=GANGS[gangs[at]],
            run_h=float(run_h[at]),
            wait_h=float(means[gangs[at]]),
            completion_h=float(means[gangs[at]] + run_h[at]),
            low_h=float(np.quantile(completion[:, at], 0.025)),
            high_h=float(np.quantile(completion[:, at], 0.975)),
            shortest_share=float(shortest[number]),
        )
        for number, at in enumerate(known)
    )
    return _decided(choices, [int(count) for at, count in enumerate(gpus) if at not in known])


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


def _resampled(log: JobLog, wait_s: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(mean wait of each class, float64[classes]; the same of resampled logs, float64[logs, classes]), hours.

    NaN for a class with too few waits.
    """
    waited = np.flatnonzero(~np.isnan(wait_s))
    _, day = np.unique(np.floor(log.queued_s[waited] / _S_PER_DAY), return_inverse=True)
    days, classes = int(day.max(initial=-1)) + 1, len(GANGS)
    cell = day * classes + gang_of(log.gpus[waited])
    sums, counts = (
        np.bincount(cell, weights, days * classes).reshape(days, classes)
        for weights in (wait_s[waited] / _S_PER_HOUR, None)
    )
    is_known = (counts.sum(axis=0) >= MIN_WAITS) & ((counts > 0).sum(axis=0) >= MIN_BLOCKS)
    if not is_known.any():
        return np.full(classes, np.nan), np.full((1, classes), np.nan)
    weights = np.random.default_rng(0).multinomial(days, np.full(days, 1 / days), MIN_REPLICATES)
    drawn, total = weights @ sums, weights @ counts
    # A class may be absent from all days of a resampled log: it then says nothing about any class.
    whole = (total[:, is_known] > 0).all(axis=1)
    with np.errstate(invalid="ignore", divide="ignore"):
        means, resampled = sums.sum(axis=0) / counts.sum(axis=0), drawn[whole] / total[whole]
    return np.where(is_known, means, np.nan), np.where(is_known, resampled, np.nan)
