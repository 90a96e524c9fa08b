"""Statistics of steps: intervals and tests, on numpy and scipy.

Times of steps have long tails, and steps are not independent: a slow disk or a noisy neighbour lasts for many. A test that
takes n correlated steps for n observations sees differences where there are none. So

- means get Student's intervals where outliers are part of what is asked, and Yuen's trimmed test where not;
- `rank_test` compares medians of blocks that do not overlap, which are close to independent (batch means, with the median
  for the mean: Law, Simulation Modeling and Analysis, ch. 9), by Mann-Whitney's exact distribution where there are few;
- `bootstrap` draws not single steps anew, but blocks of steps in a row, which overlap (Künsch, Annals of Statistics 17(3),
  1989).

What no test on two single runs can see is how much one run differs from the next of the same code: there the threshold, not
the significance, has to cover that.

scipy is imported in functions: it takes longer than many a command, and an elastic job's processes need it late or never.
"""

import math
from collections.abc import Callable, Sequence
from functools import cache

import numpy as np

MIN_REPLICATES = 2_000
"""Series that the ends of a 95 % interval are read off, at least: with fewer it is chance where those lie."""

MIN_BLOCKS = 5
"""Two times five blocks can still show p = 1/252; with fewer, no difference could ever be significant at 1 %."""

TRIMMED_SHARE = 0.2
"""Share of the values that a trimmed mean leaves out at either end."""

_VALUES_AT_ONCE = 1 << 20
_LAG_FACTOR = 5
"""Lags that are summed, in autocorrelation times."""


# Means, and how far chance may move them.


@cache
def student_quantile(freedom: int) -> float:
    """The 97.5 % quantile of Student's t, which bounds a 95 % interval, to two decimals, as printed tables have it."""
    from scipy.special import stdtrit

    return round(float(stdtrit(freedom, 0.975)), 2)


def mean_margin(values: Sequence[float] | np.ndarray) -> float:
    """Half the width of the 95 % interval (Student's t) of the mean that these values are a sample of, in their unit; 0 for
    one value."""
    count = len(values)
    return student_quantile(count - 1) * float(np.std(values, ddof=1)) / math.sqrt(count) if count > 1 else 0.0


def trimmed_mean(values: Sequence[float] | np.ndarray) -> np.ndarray:
    """The mean over the first axis, the largest and the smallest `TRIMMED_SHARE` left out."""
    aside = int(TRIMMED_SHARE * len(values))
    mean: np.ndarray = np.asarray(np.sort(values, axis=0)[aside : len(values) - aside].mean(axis=0))
    return mean


def trimmed_test(values: np.ndarray) -> np.ndarray:
    """p-value, float64[P], that each column of `values`, float64[n, P], has a trimmed mean of 0, against a greater one.

    One-sided (Tukey and McLaughlin, Sankhya A 25, 1963; Yuen, Biometrika 61, 1974). 1 for one row, of which nothing can be
    said.
    """
    from scipy.special import stdtr

    count = len(values)
    aside = int(TRIMMED_SHARE * count)
    freedom = count - 2 * aside - 1
    if freedom < 1:
        return np.ones(values.shape[1])
    ranked = np.sort(values, axis=0)
    mean = ranked[aside : count - aside].mean(axis=0)
    # What was left out counts as the nearest that was not (winsorised), so that the tails cannot shrink the spread.
    spread = np.clip(ranked, ranked[aside], ranked[count - aside - 1]).std(axis=0, ddof=1)
    without_spread = np.where(mean == 0, 0.0, np.copysign(np.inf, mean))
    t = np.divide(mean * (count - 2 * aside), spread * np.sqrt(count), out=without_spread, where=spread > 0)
    p: np.ndarray = 1 - stdtr(freedom, t)
    return p


# Counts.


def binomial_test(count: np.ndarray, trials: int, share: float) -> np.ndarray:
    """Probability, float64[P], that what happens in a `share` of trials happens in `count`, int[P], of these or more."""
    from scipy.special import bdtrc

    p: np.ndarray = bdtrc(count - 1, trials, share)
    return p


def share_interval(count: int, trials: int) -> tuple[float, float]:
    """The exact 95 % interval of a share that was seen in `count` of `trials` (Clopper and Pearson, Biometrika 26, 1934)."""
    from scipy.stats import binomtest

    low, high = binomtest(count, trials).proportion_ci(method="exact")
    return float(low), float(high)


# Ranks.


def rank_test(values: np.ndarray, reference: np.ndarray, block: int) -> float:
    """One-sided p-value of Mann-Whitney's test on block medians that `values` tend to be larger than `reference`."""
    from scipy.stats import mannwhitneyu

    ours, theirs = _block_medians(values, block), _block_medians(reference, block)
    if np.ptp(np.concatenate([ours, theirs])) == 0:
        return 1.0
    return float(mannwhitneyu(ours, theirs, alternative="greater").pvalue)


def two_sided_rank_test(values: Sequence[float], reference: Sequence[float]) -> float:
    """p-value of Mann-Whitney's test that `values` and `reference` are alike, each value taken as independent."""
    from scipy.stats import mannwhitneyu

    return float(mannwhitneyu(values, reference).pvalue)


def probability_larger(values: np.ndarray, reference: np.ndarray) -> float:
    """Effect size: how often a value is larger than a reference value, ties counting half. 0.5 is no difference."""
    from scipy.stats import mannwhitneyu

    pairs = len(values) * len(reference)
    return float(mannwhitneyu(values, reference, method="asymptotic").statistic) / pairs


def holm(p_values: Sequence[float]) -> list[float]:
    """p-values adjusted for their number (Holm, Scandinavian Journal of Statistics 6(2), 1979), in the same order."""
    adjusted = [0.0] * len(p_values)
    largest = 0.0
    for position, index in enumerate(np.argsort(p_values).tolist()):
        largest = max(largest, (len(p_values) - position) * p_values[index])
        adjusted[index] = min(1.0, largest)
    return adjusted


# Blocks of steps that follow one another.


def autocorrelation_time(values: np.ndarray) -> float:
    """How many consecutive values tell as much as one independent value would; 1 for independent values.

    Integrated autocorrelation time 1 + 2 Σ ρ(lag) of the ranks, which no outlier dominates, summed up to the first lag
    of at least five times the sum (Sokal, Monte Carlo Methods in Statistical Mechanics, 1997, §3).
    """
    from scipy.stats import rankdata

    n = len(values)
    centred = rankdata(values) - (n + 1) / 2
    if not centred.any():
        return 1.0
    power = np.abs(np.fft.rfft(centred, 2 * n)) ** 2
    autocovariance = np.fft.irfft(power)[:n]
    sums = 2 * np.cumsum(autocovariance / autocovariance[0]) - 1
    far_enough = np.flatnonzero(np.arange(n) >= _LAG_FACTOR * sums)
    return max(1.0, float(sums[far_enough[0] if len(far_enough) else -1]))


def block_length(a: np.ndarray, b: np.ndarray) -> int:
    """Steps a block, for comparing `a` with `b`: twice the longer autocorrelation time, and no less than n^(1/3).

    Where that would leave a series fewer than `MIN_BLOCKS` blocks, the blocks are shorter: fewer than some 50
    steps with a lag-1 correlation of 0.6 or more look more significant than they are.
    """
    shorter = min(len(a), len(b))
    wanted: float = max(shorter ** (1 / 3), 2 * max(autocorrelation_time(a), autocorrelation_time(b)))
    return max(1, min(math.ceil(wanted), shorter // MIN_BLOCKS))


def _block_medians(values: np.ndarray, block: int) -> np.ndarray:
    """Medians of the last whole blocks: where steps are left over, the earliest are the least settled."""
    blocks = len(values) // block
    medians: np.ndarray = np.median(values[len(values) - blocks * block :].reshape(blocks, block), axis=1)
    return medians


def bootstrap(
    n: int,
    block: int,
    value_of: Callable[[np.ndarray], np.ndarray],
    replicates: int,
    rng: np.random.Generator,
    length: int | None = None,
) -> np.ndarray:
    """A value of each of so many series, each of `length` (else n) values, put together from blocks of the n at hand.

    `value_of` gives, for places int[series, length], the value of the series that stands there, float64[series].
    """
    length = n if length is None else length
    blocks = math.ceil(length / block)
    # As many series at once as fit into some megabytes.
    at_once = max(1, _VALUES_AT_ONCE // (blocks * block))
    found = []
    for first in range(0, replicates, at_once):
        starts = rng.integers(0, n - block + 1, (min(at_once, replicates - first), blocks, 1))
        found.append(value_of((starts + np.arange(block)).reshape(len(starts), -1)[:, :length]))
    return np.concatenate(found)


# Medians and means by identity.


def medians_of(
    identity: np.ndarray, values: np.ndarray, wanted: np.ndarray, *, low: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """(median of the int64 `values` of each identity in `wanted`, mask of those that are in `identity` at all).

    The median is rounded down to a whole number; with `low` it is, of an even number of values, the lower of the two in the
    middle. Where the mask is False it is some other identity's.
    """
    if not len(identity):
        return np.zeros(len(wanted), np.int64), np.zeros(len(wanted), bool)
    # In order of identity, and of value within one: of a run of n values the places (n - 1) // 2 and n // 2 are the middle.
    order = np.lexsort((values, identity))
    names, first, count = np.unique(identity[order], return_index=True, return_counts=True)
    ranked = values[order]
    lower, upper = ranked[first + (count - 1) // 2], ranked[first + count // 2]
    middle = lower if low else (lower + upper) // 2
    return _looked_up(names, middle, wanted)


def means_of(identity: np.ndarray, values: np.ndarray, wanted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(mean of the `values` of each identity in `wanted`, rounded to a whole number; mask of those in `identity` at all).

    Where the mask is False the mean is some other identity's.
    """
    if not len(identity):
        return np.zeros(len(wanted), np.int64), np.zeros(len(wanted), bool)
    # `which` numbers the identities: `bincount` with weights is the sum of the values of each.
    names, which, count = np.unique(identity, return_inverse=True, return_counts=True)
    means = np.rint(np.bincount(which, weights=values) / count).astype(np.int64)
    return _looked_up(names, means, wanted)


def _looked_up(names: np.ndarray, values: np.ndarray, wanted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    # `names` ascend: an identity can only stand where it would be inserted.
    at = np.minimum(np.searchsorted(names, wanted), len(names) - 1)
    return values[at], names[at] == wanted
