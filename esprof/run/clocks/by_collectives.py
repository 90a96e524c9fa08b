"""Clocks of different hosts brought together by the ends of the collectives that they shared."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from esprof.core.types import NS_PER_US, Ns, Rank
from esprof.run.clocks.fit import Bools, Fit, Floats, Ints, Readings, fit

SKEW_NS: Ns = 50 * NS_PER_US
"""A clock that is less wrong than this is left as it is: GPU clocks of one host seem up to 35 µs apart in real traces."""

Errors = Mapping[Rank, Ns | None]
"""By how many ns the times of each rank may be wrong, as its exchange with rank 0 told; None where there was none."""

COMMUNICATION_PER_ERROR = 5
"""A transfer is taken from the clocks of several ranks where it is at least this many times as long as their error."""

_PPM = 1e-6


@dataclass(frozen=True)
class MatchedCalls:
    """The matched collective calls of a run: one entry for each rank in each collective, in any order.

    Any of the ranks may take part in a collective, but it must be of a kind that no rank leaves before all have come: no
    broadcast, reduce or point-to-point transfer.
    """

    rank: Ints
    collective: Ints
    """Number of the collective."""
    start_ns: Ints
    end_ns: Ints

    def on(self, clocks: "Clocks") -> "MatchedCalls":
        """These calls with their times on the clock of the job."""
        start_ns, end_ns = self.start_ns.copy(), self.end_ns.copy()
        for rank, mine in self.rows.items():
            start_ns[mine] = clocks.apply(rank, start_ns[mine])
            end_ns[mine] = clocks.apply(rank, end_ns[mine])
        return MatchedCalls(self.rank, self.collective, start_ns, end_ns)

    @cached_property
    def rows(self) -> dict[Rank, Ints]:
        """The indices of each rank's calls."""
        # Sorted by rank, the calls of a rank are one run: cut where each begins; the first piece is empty.
        order = np.argsort(self.rank, kind="stable")
        ranks, first = np.unique(self.rank[order], return_index=True)
        return dict(zip(ranks.tolist(), np.split(order, first)[1:], strict=True))

    @cached_property
    def number(self) -> Ints:
        """The collective of each call, numbered without holes from 0."""
        number: Ints = np.unique(self.collective, return_inverse=True)[1].reshape(-1)
        return number

    @cached_property
    def shared(self) -> Bools:
        """Mask of the calls that have peers: other calls of the same collective."""
        shared: Bools = np.bincount(self.number)[self.number] > 1
        return shared

    @cached_property
    def after_all_ns(self) -> Ints:
        """Time (ns) from the start of the collective's last call to the end of each call; negative only where clocks are
        wrong."""
        last = np.full(self.number.max(initial=-1) + 1, np.iinfo(np.int64).min)
        np.maximum.at(last, self.number, self.start_ns)
        after: Ints = self.end_ns - last[self.number]
        return after

    @cached_property
    def shortest_ns(self) -> Ints:
        """Duration (ns) of the shortest call in each call's collective: that of the rank that hardly waited."""
        shortest = np.full(self.number.max(initial=-1) + 1, np.iinfo(np.int64).max)
        np.minimum.at(shortest, self.number, self.end_ns - self.start_ns)
        found: Ints = shortest[self.number]
        return found


@dataclass(frozen=True)
class HostClock:
    """The clock of one host against that of the reference host."""

    host: str
    """Name of the host; `rank 3` where the host of rank 3 is unknown."""
    ranks: tuple[Rank, ...]
    offset_ns: Ns = 0
    """By how many ns the clock is ahead of the reference host's at `Clocks.reference_ns`."""
    drift_ppm: float = 0.0
    """Microseconds that the clock gains per second; 0 where the window is too short to tell."""
    moved: bool = False
    """Whether `Clocks.apply` corrects the clock. A clock that is nearly right is left alone."""
    tied: bool = True
    """Whether collectives tie the host to most ranks of the run, if only through other hosts. If not, its clock is not
    known."""


@dataclass(frozen=True)
class Clocks:
    """The clocks of all hosts of a run."""

    reference_ns: Ns
    """The middle of the window on the clock of the job, where the offsets hold."""
    hosts: tuple[HostClock, ...]

    def apply(self, rank: Rank, times_ns: Ints) -> Ints:
        """Times by the clock of `rank` (int64 ns, any shape) on the clock of the job, in the same order."""
        clock = self._of[rank]
        if not clock.moved:
            return times_ns
        level = times_ns - clock.offset_ns
        gained: Ints = np.rint((level - self.reference_ns) * (clock.drift_ppm * _PPM)).astype(np.int64)
        return level - gained

    def correction_ns(self, rank: Rank) -> Ns:
        """What `apply` adds to a time of `rank` in the middle of the window."""
        return -self._of[rank].offset_ns if self._of[rank].moved else 0

    @property
    def untied(self) -> tuple[HostClock, ...]:
        """The hosts whose clocks could not be tied to those of most ranks."""
        return tuple(clock for clock in self.hosts if not clock.tied)

    @cached_property
    def _of(self) -> dict[Rank, HostClock]:
        return {rank: clock for clock in self.hosts for rank in clock.ranks}


@dataclass(frozen=True)
class Residual:
    """How far (ns) the ends of a rank's collectives are from the median end over all their ranks."""

    p50_ns: Ns
    p99_ns: Ns


@dataclass(frozen=True)
class CommunicationFit:
    """How long collectives took once all ranks had come, and how well the ranks' clocks agree."""

    ns: Ints
    """Transfer time of each call in ns, in the order of `MatchedCalls`; never negative."""
    residuals: Mapping[Rank, Residual]
    """Residual of each rank that shared a collective."""


def align_hosts(calls: MatchedCalls, hosts: Mapping[Rank, str | None], errors_ns: Errors | None = None) -> Clocks:
    """The clocks of a run by its collective calls; `hosts` names the host of every rank.

    Ranks of one host share a clock; a rank whose host is unknown (None) is taken as a host of its own. `errors_ns` says how
    wrong clocks that were corrected already may still be. Such a clock is moved only where collectives find it wrong by
    more than that and a typical collective: ranks may leave one in a fixed order, as far apart as its transfer is long.
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
    """By how many ns the fit of each host's clock may be wrong against its reference; less than that moves no clock."""
    shared = calls.shortest_ns[calls.shared]
    apart_ns = float(np.median(shared)) if len(shared) else 0.0
    # None becomes NaN: nothing is known of that host's clock but what its collectives tell.
    known = [np.array([errors_ns.get(rank) for rank in ranks], np.float64) for ranks in ranks_of.values()]
    error = np.array([errors.max() for errors in known])
    doubt: Floats = np.fmax(SKEW_NS, error + error[found.reference] + apart_ns)
    return doubt


def fit_communication(calls: MatchedCalls) -> CommunicationFit:
    """Transfer times of `calls`, whose times are on the clock of the job.

    A transfer is what a call takes after its last peer came. Where clocks are not good enough for that, it is the
    shortest call of the collective: the rank that came last did not wait (docs/explanation/replay.md §2).
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
    # A double holds a time since the epoch to a quarter of a microsecond only.
    return Readings(host, calls.number, (calls.end_ns - origin_ns).astype(np.float64), len(ranks_of_host))


def _host_clocks(ranks_of: dict[str, list[Rank]], found: Fit, doubt_ns: Floats) -> tuple[HostClock, ...]:
    # The component that has the most ranks: hosts of the others are not tied to most ranks.
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
    """Each value less the median of its group (the mean of the two in the middle, rounded down)."""
    # Sorted by group and value, a group is a run of `count` from `first` on, so that its middle is read by index.
    order = np.lexsort((values, group))
    count = np.bincount(group)
    first = np.cumsum(count) - count
    ordered = values[order]
    low, high = ordered[first + (count - 1) // 2], ordered[first + count // 2]
    median = low + (high - low) // 2
    distance: Ints = values - median[group]
    return distance
