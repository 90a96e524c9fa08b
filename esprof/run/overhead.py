"""Overhead of recording: steps with the profiler compared to steps without it."""

from collections.abc import Sequence

import msgspec
import numpy as np

from esprof.core.statistics import MIN_REPLICATES, bootstrap

_MIN_STEPS = 3
"""Minimum number of profiled steps for a median."""
_MIN_STRETCHES = 5
"""Minimum number of plain steps, in window lengths: fewer do not show the variance between such windows."""
_INTERVAL = (0.025, 0.975)
_MAX_UNSURE_PCT = 25.0
"""The overhead is unknown if its interval includes both 0 and this value."""


class Overhead(msgspec.Struct, frozen=True, kw_only=True):
    """Increase of the median step by the profiler, in per cent of the median plain step, with its 95 % interval."""

    pct: float
    low_pct: float
    high_pct: float


def overhead(windows: Sequence[np.ndarray], plain: np.ndarray) -> Overhead | None:
    """Estimate the overhead from step durations in `windows` and of `plain` steps near them, both in order of time.

    Steps are correlated and a window is short, so other load on the machine may outweigh the profiler. The confidence
    interval therefore comes from a block bootstrap of the plain steps, with blocks of the windows' number and length. None
    if the overhead is unknown: too few steps, an interval that includes both 0 and a large value, or one below 0.
    """
    timed = np.concatenate(windows) if windows else np.empty(0)
    block = max(map(len, windows), default=0)
    if len(timed) < _MIN_STEPS or len(plain) < _MIN_STRETCHES * block:
        return None

    def medians(length: int, seed: int) -> np.ndarray:
        """Medians of resampled series of plain steps, each of this length."""
        rng = np.random.default_rng(seed)
        return bootstrap(len(plain), block, lambda at: np.median(plain[at], axis=-1), MIN_REPLICATES, rng, length)

    if not np.median(plain):
        return None
    ratio = float(np.median(timed) / np.median(plain))
    by_chance = np.quantile(medians(len(timed), 0) / medians(len(plain), 1), _INTERVAL)
    high, low = (100 * (ratio / float(chance) - 1) for chance in by_chance)
    if high < 0 or (low <= 0 and high >= _MAX_UNSURE_PCT):
        return None
    return Overhead(pct=round(100 * (ratio - 1), 2), low_pct=round(low, 2), high_pct=round(high, 2))
