"""Statistics of steps: intervals and tests, on numpy and scipy.

Step times have long tails, and steps are not independent: a slow disk or a noisy neighbour affects many in a row. A test
that treats n correlated steps as n independent observations reports differences that do not exist. Therefore

- means have Student's intervals where outliers matter, and Yuen's trimmed test otherwise; differences have Welch's;
- `rank_test` compares medians of non-overlapping blocks, which are nearly independent (batch means, with the median instead
  of the mean: Law, Simulation Modeling and Analysis, ch. 9), with Mann-Whitney's exact distribution for few blocks;
- `bootstrap` resamples overlapping blocks of consecutive steps, not single steps (Künsch, Annals of Statistics 17(3), 1989).

No test on two single runs can measure how much runs of the same code differ: a threshold must cover that, significance
does not.

scipy is imported in functions: importing it takes longer than many commands, and an elastic job needs it late or never.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from functools import cache

import numpy as np

MIN_REPLICATES = 2_000
"""Minimum number of resampled series for a 95 % interval: with fewer, its ends are too random."""

MIN_BLOCKS = 5
"""Minimum number of blocks: 5 against 5 can reach p = 1/252; with fewer, no difference is significant at 1 %."""

TRIMMED_SHARE = 0.2
"""Share of the values that a trimmed mean excludes at either end."""

_VALUES_AT_ONCE = 1 << 20
_LAG_FACTOR = 5
"""Number of summed lags, in autocorrelation times."""


# Means and their intervals.


@cache
def student_quantile(freedom: int) -> float:
    """Return the 97.5 % quantile of Student's t, rounded to two decimals as in printed tables."""
    from scipy.special import stdtrit

    return round(float(stdtrit(freedom, 0.975)), 2)


def prediction_margin(values: Sequence[float] | np.ndarray, alpha: float) -> float:
    """Return how far above the mean of `values` one more value of their kind lies with probability `alpha`, in their unit.

    The one-sided prediction bound for one normal value (Hahn and Meeker, Statistical Intervals, 1991, section 4.7).
    """
    from scipy.special import stdtrit

    count = len(values)
    quantile = float(stdtrit(count - 1, 1 - alpha))
    return quantile * float(np.std(values, ddof=1)) * float(np.sqrt(1 + 1 / count))


def mean_margin(values: Sequence[float] | np.ndarray) -> float:
    """Return half the width of the 95 % interval (Student's t) of the mean, in the unit of `values`; 0 for one value."""
    count = len(values)
    return student_quantile(count - 1) * float(np.std(values, ddof=1)) / math.sqrt(count) if count > 1 else 0.0


def lower_median(values: Iterable[float]) -> float:
    """Return the median; of an even number of values, the lower of the two in the middle."""
    ranked = sorted(values)
    return ranked[(len(ranked) - 1) // 2]


def trimmed_mean(values: Sequence[float] | np.ndarray) -> np.ndarray:
    """Return the mean over the first axis without the largest and the smallest `TRIMMED_SHARE` of the values."""
    aside = int(TRIMMED_SHARE * len(values))
    mean: np.ndarray = np.asarray(np.sort(values, axis=0)[aside : len(values) - aside].mean(axis=0))
    return mean


def trimmed_test(values: np.ndarray) -> np.ndarray:
    """Return the p-values, float64[P], of the columns of `values`, float64[n, P], for a trimmed mean above 0 (one-sided).

    1 for a single row. Tukey and McLaughlin, Sankhya A 25, 1963; Yuen, Biometrika 61, 1974.
    """
    from scipy.special import stdtr

    count = len(values)
    aside = int(TRIMMED_SHARE * count)
    freedom = count - 2 * aside - 1
    if freedom < 1:
        return np.ones(values.shape[1])
    ranked = np.sort(values, axis=0)
    mean = ranked[aside : count - aside].mean(axis=0)
    # Winsorised: a trimmed value counts as the nearest one that was not, so that trimming does not shrink the spread.
    spread = np.clip(ranked, ranked[aside], ranked[count - aside - 1]).std(axis=0, ddof=1)
    without_spread = np.where(mean == 0, 0.0, np.copysign(np.inf, mean))
    t = np.divide(mean * (count - 2 * aside), spread * np.sqrt(count), out=without_spread, where=spread > 0)
    p: np.ndarray = 1 - stdtr(freedom, t)
    return p


def welch_margin(values: np.ndarray, reference: np.ndarray, confidence: float) -> np.ndarray:
    """Return half the width of the interval of each difference of means, float64[P], of the columns of two tables.

    Tables are float64[n, P] and float64[m, P]; infinite where one has a single row. Welch, Biometrika 34, 1947.
    """
    from scipy.special import stdtrit

    if min(len(values), len(reference)) < 2:
        return np.full(values.shape[1], np.inf)
    parts = [of.var(axis=0, ddof=1) / len(of) for of in (values, reference)]
    variance = parts[0] + parts[1]
    spread = np.maximum(
        sum(part**2 / (len(of) - 1) for part, of in zip(parts, (values, reference), strict=True)), 1e-300
    )
    freedom = np.where(variance > 0, variance**2 / spread, 1)
    margin: np.ndarray = stdtrit(freedom, (1 + confidence) / 2) * np.sqrt(variance)
    return margin


# Counts.


def homogeneity_test(counts: np.ndarray) -> float:
    """Return the p-value of Pearson's chi-squared test that the rows of `counts`, int[n, C], are samples of one
    distribution; 1 for a single row or column with counts.
    """
    from scipy.special import chdtrc

    counts = counts[:, counts.sum(axis=0) > 0]
    counts = counts[counts.sum(axis=1) > 0]
    freedom = (len(counts) - 1) * (counts.shape[1] - 1)
    if freedom < 1:
        return 1.0
    expected = np.outer(counts.sum(axis=1), counts.sum(axis=0)) / counts.sum()
    return float(chdtrc(freedom, ((counts - expected) ** 2 / expected).sum()))


def binomial_test(count: np.ndarray, trials: int, share: float) -> np.ndarray:
    """Return the probability, float64[P], of at least `count`, int[P], successes in `trials` of probability `share`."""
    from scipy.special import bdtrc

    p: np.ndarray = bdtrc(count - 1, trials, share)
    return p


def share_interval(count: int, trials: int) -> tuple[float, float]:
    """Return the exact 95 % interval of the share for `count` of `trials` (Clopper and Pearson, Biometrika 26, 1934)."""
    from scipy.special import betaincinv

    low = betaincinv(count, trials - count + 1, 0.025) if count else 0
    high = betaincinv(count + 1, trials - count, 0.975) if count < trials else 1
    return float(low), float(high)


def least_of_events(values: np.ndarray, least: float = 0.0) -> float:
    """Return the lower end of the 95 % interval of the mean of `values`, float64[n], that are never negative.

    Student's interval of a mean that few values make contains zero until there are five or so, however certain each one is.
    This one assumes nothing about their distribution: events are values above `least`, and a value is at least as large as
    the smallest of k events with at least the probability `share_interval(k, n)` (order statistics: Wilks, Annals of
    Mathematical Statistics 12, 1941). The mean is no less than that probability times the smallest event.
    """
    events = values[values > least]
    return share_interval(len(events), len(values))[0] * float(events.min()) if len(events) else 0.0


# Ranks.


def rank_test(values: np.ndarray, reference: np.ndarray, block: int) -> float:
    """Return the one-sided p-value of Mann-Whitney's test on block medians, for `values` larger than `reference`."""
    from scipy.stats import mannwhitneyu

    ours, theirs = _block_medians(values, block), _block_medians(reference, block)
    if np.ptp(np.concatenate([ours, theirs])) == 0:
        return 1.0
    return float(mannwhitneyu(ours, theirs, alternative="greater").pvalue)


def two_sided_rank_test(values: Sequence[float], reference: Sequence[float]) -> float:
    """Return the two-sided p-value of Mann-Whitney's test for a difference; all values must be independent."""
    from scipy.stats import mannwhitneyu

    return float(mannwhitneyu(values, reference).pvalue)


def probability_larger(values: np.ndarray, reference: np.ndarray) -> float:
    """Return the probability that a value is larger than a reference value; ties count half. 0.5 is no difference."""
    from scipy.stats import mannwhitneyu

    pairs = len(values) * len(reference)
    return float(mannwhitneyu(values, reference, method="asymptotic").statistic) / pairs


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values adjusted for multiple tests (Holm, Scandinavian Journal of Statistics 6(2), 1979), in order."""
    adjusted = [0.0] * len(p_values)
    largest = 0.0
    for position, index in enumerate(np.argsort(p_values).tolist()):
        largest = max(largest, (len(p_values) - position) * p_values[index])
        adjusted[index] = min(1.0, largest)
    return adjusted


# Blocks of consecutive steps.


def autocorrelation_time(values: np.ndarray) -> float:
    """Return the number of consecutive values that carry the information of one independent value; 1 for independent ones.

    Integrated autocorrelation time 1 + 2 Σ ρ(lag) of the ranks, which outliers do not dominate, summed up to the first lag
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
    """Return the block length for comparing `a` with `b`: twice the longer autocorrelation time, at least n^(1/3).

    Blocks are shorter where a series would otherwise have fewer than `MIN_BLOCKS`. The significance of fewer than about 50
    steps with a lag-1 correlation of 0.6 or more is therefore overestimated.
    """
    shorter = min(len(a), len(b))
    wanted: float = max(shorter ** (1 / 3), 2 * max(autocorrelation_time(a), autocorrelation_time(b)))
    return max(1, min(math.ceil(wanted), shorter // MIN_BLOCKS))


def _block_medians(values: np.ndarray, block: int) -> np.ndarray:
    """Return the medians of the last complete blocks. The earliest steps are left over, as they vary most."""
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
    """Return a statistic of `replicates` series of `length` (default n) values, resampled in blocks from n values.

    `value_of` maps indices, int[series, length], to the statistic of each series, float64[series].
    """
    length = n if length is None else length
    blocks = math.ceil(length / block)
    # Limits memory to some megabytes.
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
    """Return (median of the int64 `values` of each identity in `wanted`, mask of the identities that occur in `identity`).

    The median of an even number of values is the mean of the middle two, rounded down; with `low`, the lower one. Where the
    mask is False the median is meaningless.
    """
    if not len(identity):
        return np.zeros(len(wanted), np.int64), np.zeros(len(wanted), bool)
    # Sorted by identity and value: the middle of n values is at (n - 1) // 2 and n // 2.
    order = np.lexsort((values, identity))
    names, first, count = np.unique(identity[order], return_index=True, return_counts=True)
    ranked = values[order]
    lower, upper = ranked[first + (count - 1) // 2], ranked[first + count // 2]
    middle = lower if low else (lower + upper) // 2
    return _lookup(names, middle, wanted)


def means_of(identity: np.ndarray, values: np.ndarray, wanted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return (mean of the `values` of each identity in `wanted`, rounded to an integer; mask of those in `identity`).

    Where the mask is False the mean is meaningless. `values` may have several rows, of which each has a mean.
    """
    if not len(identity):
        return np.zeros((*values.shape[:-1], len(wanted)), np.int64), np.zeros(len(wanted), bool)
    # `which` is the index of each identity: `bincount` with weights sums the values of each.
    names, which, count = np.unique(identity, return_inverse=True, return_counts=True)
    means = np.apply_along_axis(lambda row: np.bincount(which, weights=row) / count, -1, values)
    return _lookup(names, np.rint(means).astype(np.int64), wanted)


def _lookup(names: np.ndarray, values: np.ndarray, wanted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    # `names` is sorted: an identity can only be at its insertion point.
    at = np.minimum(np.searchsorted(names, wanted), len(names) - 1)
    return values[..., at], names[at] == wanted


def distinct(values: np.ndarray) -> np.ndarray:
    """The distinct values, ascending: as `np.unique`, whose hash table takes ten times as long if most values differ."""
    # A stable sort is the fastest of arrays that were sorted before they were joined.
    ordered = np.sort(values, axis=None, kind="stable")
    found: np.ndarray = ordered[np.append(True, ordered[1:] != ordered[:-1])[: len(ordered)]]
    return found
