"""How many logical workers (ESTs) each device should run, so that the slowest device is as fast as can be.

EasyScale (SC 2023, §4.2) counts, for devices that run A_i ESTs at C_i a second, a step of max A_i / C_i, and searches over
candidates. Here the optimum is exact, counts may differ between devices of one type, and the last EST of a device, beside
which gradients travel, may take longer than the others.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from esprof.core.errors import UsageError

_ROUNDING_SHARE = 1e-9
"""Times that differ by no more than this share are the same: sums of the same terms in another order."""


@dataclass(frozen=True)
class Device:
    """A device, and what an EST of the job takes on it."""

    name: str
    kind: str
    est_s: float
    """Seconds of an EST that is not the device's last, with the switch from one to the next."""
    last_s: float
    """Seconds of its last EST."""
    update_s: float = 0.0
    """Seconds of what follows the ESTs, such as the optimizer, whether the device runs any or not."""
    most: int | None = None
    """Most ESTs that it may run, 0 where one does not fit into its memory; None for any number."""

    def step_s(self, ests: int) -> float:
        """Seconds of a step with so many ESTs."""
        return self.update_s + (self.last_s + (ests - 1) * self.est_s if ests else 0.0)


@dataclass(frozen=True)
class EstCounts:
    """How many ESTs each device runs."""

    ests: tuple[int, ...]
    step_s: float
    """Seconds that the slowest device takes."""
    ests_below: int
    """ESTs that the devices together end within any shorter step: fewer than the job has, so none is shorter. 0 where what
    follows the ESTs takes one of them as long by itself."""


def fewest_seconds(devices: Sequence[Device], n_est: int, most_devices: int | None = None) -> EstCounts:
    """The counts of the shortest step on at most `most_devices` of the devices: exact, since a step can only be as long as
    some device takes for some count.

    Raises UsageError where the devices may not run as many ESTs.
    """
    pool = _Pool(devices, n_est, most_devices)
    if (room := pool.ends_within(np.inf)) < n_est:
        raise UsageError(f"the devices may run {room} ESTs at most, and the job has {n_est}")
    times = pool.possible_s()
    low, high = 0, len(times) - 1
    while low < high:
        middle = (low + high) // 2
        if pool.ends_within(float(times[middle])) >= n_est:
            high = middle
        else:
            low = middle + 1
    ests = _without_surplus(devices, pool.chosen(float(times[low])), n_est)
    return EstCounts(tuple(ests), step_s(devices, ests), pool.ends_within(float(times[low - 1])) if low else 0)


def fewest_devices(devices: Sequence[Device], n_est: int, within_s: float) -> tuple[int, ...] | None:
    """The counts that take the fewest devices of those whose step takes no longer than this; None where none does."""
    pool = _Pool(devices, n_est, None)
    counts = pool.counts(within_s)
    taken, found = 0, [0] * len(devices)
    for at in sorted(range(len(devices)), key=lambda at: (-counts[at], at)):
        if taken == n_est:
            break
        found[at] = min(int(counts[at]), n_est - taken)
        taken += found[at]
    return tuple(found) if taken == n_est else None


def ends_within(devices: Sequence[Device], n_est: int, seconds: float) -> int:
    """ESTs that the devices together end in a step of so many seconds; 0 where not all end what follows the ESTs."""
    if seconds < max(device.update_s for device in devices):
        return 0
    return _Pool(devices, n_est, None).ends_within(seconds)


def step_s(devices: Sequence[Device], ests: Sequence[int]) -> float:
    """Seconds of a step with these counts: those of the slowest device."""
    return max(device.step_s(count) for device, count in zip(devices, ests, strict=True))


def waste(devices: Sequence[Device], ests: Sequence[int]) -> float:
    """Share of what the devices could do that these counts leave idle (EasyScale's waste %, SC 2023, §4.2)."""
    return 1 - sum(ests) / (step_s(devices, ests) * sum(1 / device.est_s for device in devices))


def in_ranges(ests: Sequence[int]) -> list[list[int]]:
    """Contiguous EST numbers for these counts.

    Gradients are added along a binary tree over the numbers, and each whole subtree of a device travels as one: those whose
    lengths hold the largest powers of two come first, so that they begin at multiples of them.
    """
    found: list[list[int]] = [[] for _ in ests]
    start = 0
    for at in sorted(range(len(ests)), key=lambda at: (-_alignment(ests[at]), at)):
        found[at] = list(range(start, start + ests[at]))
        start += ests[at]
    return found


class _Pool:
    """Devices to choose from, as columns."""

    def __init__(self, devices: Sequence[Device], n_est: int, most_devices: int | None) -> None:
        self._est = np.array([device.est_s for device in devices])
        self._first = np.array([device.last_s + device.update_s for device in devices])
        self._idle_s = max(device.update_s for device in devices)
        self._most = np.array([n_est if device.most is None else min(n_est, device.most) for device in devices])
        self._n_est = n_est
        self._taken = len(devices) if most_devices is None else most_devices

    def counts(self, seconds: float) -> np.ndarray:
        """Most ESTs that each device ends within so many seconds, int[devices]."""
        with np.errstate(invalid="ignore"):
            more = np.floor((seconds * (1 + _ROUNDING_SHARE) - self._first) / self._est)
        return np.clip(np.where(np.isinf(seconds), self._most, more + 1), 0, self._most).astype(int)

    def chosen(self, seconds: float) -> list[int]:
        """The same of the devices that are taken: those that end most."""
        counts = self.counts(seconds)
        counts[np.argsort(-counts, kind="stable")[self._taken :]] = 0
        chosen: list[int] = counts.tolist()
        return chosen

    def ends_within(self, seconds: float) -> int:
        return sum(self.chosen(seconds))

    def possible_s(self) -> np.ndarray:
        """Every length that a step may have, s, ascending."""
        unlike = np.unique(np.stack([self._first, self._est]), axis=1)
        times = np.unique((unlike[0][:, None] + unlike[1][:, None] * np.arange(self._n_est)).ravel())
        found: np.ndarray = np.maximum(times, self._idle_s)
        return found


def _without_surplus(devices: Sequence[Device], ests: list[int], n_est: int) -> list[int]:
    """Counts without what is more than `n_est`: those that end last give up one each, until none is too many.

    Of equals first those whose count becomes a multiple of a larger power of two.
    """
    found = list(ests)
    while (surplus := sum(found) - n_est) > 0:
        ends = [device.step_s(count) if count else 0.0 for device, count in zip(devices, found, strict=True)]
        longest = max(ends)
        last = [at for at, end in enumerate(ends) if end > longest * (1 - _ROUNDING_SHARE)]
        for at in sorted(last, key=lambda at: (-_alignment(found[at] - 1), at))[:surplus]:
            found[at] -= 1
    return found


def _alignment(count: int) -> int:
    """The largest power of two that divides it; 0 counts as aligned to all."""
    return count & -count if count else 1 << 30
