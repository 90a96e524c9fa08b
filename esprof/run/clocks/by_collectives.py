"""Align the clocks of different hosts by the ends of their common collectives."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from esprof.core.types import NS_PER_US, Ns, Rank
from esprof.run.clocks.fit import Bools, Fit, Floats, Ints, Readings, fit

SKEW_NS: Ns = 50 * NS_PER_US
"""Smaller errors are not corrected: GPU clocks of one host differ by up to 35 µs in real traces."""

Errors = Mapping[Rank, Ns | None]
"""Error bound of each rank's times from its clock exchange with rank 0, ns; None without an exchange."""

COMMUNICATION_PER_ERROR = 5
"""Communication of at least this many times the clock error is measured across ranks; shorter one on a single rank."""

_PPM = 1e-6


@dataclass(frozen=True)
class MatchedCalls:
    """The matched collective calls of a run: one entry per rank and collective, in any order.

    A collective may include any of the ranks, but must be of a kind that no rank leaves before all have entered: no
    broadcast, reduce, send or receive.
    """

    rank: Ints
    collective: Ints
    """Number of the collective."""
    start_ns: Ints
    end_ns: Ints

    def on(self, clocks: "Clocks") -> "MatchedCalls":
        """Return these calls with times on the clock of the job."""
        start_ns, end_ns = self.start_ns.copy(), self.end_ns.copy()
        for rank, mine in self.rows.items():
            start_ns[mine] = clocks.apply(rank, start_ns[mine])
            end_ns[mine] = clocks.apply(rank, end_ns[mine])
        return MatchedCalls(self.rank, self.collective, start_ns, end_ns)

    @cached_property
    def rows(self) -> dict[Rank, Ints]:
        """The indices of each rank's calls."""
        # Sorted by rank, the calls of a rank are contiguous; the first piece of the split is empty.
        order = np.argsort(self.rank, kind="stable")
        ranks, first = np.unique(self.rank[order], return_index=True)
        return dict(zip(ranks.tolist(), np.split(order, first)[1:], strict=True))

    @cached_property
    def number(self) -> Ints:
        """Number of each call's collective, contiguous from 0."""
        number: Ints = np.unique(self.collective, return_inverse=True)[1].reshape(-1)
        return number

    @cached_property
    def shared(self) -> Bools:
        """Mask of the calls that have peers: other calls of the same collective."""
        shared: Bools = np.bincount(self.number)[self.number] > 1
        return shared

    @cached_property
    def after_all_ns(self) -> Ints:
        """Time from the start of the collective's last call to the end of each call, ns; negative if clocks are wrong."""
        last = np.full(self.number.max(initial=-1) + 1, np.iinfo(np.int64).min)
        np.maximum.at(last, self.number, self.start_ns)
        after: Ints = self.end_ns - last[self.number]
        return after

    @cached_property
    def shortest_ns(self) -> Ints:
        """Duration of the shortest call in each call's collective, ns: its rank hardly waited."""
        shortest = np.full(self.number.max(initial=-1) + 1, np.iinfo(np.int64).max)
        np.minimum.at(shortest, self.number, self.end_ns - self.start_ns)
        found: Ints = shortest[self.number]
        return found


@dataclass(frozen=True)
class HostClock:
    """The clock of one host relative to that of the reference host."""

    host: str
    """Name of the host; `rank 3` if the host of rank 3 is unknown."""
    ranks: tuple[Rank, ...]
    offset_ns: Ns = 0
    """Lead of the clock over the reference clock at `Clocks.reference_ns`, ns."""
    drift_ppm: float = 0.0
    """Microseconds that the clock gains per second; 0 if the window is too short to measure it."""
    moved: bool = False
    """Whether `Clocks.apply` corrects the clock. Small errors are not corrected."""
    tied: bool = True
    """Whether collectives connect the host, directly or through other hosts, to most ranks. If not, its clock is unknown."""


@dataclass(frozen=True)
class Clocks:
    """The clocks of all hosts of a run."""

    reference_ns: Ns
    """The middle of the window on the clock of the job, at which the offsets are valid."""
    hosts: tuple[HostClock, ...]

    def apply(self, rank: Rank, times_ns: Ints) -> Ints:
        """Convert times of `rank` (int64 ns, any shape) to the clock of the job. Their order is unchanged."""
        clock = self._of[rank]
        if not clock.moved:
            return times_ns
        level = times_ns - clock.offset_ns
        gained: Ints = np.rint((level - self.reference_ns) * (clock.drift_ppm * _PPM)).astype(np.int64)
        return level - gained

    def correction_ns(self, rank: Rank) -> Ns:
        """Correction that `apply` adds to a time of `rank` in the middle of the window, ns."""
        return -self._of[rank].offset_ns if self._of[rank].moved else 0

    def of_rank(self, rank: Rank) -> "Clocks":
        """The clock of `rank` alone."""
        return Clocks(self.reference_ns, (replace(self._of[rank], ranks=(rank,)),))

    @property
    def untied(self) -> tuple[HostClock, ...]:
        """Hosts whose clocks are unknown, as no collectives connect them to most ranks."""
        return tuple(clock for clock in self.hosts if not clock.tied)

    @cached_property
    def _of(self) -> dict[Rank, HostClock]:
        return {rank: clock for clock in self.hosts for rank in clock.ranks}


@dataclass(frozen=True)
class Residual:
    """Distance of the ends of a rank's collectives from the median end over all ranks, ns."""

    p50_ns: Ns
    p99_ns: Ns


@dataclass(frozen=True)
class CommunicationFit:
    """Duration of communication after all ranks have arrived, and the residuals of the clocks."""

    ns: Ints
    """Communication time of each call, ns, in the order of `MatchedCalls`; never negative."""
    residuals: Mapping[Rank, Residual]
    """Residual of each rank with a collective that has other ranks."""


def align_hosts(calls: MatchedCalls, hosts: Mapping[Rank, str | None], errors_ns: Errors | None = None) -> Clocks:
    """Estimate the clocks of a run from its collective calls; `hosts` names the host of each rank.

    Ranks of one host share a clock; a rank of unknown host (None) counts as a separate host. `errors_ns` has the error
    bounds of clocks that were corrected before. Such a clock is corrected again only for an offset above this bound plus the
    duration of a typical collective: ranks may leave one in a fixed order, separated by up to its duration.
    """
    ranks_of: dict[str, list[Rank]] = {}
    for rank in sorted(hosts):
        ranks_of.setdefault(hosts[rank] or f"rank {rank}", []).append(rank)
    if len(ranks_of) < 2:
        return Clocks(0, tuple(HostClock(host, tuple(ranks)) for host, ranks in ranks_of.items()))
    origin_ns = int(calls.end_ns.min()) if len(calls.end_ns) else 0
    found = fit(_readings(calls, list(ranks_of.values()), origin_ns))
    doubt_ns = _doubt(calls, ranks_of, found, errors_ns or {})
    return Clocks(origin_ns + round(found.middle_ns), _host_clocks(ranks_of, found, doubt_ns))


def _doubt(calls: MatchedCalls, ranks_of: Mapping[str, list[Rank]], found: Fit, errors_ns: Errors) -> Floats:
    """Error bound of the fit of each host's clock, ns; smaller offsets are not corrected."""
    shared = calls.shortest_ns[calls.shared]
    apart_ns = float(np.median(shared)) if len(shared) else 0.0
    # None becomes NaN, which `fmax` ignores: without an exchange only collectives limit the error.
    known = [np.array([errors_ns.get(rank) for rank in ranks], np.float64) for ranks in ranks_of.values()]
    error = np.array([errors.max() for errors in known])
    doubt: Floats = np.fmax(SKEW_NS, error + error[found.reference] + apart_ns)
    return doubt


def fit_communication(calls: MatchedCalls) -> CommunicationFit:
    """Communication times of `calls`, whose times must be on the clock of the job.

    Communication is the time of a call after the arrival of its last peer. If the clocks are too inaccurate, it is the
    shortest call of the collective: the rank that arrived last did not wait (docs/explanation/replay.md §2).
    """
    residuals = _residuals(calls)
    error_ns = max((residual.p50_ns for residual in residuals.values()), default=0)
    too_short = calls.shared & (calls.shortest_ns < COMMUNICATION_PER_ERROR * error_ns)
    return CommunicationFit(
        ns=np.where(too_short, calls.shortest_ns, np.maximum(calls.after_all_ns, 0)),
        residuals=residuals,
    )


def _readings(calls: MatchedCalls, ranks_of_host: list[list[Rank]], origin_ns: Ns) -> Readings:
    host = np.zeros(len(calls.rank), np.int64)
    for number, ranks in enumerate(ranks_of_host):
        for rank in ranks:
            host[calls.rows.get(rank, [])] = number
    # A double has a resolution of 256 ns for times since the epoch.
    return Readings(host, calls.number, (calls.end_ns - origin_ns).astype(np.float64), len(ranks_of_host))


def _host_clocks(ranks_of: dict[str, list[Rank]], found: Fit, doubt_ns: Floats) -> tuple[HostClock, ...]:
    # The component with the most ranks.
    largest = np.bincount(found.component, weights=[len(ranks) for ranks in ranks_of.values()]).argmax()
    moved = np.abs(found.offset_ns) + np.abs(found.drift) * found.half_ns >= doubt_ns
    return tuple(
        HostClock(
            host=host,
            ranks=tuple(ranks),
            offset_ns=round(found.offset_ns[number]),
            drift_ppm=float(found.drift[number] / _PPM),
            moved=bool(moved[number]),
            tied=bool(found.component[number] == largest),
        )
        for number, (host, ranks) in enumerate(ranks_of.items())
    )


def _residuals(calls: MatchedCalls) -> dict[Rank, Residual]:
    away = np.abs(_from_median(calls.end_ns, calls.number))
    found = {}
    for rank, rows in calls.rows.items():
        shared = rows[calls.shared[rows]]
        if len(shared):
            p50, p99 = np.percentile(away[shared], [50, 99])
            found[rank] = Residual(round(p50), round(p99))
    return found


def _from_median(values: Ints, group: Ints) -> Ints:
    """Return each value minus the median of its group (of an even number, the mean of the middle two, rounded down)."""
    # Sorted by group and value, a group is `count` values from `first` on.
    order = np.lexsort((values, group))
    count = np.bincount(group)
    first = np.cumsum(count) - count
    ordered = values[order]
    low, high = ordered[first + (count - 1) // 2], ordered[first + count // 2]
    median = low + (high - low) // 2
    distance: Ints = values - median[group]
    return distance
