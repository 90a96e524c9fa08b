"""Robust least-squares fit of clocks, which assumes that all hosts leave a collective at the same time."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

MIN_COLLECTIVES = 3
"""Minimum number of collectives of the same hosts that connect their clocks."""

MIN_COLLECTIVES_FOR_DRIFT = 50
"""Minimum number of collectives for a drift: with fewer, its noise exceeds the drift of real clocks (some ppm)."""
MIN_SPAN_FOR_DRIFT_NS = 10_000_000_000
"""Minimum window for a drift, ns: in a shorter one, its noise exceeds the drift of real clocks (some ppm)."""

_HUBER = 1.345
"""Distance, in standard deviations, beyond which a reading has less weight: 95 % efficiency under normal noise (Huber)."""

_SIGMA_OF_MAD = 1.4826
_ROUNDS = 100
_CONVERGED_NS = 1.0


@dataclass(frozen=True)
class Readings:
    """Clock readings at the ends of collectives: one entry per rank and collective, in any order."""

    host: Ints
    """Number of the host, 0 to `hosts` - 1."""
    collective: Ints
    """Number of the collective, contiguous from 0."""
    at_ns: Floats
    """The reading, ns since a time so close that a double represents it to the nanosecond."""
    hosts: int

    @property
    def ahead_ns(self) -> Floats:
        """Lead of each reading over the earliest one of its collective, ns."""
        earliest = np.full(self.collective.max(initial=-1) + 1, np.inf)
        np.minimum.at(earliest, self.collective, self.at_ns)
        ahead: Floats = self.at_ns - earliest[self.collective]
        return ahead

    def where(self, mask: Bools) -> "Readings":
        _, collective = np.unique(self.collective[mask], return_inverse=True)
        return Readings(self.host[mask], collective, self.at_ns[mask], self.hosts)


@dataclass(frozen=True)
class Fit:
    """Lead of each host's clock over the reference of its component: `offset_ns + drift * (t - middle_ns)` at time t."""

    offset_ns: Floats
    drift: Floats
    component: Ints
    """Connected component of each host: collectives connect its hosts, directly or through others."""
    reference: Ints
    """Number of the host whose clock is the reference of each host's component."""
    middle_ns: float = 0.0
    """Middle of the window on the reference clocks, ns, with the zero of the readings."""
    half_ns: float = 0.0
    """Half of the length of the window, ns."""


def fit(readings: Readings) -> Fit:
    """Fit offset and drift of each host's clock.

    A reading of host h in collective c is `T[c] + offset[h] + drift[h] * (T[c] - middle)` with unknown true ends T. The
    reference of a component is the host with the median offset, so that one wrong clock does not move the others.
    """
    component, steady, used = _ties(readings)
    if not used.any():
        return Fit(np.zeros(readings.hosts), np.zeros(readings.hosts), component, np.arange(readings.hosts))
    readings = readings.where(used)
    ahead = readings.ahead_ns
    offset, drift = _solve(readings, ahead, np.zeros(len(ahead)))
    reference = _references(component, steady, offset)
    offset -= offset[reference]
    true_ns = readings.at_ns - offset[readings.host]
    middle, half = (true_ns.max() + true_ns.min()) / 2, (true_ns.max() - true_ns.min()) / 2
    drifting = (steady == steady[reference]) & (reference != np.arange(readings.hosts))
    if drifting.any():
        moment = np.where(drifting[readings.host], (true_ns - middle) / half, 0.0)
        change, gain = _solve(readings, ahead - offset[readings.host], moment)
        offset += change - change[reference]
        drift = gain / half
    return Fit(offset, drift, component, reference, float(middle), float(half))


def _ties(readings: Readings) -> tuple[Ints, Ints, Bools]:
    """Return the component of each host for offsets and for drifts, and the mask of readings of connecting collectives."""
    members, group, times = _groups(readings)
    earliest = readings.at_ns - readings.ahead_ns
    first, last = np.full(len(members), np.inf), np.full(len(members), -np.inf)
    np.minimum.at(first, group, earliest)
    np.maximum.at(last, group, earliest)
    tied = (times >= MIN_COLLECTIVES) & (members.sum(axis=1) > 1)
    steady = tied & (times >= MIN_COLLECTIVES_FOR_DRIFT) & (last - first >= MIN_SPAN_FOR_DRIFT_NS)
    return _components(members[tied]), _components(members[steady]), tied[group]


def _groups(readings: Readings) -> tuple[Bools, Ints, Ints]:
    """Group collectives by their hosts. Return the hosts of each group as a mask [group, host], the group of each reading,
    and the number of collectives in each group."""
    present = np.zeros((readings.collective.max(initial=-1) + 1, readings.hosts), bool)
    present[readings.collective, readings.host] = True
    # Packed to bits, the rows are cheaper to sort.
    packed, group, times = np.unique(np.packbits(present, axis=1), axis=0, return_inverse=True, return_counts=True)
    members = np.unpackbits(packed, axis=1, count=readings.hosts).astype(bool)
    return members, group.reshape(-1)[readings.collective], times


def _components(members: Bools) -> Ints:
    """Return the number of the connected component of each host, from `members[group, host]`."""
    # Imported here, as only runs of several hosts need scipy.
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import connected_components

    groups = csr_array(members.astype(np.int32))
    return np.asarray(connected_components(groups.T @ groups, directed=False)[1], np.int64)


def _references(component: Ints, steady: Ints, offset: Floats) -> Ints:
    """Return the reference of each host: the host with the median offset in the largest drift component of its component."""
    # Size of each host's drift component.
    peers = np.bincount(steady)[steady]
    reference = np.empty(len(component), np.int64)
    for number in range(component.max() + 1):
        mine = np.flatnonzero(component == number)
        candidates = mine[peers[mine] == peers[mine].max()]
        ranked = candidates[np.argsort(offset[candidates], kind="stable")]
        reference[mine] = ranked[(len(ranked) - 1) // 2]
    return reference


def _solve(readings: Readings, ahead_ns: Floats, moment: Floats) -> tuple[Floats, Floats]:
    """Return the offset of each host, ns, up to a constant per component, and its gain per unit of `moment`, ns; 0 for a
    host whose moments are all 0."""
    from scipy.sparse import csr_array, diags_array, hstack

    # One row per reading; columns are the offset and gain of each host and the true end of each collective.
    rows, hosts = np.arange(len(ahead_ns)), readings.hosts
    offsets = csr_array((np.ones(len(rows)), (rows, readings.host)), (len(rows), hosts))
    true_ends = csr_array((np.ones(len(rows)), (rows, readings.collective)))
    design = hstack([offsets, diags_array(moment) @ offsets, true_ends], format="csr")
    solution = _huber(design, ahead_ns, 2 * hosts)
    return solution[:hosts], solution[hosts : 2 * hosts]


def _huber(design: Any, values: Floats, wanted: int) -> Floats:
    """Solve a Huber regression by reweighted least squares, until the first `wanted` unknowns converge.

    Each iteration fits the residuals of the preceding one, so that rounding errors do not grow with the offsets.
    """
    solution = _least_squares(design, values, np.ones(len(values)))
    for _ in range(_ROUNDS):
        left = values - design @ solution
        far = np.abs(left)
        sigma = max(_SIGMA_OF_MAD * float(np.median(far)), _CONVERGED_NS)
        change = _least_squares(design, left, np.minimum(1.0, _HUBER * sigma / np.maximum(far, _CONVERGED_NS)))
        solution += change
        if np.abs(change[:wanted]).max() < _CONVERGED_NS:
            break
    return solution


def _least_squares(design: Any, values: Floats, weights: Floats) -> Floats:
    """Return the least-squares solution of smallest norm: unknowns without readings are 0."""
    from scipy.sparse import diags_array
    from scipy.sparse.linalg import lsmr

    root = np.sqrt(weights)
    solution: Floats = lsmr(diags_array(root) @ design, root * values, atol=1e-10, btol=1e-10)[0]
    return solution
