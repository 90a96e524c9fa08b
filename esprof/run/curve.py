"""What something takes by size, from repeats at some sizes: a piecewise-linear curve, and a straight line beside it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import nnls

MAX_FACTOR_BEYOND = 2.0
"""How many times smaller than the smallest measured size, or larger than the largest, a size may be."""


class BeyondCurveError(ValueError):
    """A size too far from the measured ones; the text says how far these reach."""


@dataclass(frozen=True)
class CommunicationModel:
    """The α–β model of a transfer (Hockney 1994): `alpha_ns + size * beta_ns`, neither negative."""

    alpha_ns: float
    beta_ns: float
    """ns a unit of size."""
    residual: float
    """The worst relative error of the line at a measured size."""


@dataclass(frozen=True)
class Curve:
    """Medians by size. Between two measured sizes time goes along a straight line, as a latency and a rate have it; sizes
    twice as large as the one before follow the knees between rates."""

    sizes: np.ndarray
    """Ascending, int64[K], K ≥ 1."""
    median_ns: np.ndarray
    """float64[K], above 0."""
    spread: np.ndarray
    """Half the distance between the quartiles, relative to the median, float64[K]."""

    @classmethod
    def through(cls, points: Iterable[tuple[int, Sequence[int]]]) -> "Curve":
        """The curve through (size, repeats in ns); repeats of one size in several points are put together. Raises ValueError
        where there is no point."""
        found: dict[int, list[int]] = {}
        for size, samples in points:
            found.setdefault(size, []).extend(samples)
        if not found:
            raise ValueError("a curve needs a point")
        sizes = sorted(found)
        low, median, high = np.array([np.quantile(found[size], (0.25, 0.5, 0.75)) for size in sizes]).T
        median = np.maximum(median, 1.0)
        return cls(np.array(sizes, np.int64), median, (high - low) / 2 / median)

    def at(self, size: float) -> float:
        """What it takes at `size`, ns. Raises BeyondCurveError for one that `holds` denies."""
        self._check(size)
        return float(self._between(np.array([float(size)]))[0])

    def holds(self, size: float) -> bool:
        """Whether `at` answers for this size."""
        return float(self.sizes[0]) / MAX_FACTOR_BEYOND <= size <= float(self.sizes[-1]) * MAX_FACTOR_BEYOND

    def slope(self) -> float:
        """ns for one more unit of size where sizes are large: between the largest, and the largest of at most a quarter of
        it. Latency has no part in it. 0 where no size is so much smaller."""
        smaller = np.flatnonzero(self.sizes <= self.sizes[-1] / 4)
        if not len(smaller):
            return 0.0
        other = smaller[-1]
        run = float(self.sizes[-1] - self.sizes[other])
        return max(0.0, float(self.median_ns[-1] - self.median_ns[other]) / run)

    def line(self) -> CommunicationModel:
        """The α–β line with the least relative errors, squared. Where its residual is above some 15 %, trust `at`."""
        weight = 1 / self.median_ns
        columns = np.stack([weight, self.sizes * weight], axis=1)
        # Scaled, since solvers judge by absolute tolerances.
        scale = np.linalg.norm(columns, axis=0)
        found, _ = nnls(columns / scale, np.ones(len(weight)))
        alpha, beta = found / scale
        error = np.abs((alpha + beta * self.sizes) / self.median_ns - 1)
        return CommunicationModel(float(alpha), float(beta), float(error.max()))

    def _check(self, size: float) -> None:
        if not self.holds(size):
            raise BeyondCurveError(
                f"{size:g} is more than {MAX_FACTOR_BEYOND:g} times beyond what was measured, "
                f"{self.sizes[0]} to {self.sizes[-1]}"
            )

    def _between(self, sizes: np.ndarray) -> np.ndarray:
        if len(self.sizes) == 1:
            return np.full(len(sizes), self.median_ns[0])
        # Beyond the ends, too, the outermost stretches go on.
        left = np.clip(np.searchsorted(self.sizes, sizes, side="right") - 1, 0, len(self.sizes) - 2)
        slope = np.diff(self.median_ns)[left] / np.diff(self.sizes)[left]
        between = self.median_ns[left] + slope * (sizes - self.sizes[left])
        least: np.ndarray = np.maximum(between, self.median_ns.min() / MAX_FACTOR_BEYOND)
        return least
