"""What recording cost a job, as far as its own steps tell: those under the profiler against those without it."""

from collections.abc import Sequence

import msgspec
import numpy as np

from esprof.core.statistics import MIN_REPLICATES, bootstrap

_MIN_STEPS = 3
"""Steps under the profiler of which a median is taken: of fewer it means little."""
_MIN_STRETCHES = 5
"""How often the plain steps hold a window's length at least: fewer do not show how stretches of that length differ."""
_INTERVAL = (0.025, 0.975)
_MAX_UNSURE_PCT = 25.0
"""Where the overhead may be none or this, nothing is known of it."""


class Overhead(msgspec.Struct, frozen=True, kw_only=True):
    """By how many per cent the median step under the profiler is longer than the median plain one, and the 95 % interval."""

    pct: float
    low_pct: float
    high_pct: float


def overhead(windows: Sequence[np.ndarray], plain: np.ndarray) -> Overhead | None:
    """The overhead told by what the steps of some windows took, and by what the `plain` steps beside them took, by time.

    Steps are not independent, and a window is short: what else the machine did meanwhile may weigh more than the profiler.
    So the interval is as wide as stretches of plain steps, as many and as long as the windows, differ from plain steps in
    general. None where the overhead cannot be told: of too few steps, or where the interval holds none as well as a large
    one, or nothing but speed-ups.
    """
    timed = np.concatenate(windows) if windows else np.empty(0)
    block = max(map(len, windows), default=0)
    if len(timed) < _MIN_STEPS or len(plain) < _MIN_STRETCHES * block:
        return None

    def medians(length: int, seed: int) -> np.ndarray:
        """Of series of plain steps, each so long."""
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
