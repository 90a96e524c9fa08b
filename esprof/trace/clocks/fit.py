"""Robust least squares for clocks: hosts leave a collective together, whatever their clocks say."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

FEWEST = 3
"""Collectives of the same hosts that are needed to tie their clocks."""

FEWEST_FOR_DRIFT = 50
SHORTEST_FOR_DRIFT_NS = 10_000_000_000
"""Over a shorter window, or fewer collectives, the noise in a drift is larger than the drift of a real clock (some ppm)."""

_HUBER = 1.345
"""In standard deviations: 95 % as efficient as least squares where there is nothing but normal noise."""

_SIGMA_OF_MAD = 1.4826
_ROUNDS = 100
_CONVERGED_NS = 1.0


@dataclass(frozen=True)
class Readings:
    """What the clocks showed when collectives ended: one entry for each rank in each collective, in any order."""

    host: Ints
    """Number of the host, 0 to `hosts` - 1."""
    collective: Ints
    """Number of the collective, from 0 without holes."""
    at_ns: Floats
    """The reading, counted from a moment so near that a double holds it to the nanosecond."""
    hosts: int

    @property
    def ahead_ns(self) -> Floats:
        """By how much a reading is ahead of the earliest of its collective."""
        earliest = np.full(self.collective.max(initial=-1) + 1, np.inf)
        np.minimum.at(earliest, self.collective, self.at_ns)
        ahead: Floats = self.at_ns - earliest[self.collective]
        return ahead

    def where(self, mask: Bools) -> "Readings":
        _, collective = np.unique(self.collective[mask], return_inverse=True)
        return Readings(self.host[mask], collective, self.at_ns[mask], self.hosts)


@dataclass(frozen=True)
class Fit:
    """The clock of each host against the reference of its component: `offset_ns + drift * (t - middle_ns)` ahead at t."""

    offset_ns: Floats
    drift: Floats
    component: Ints
    """Hosts of one component are tied by collectives, if only through third ones; across components nothing is known."""
    reference: Ints
    """Number of the host whose clock is the reference of each host's component."""
    middle_ns: float = 0.0
    """Of the window on the reference clocks, counted as the readings were."""
    half_ns: float = 0.0
    """Half of the window."""


def fit(readings: Readings) -> Fit:
    """Offset and drift of each host's clock.

    A reading of host h in collective c is `T[c] + offset[h] + drift[h] * (T[c] - middle)`, where the true ends T are
    unknown too. The reference of a component is the host whose offset lies in the middle: one wrong clock moves no others.
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
    """Component of each host by offset, the same by drift, and which readings are of collectives that tie hosts."""
    members, group, times = _groups(readings)
    earliest = readings.at_ns - readings.ahead_ns
    first, last = np.full(len(members), np.inf), np.full(len(members), -np.inf)
    np.minimum.at(first, group, earliest)
    np.maximum.at(last, group, earliest)
    tied = (times >= FEWEST) & (members.sum(axis=1) > 1)
    steady = tied & (times >= FEWEST_FOR_DRIFT) & (last - first >= SHORTEST_FOR_DRIFT_NS)
    return _components(members[tied]), _components(members[steady]), tied[group]


def _groups(readings: Readings) -> tuple[Bools, Ints, Ints]:
    """Collectives of the same hosts are a group: its hosts [group, host], the group of each reading, its collectives."""
    present = np.zeros((readings.collective.max(initial=-1) + 1, readings.hosts), bool)
    present[readings.collective, readings.host] = True
    packed, group, times = np.unique(np.packbits(present, axis=1), axis=0, return_inverse=True, return_counts=True)
    members = np.unpackbits(packed, axis=1, count=readings.hosts).astype(bool)
    return members, group.reshape(-1)[readings.collective], times


def _components(members: Bools) -> Ints:
    """Number of the connected component of each host; `members[group, host]`."""
    # Only runs of several hosts get here: the others do not pay for importing scipy.
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import connected_components

    groups = csr_array(members.astype(np.int32))
    return np.asarray(connected_components(groups.T @ groups, directed=False)[1], np.int64)


def _references(component: Ints, steady: Ints, offset: Floats) -> Ints:
    """The reference of each host: in its component, of those whose drift can be known, the host in the middle."""
    peers = np.bincount(steady)[steady]
    reference = np.empty(len(component), np.int64)
    for number in range(component.max() + 1):
        mine = np.flatnonzero(component == number)
        candidates = mine[peers[mine] == peers[mine].max()]
        ranked = candidates[np.argsort(offset[candidates], kind="stable")]
        reference[mine] = ranked[(len(ranked) - 1) // 2]
    return reference


def _solve(readings: Readings, ahead_ns: Floats, moment: Floats) -> tuple[Floats, Floats]:
    """Offset of each host, up to a constant a component, and what it gains in a unit of `moment`; 0 where all are 0."""
    from scipy.sparse import csr_array, diags_array, hstack

    rows, hosts = np.arange(len(ahead_ns)), readings.hosts
    offsets = csr_array((np.ones(len(rows)), (rows, readings.host)), (len(rows), hosts))
    true_ends = csr_array((np.ones(len(rows)), (rows, readings.collective)))
    design = hstack([offsets, diags_array(moment) @ offsets, true_ends], format="csr")
    solution = _huber(design, ahead_ns, 2 * hosts)
    return solution[:hosts], solution[hosts : 2 * hosts]


def _huber(design: Any, values: Floats, wanted: int) -> Floats:
    """Least squares in which far outliers count by their distance, not its square; until `wanted` unknowns stand still.

    Each round solves for what the rounds before left, so that rounding does not grow with the clocks' offsets.
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
    """The shortest of the solutions: unknowns without any reading are 0."""
    from scipy.sparse import diags_array
    from scipy.sparse.linalg import lsmr

    root = np.sqrt(weights)
    solution: Floats = lsmr(diags_array(root) @ design, root * values, atol=1e-10, btol=1e-10)[0]
    return solution
