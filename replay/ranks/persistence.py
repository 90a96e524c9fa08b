"""Whether extra work is there step after step, or chance: a test on amounts, which no single step makes or unmakes."""

import numpy as np

TRIMMED = 0.2
"""Share of the steps that is left out at either end, the longest and the shortest, before means are taken."""


def chance(extra_ns: np.ndarray) -> np.ndarray:
    """Probability that steps without any extra work would show as much by chance, float64[P], for each of P places.

    `extra_ns`, float64[steps, P], is what each place takes in each step beyond what is usual there, ns. One-sided test of
    the trimmed mean against 0 (Tukey and McLaughlin, Sankhya A 25, 1963; Yuen, Biometrika 61, 1974). 1 for one step, of
    which nothing can be said.
    """
    from scipy.special import stdtr  # It takes half a second to import, and most runs have no slow rank.

    steps = len(extra_ns)
    aside = int(TRIMMED * steps)
    freedom = steps - 2 * aside - 1
    if freedom < 1:
        return np.ones(extra_ns.shape[1])
    ranked = np.sort(extra_ns, axis=0)
    mean = ranked[aside : steps - aside].mean(axis=0)
    # What was left out counts as the nearest that was not (winsorised), so that the tails cannot shrink the spread.
    spread = np.clip(ranked, ranked[aside], ranked[steps - aside - 1]).std(axis=0, ddof=1)
    without_spread = np.where(mean == 0, 0.0, np.copysign(np.inf, mean))
    t = np.divide(mean * (steps - 2 * aside), spread * np.sqrt(steps), out=without_spread, where=spread > 0)
    probability: np.ndarray = 1 - stdtr(freedom, t)
    return probability


def chance_of_count(count: np.ndarray, steps: int, share: float) -> np.ndarray:
    """Probability that something that is so in a `share` of steps is so in `count` of these steps or more, float64[P]."""
    from scipy.special import bdtrc  # As in `chance`.

    probability: np.ndarray = bdtrc(count - 1, steps, share)
    return probability


def trimmed_mean(values: np.ndarray) -> np.ndarray:
    """The mean over steps of `values`, float64[steps, P], the longest and shortest left out, float64[P]."""
    aside = int(TRIMMED * len(values))
    mean: np.ndarray = np.sort(values, axis=0)[aside : len(values) - aside].mean(axis=0)
    return mean
