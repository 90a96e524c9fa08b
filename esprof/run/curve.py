"""Duration as a function of size, from repeats at some sizes: a piecewise-linear curve and a linear model."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from esprof.core import readable

MAX_FACTOR_BEYOND = 2.0
"""Limit of extrapolation: a size may be smaller or larger than all measured ones by this factor."""


class BeyondCurveError(ValueError):
    """A size is too far from the measured ones; the message has their range."""

    def __init__(self, size: float, smallest: int, largest: int) -> None:
        super().__init__(_beyond(f"{size:g}", str(smallest), str(largest)))
        self.in_bytes = _beyond(*map(readable.size, (size, smallest, largest)))
        """The message for sizes in bytes, in binary units."""


def _beyond(size: str, smallest: str, largest: str) -> str:
    factor = f"{MAX_FACTOR_BEYOND:g}"
    return f"{size} is outside the measured range, {smallest} to {largest}, by more than a factor of {factor}"


@dataclass(frozen=True)
class CommunicationModel:
    """The α–β model of communication (Hockney 1994): `alpha_ns + size * beta_ns`, neither negative."""

    alpha_ns: float
    beta_ns: float
    """ns per unit of size."""
    residual: float
    """Largest relative error of the line at a measured size."""


@dataclass(frozen=True)
class Curve:
    """Median duration by size, interpolated linearly between measured sizes, as latency and bandwidth imply."""

    sizes: np.ndarray
    """Ascending, int64[K], K ≥ 1."""
    median_ns: np.ndarray
    """float64[K], above 0."""
    spread: np.ndarray
    """Half the interquartile range, relative to the median, float64[K]."""

    @classmethod
    def through(cls, points: Iterable[tuple[int, Sequence[int]]]) -> "Curve":
        """Return the curve through (size, repeats in ns); repeats of the same size are pooled. Raises ValueError without
        points."""
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
        """Duration at `size`, ns. Raises BeyondCurveError unless `holds(size)`."""
        self._check(size)
        return float(self._between(np.array([float(size)]))[0])

    def holds(self, size: float) -> bool:
        """Whether `size` is within the range of `at`."""
        return float(self.sizes[0]) / MAX_FACTOR_BEYOND <= size <= float(self.sizes[-1]) * MAX_FACTOR_BEYOND

    def slope(self) -> float:
        """Duration per unit at large sizes, ns, without latency: from the largest size and the largest one of at most a
        quarter of it. 0 if there is none."""
        smaller = np.flatnonzero(self.sizes <= self.sizes[-1] / 4)
        if not len(smaller):
            return 0.0
        other = smaller[-1]
        run = float(self.sizes[-1] - self.sizes[other])
        return max(0.0, float(self.median_ns[-1] - self.median_ns[other]) / run)

    def line(self) -> CommunicationModel:
        """Fit the α–β model by least squares of relative errors. If its residual exceeds about 15 %, prefer `at`."""
        from scipy.optimize import nnls  # Importing it takes longer than most commands.

        weight = 1 / self.median_ns
        columns = np.stack([weight, self.sizes * weight], axis=1)
        # Scaled, as the solver's tolerances are absolute.
        scale = np.linalg.norm(columns, axis=0)
        found, _ = nnls(columns / scale, np.ones(len(weight)))
        alpha, beta = found / scale
        error = np.abs((alpha + beta * self.sizes) / self.median_ns - 1)
        return CommunicationModel(float(alpha), float(beta), float(error.max()))

    def _check(self, size: float) -> None:
        if not self.holds(size):
            raise BeyondCurveError(size, int(self.sizes[0]), int(self.sizes[-1]))

    def _between(self, sizes: np.ndarray) -> np.ndarray:
        if len(self.sizes) == 1:
            return np.full(len(sizes), self.median_ns[0])
        # The outermost segments are extrapolated.
        left = np.clip(np.searchsorted(self.sizes, sizes, side="right") - 1, 0, len(self.sizes) - 2)
        slope = np.diff(self.median_ns)[left] / np.diff(self.sizes)[left]
        between = self.median_ns[left] + slope * (sizes - self.sizes[left])
        least: np.ndarray = np.maximum(between, self.median_ns.min() / MAX_FACTOR_BEYOND)
        return least
