"""Robust least squares for clocks: hosts leave a collective together, whatever their clocks say."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

MIN_COLLECTIVES = 3
"""Fewest collectives of the same hosts that tie their clocks."""

MIN_COLLECTIVES_FOR_DRIFT = 50
"""Fewest collectives that tell a drift: with fewer, its noise is larger than the drift of a real clock (some ppm)."""
MIN_SPAN_FOR_DRIFT_NS = 10_000_000_000
"""Shortest window (ns) that tells a drift: over less, its noise is larger than the drift of a real clock (some ppm)."""

_HUBER = 1.345
"""Distance, in standard deviations, beyond which a reading counts less: 95 % as efficient as least squares under normal
noise."""

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
    """The reading in ns, counted from a moment so near that a double holds it to the nanosecond."""
    hosts: int

    @property
    def ahead_ns(self) -> Floats:
        """By how many ns each reading is ahead of the earliest reading of its collective."""
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
    """Component of each host. Its hosts are tied by collectives, if only through third ones; nothing ties components."""
    reference: Ints
    """Number of the host whose clock is the reference of each host's component."""
    middle_ns: float = 0.0
    """Middle of the window on the reference clocks, in ns, counted as the readings were."""
    half_ns: float = 0.0
    """Half of the window's length, in ns."""


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
    tied = (times >= MIN_COLLECTIVES) & (members.sum(axis=1) > 1)
    steady = tied & (times >= MIN_COLLECTIVES_FOR_DRIFT) & (last - first >= MIN_SPAN_FOR_DRIFT_NS)
    return _components(members[tied]), _components(members[steady]), tied[group]


def _groups(readings: Readings) -> tuple[Bools, Ints, Ints]:
    """Collectives of the same hosts are a group. Returns the hosts of each group as a mask [group, host], the group of each
    reading, and the number of collectives in each group."""
    present = np.zeros((readings.collective.max(initial=-1) + 1, readings.hosts), bool)
    present[readings.collective, readings.host] = True
    # Equal rows are collectives of the same hosts; packed to bits they are cheaper to sort.
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
    """The reference of each host: of the largest group in its component whose drifts tie, the host with median offset."""
    # How many hosts each host shares its drift component with, itself included.
    peers = np.bincount(steady)[steady]
    reference = np.empty(len(component), np.int64)
    for number in range(component.max() + 1):
        mine = np.flatnonzero(component == number)
        candidates = mine[peers[mine] == peers[mine].max()]
        ranked = candidates[np.argsort(offset[candidates], kind="stable")]
        reference[mine] = ranked[(len(ranked) - 1) // 2]
    return reference


def _solve(readings: Readings, ahead_ns: Floats, moment: Floats) -> tuple[Floats, Floats]:
    """Offset (ns) of each host, up to a constant per component, and its gain (ns) per unit of `moment`; the gain is 0 for a
    host whose moments are all 0."""
    from scipy.sparse import csr_array, diags_array, hstack

    # One row per reading, one column per unknown: each host's offset and gain, and the true end of each collective.
    rows, hosts = np.arange(len(ahead_ns)), readings.hosts
    offsets = csr_array((np.ones(len(rows)), (rows, readings.host)), (len(rows), hosts))
    true_ends = csr_array((np.ones(len(rows)), (rows, readings.collective)))
    design = hstack([offsets, diags_array(moment) @ offsets, true_ends], format="csr")
    solution = _huber(design, ahead_ns, 2 * hosts)
    return solution[:hosts], solution[hosts : 2 * hosts]


def _huber(design: Any, values: Floats, wanted: int) -> Floats:
    """Least squares in which outliers count by their distance, not its square; ends when the first `wanted` unknowns settle.

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
    """The least-squares solution of smallest norm: unknowns without any reading are 0."""
    from scipy.sparse import diags_array
    from scipy.sparse.linalg import lsmr

    root = np.sqrt(weights)
    solution: Floats = lsmr(diags_array(root) @ design, root * values, atol=1e-10, btol=1e-10)[0]
    return solution
