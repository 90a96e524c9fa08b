"""The number of logical workers (ESTs) per device that minimises the time of the slowest device.

EasyScale (SC 2023, §4.2) models the step of devices that run A_i ESTs at C_i per second as max A_i / C_i, and searches over
candidates. Here the optimum is exact, counts may differ between devices of one type, and a device's last EST, which overlaps
the communication of gradients, may take longer than the others.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from esprof.core.errors import UsageError

_ROUNDING_SHARE = 1e-9
"""Relative difference up to which times are equal: sums of the same terms in a different order."""


@dataclass(frozen=True)
class Device:
    """A device, and the time of the job's ESTs on it."""

    name: str
    kind: str
    est_s: float
    """Seconds of an EST that is not the device's last, including the switch to the next one."""
    last_s: float
    """Seconds of its last EST."""
    update_s: float = 0.0
    """Seconds of work after the ESTs, such as the optimizer, which a device without ESTs runs as well."""
    most: int | None = None
    """Most ESTs that it may run, 0 if one does not fit into its memory; None for no limit."""

    def step_s(self, ests: int) -> float:
        """Seconds of a step with this number of ESTs."""
        return self.update_s + (self.last_s + (ests - 1) * self.est_s if ests else 0.0)


@dataclass(frozen=True)
class EstCounts:
    """Number of ESTs of each device, with a certificate of optimality."""

    ests: tuple[int, ...]
    step_s: float
    """Seconds of the slowest device."""
    ests_below: int
    """ESTs that the devices together complete in any shorter step. It is less than the job has, so no step is shorter. 0 if
    the work after the ESTs alone takes as long on some device."""


def fewest_seconds(devices: Sequence[Device], n_est: int, most_devices: int | None = None) -> EstCounts:
    """The counts of the shortest step on at most `most_devices` of the devices. Exact: the search covers all possible
    durations, each that of some device with some count.

    Raises UsageError if the devices cannot run `n_est` ESTs.
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
    """The counts on the fewest devices whose step takes at most `within_s` seconds; None if no counts do."""
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
    """ESTs that the devices together complete within `seconds`; 0 if a device cannot even complete the work after the
    ESTs."""
    if seconds < max(device.update_s for device in devices):
        return 0
    return _Pool(devices, n_est, None).ends_within(seconds)


def step_s(devices: Sequence[Device], ests: Sequence[int]) -> float:
    """Seconds of a step with these counts, on the slowest device."""
    return max(device.step_s(count) for device, count in zip(devices, ests, strict=True))


def waste(devices: Sequence[Device], ests: Sequence[int]) -> float:
    """Share of the devices' capacity that is idle with these counts (EasyScale's waste %, SC 2023, §4.2)."""
    return 1 - sum(ests) / (step_s(devices, ests) * sum(1 / device.est_s for device in devices))


def in_ranges(ests: Sequence[int]) -> list[list[int]]:
    """Contiguous EST numbers for these counts.

    Gradients are added along a binary tree over the numbers, and each complete subtree on a device is sent as one. Ranges
    with lengths divisible by larger powers of two come first, so that they start at multiples of them.
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
        """Most ESTs that each device completes within `seconds`, int[devices]."""
        with np.errstate(invalid="ignore"):
            more = np.floor((seconds * (1 + _ROUNDING_SHARE) - self._first) / self._est)
        return np.clip(np.where(np.isinf(seconds), self._most, more + 1), 0, self._most).astype(int)

    def chosen(self, seconds: float) -> list[int]:
        """`counts` with only the devices that complete most, up to the allowed number of devices."""
        counts = self.counts(seconds)
        counts[np.argsort(-counts, kind="stable")[self._taken :]] = 0
        chosen: list[int] = counts.tolist()
        return chosen

    def ends_within(self, seconds: float) -> int:
        return sum(self.chosen(seconds))

    def possible_s(self) -> np.ndarray:
        """Every possible duration of a step, s, ascending."""
        unlike = np.unique(np.stack([self._first, self._est]), axis=1)
        times = np.unique((unlike[0][:, None] + unlike[1][:, None] * np.arange(self._n_est)).ravel())
        found: np.ndarray = np.maximum(times, self._idle_s)
        return found


def _without_surplus(devices: Sequence[Device], ests: list[int], n_est: int) -> list[int]:
    """Reduce the counts to `n_est` in total: the devices that end last give up one EST each, repeatedly.

    Among equal devices, those whose count becomes a multiple of a larger power of two come first.
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
    """The largest power of two that divides `count`; 0 is aligned to all."""
    return count & -count if count else 1 << 30
