"""Comparing two series of step times honestly: steps of one run follow one another, so they are not independent.

A slow disk or a noisy neighbour lasts for many steps. A test that takes n correlated steps for n observations sees
differences where there are none, so everything here works on blocks longer than the correlation lasts:

- the rank test compares medians of blocks that do not overlap, which are close to independent (batch means, with the
  median for the mean: Law, Simulation Modeling and Analysis, ch. 9), by Mann-Whitney's exact distribution where few;
- intervals, and the test of means, resample overlapping blocks (`esprof.core.statistics`).

What no test on two single runs can see is how much one run differs from the next of the same code: the threshold, not
the significance, has to cover that.
"""

import math
from collections.abc import Sequence

import numpy as np
from scipy import stats

FEWEST_BLOCKS = 5
"""Two times five blocks can still show p = 1/252; with fewer, no difference could ever be significant at 1 %."""

_WINDOW = 5


def autocorrelation_time(values: np.ndarray) -> float:
    """How many consecutive values tell as much as one independent value would; 1 for independent values.

    Integrated autocorrelation time 1 + 2 Σ ρ(lag) of the ranks, which no outlier dominates, summed up to the first lag
    of at least five times the sum (Sokal, Monte Carlo Methods in Statistical Mechanics, 1997, §3).
    """
    n = len(values)
    centred = stats.rankdata(values) - (n + 1) / 2
    if not centred.any():
        return 1.0
    power = np.abs(np.fft.rfft(centred, 2 * n)) ** 2
    autocovariance = np.fft.irfft(power)[:n]
    sums = 2 * np.cumsum(autocovariance / autocovariance[0]) - 1
    enough = np.flatnonzero(np.arange(n) >= _WINDOW * sums)
    return max(1.0, float(sums[enough[0] if len(enough) else -1]))


def block_length(a: np.ndarray, b: np.ndarray) -> int:
    """Steps a block, for comparing `a` with `b`: twice the longer autocorrelation time, and no less than n^(1/3).

    Where that would leave a series fewer than `FEWEST_BLOCKS` blocks, the blocks are shorter: fewer than some 50
    steps with a lag-1 correlation of 0.6 or more look more significant than they are.
    """
    shorter = min(len(a), len(b))
    wanted: float = max(shorter ** (1 / 3), 2 * max(autocorrelation_time(a), autocorrelation_time(b)))
    return max(1, min(math.ceil(wanted), shorter // FEWEST_BLOCKS))


def rank_test(values: np.ndarray, reference: np.ndarray, block: int) -> float:
    """One-sided p-value of Mann-Whitney's test on block medians that `values` tend to be larger than `reference`."""
    ours, theirs = _block_medians(values, block), _block_medians(reference, block)
    if np.ptp(np.concatenate([ours, theirs])) == 0:
        return 1.0
    return float(stats.mannwhitneyu(ours, theirs, alternative="greater").pvalue)


def _block_medians(values: np.ndarray, block: int) -> np.ndarray:
    """Medians of the last whole blocks: where steps are left over, the earliest are the least settled."""
    blocks = len(values) // block
    medians: np.ndarray = np.median(values[len(values) - blocks * block :].reshape(blocks, block), axis=1)
    return medians


def probability_larger(values: np.ndarray, reference: np.ndarray) -> float:
    """Effect size: how often a value is larger than a reference value, ties counting half. 0.5 is no difference."""
    pairs = len(values) * len(reference)
    return float(stats.mannwhitneyu(values, reference, method="asymptotic").statistic) / pairs


def mean_rate(rates: np.ndarray, times: np.ndarray) -> np.ndarray:
    """What was done in all of the time: the mean of `rates`, weighted by the `times` they lasted, over the last axis."""
    mean: np.ndarray = (rates * times).sum(axis=-1) / times.sum(axis=-1)
    return mean


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values adjusted for their number (Holm, Scandinavian Journal of Statistics 6(2), 1979), in the same order."""
    adjusted = [0.0] * len(p_values)
    largest = 0.0
    for position, index in enumerate(np.argsort(p_values).tolist()):
        largest = max(largest, (len(p_values) - position) * p_values[index])
        adjusted[index] = min(1.0, largest)
    return adjusted
