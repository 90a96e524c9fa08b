"""Clocks of different hosts brought together by what their ranks read when they asked rank 0 for the time."""

from bisect import bisect
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from esprof.core.types import NS_PER_S, Ns, Rank
from esprof.run.clocks.fit import MIN_SPAN_FOR_DRIFT_NS, Floats, Ints
from esprof.run.schema import Table

_MAX_RTT_PER_TYPICAL = 3
"""Readings whose round trip is longer than the typical one by this factor are left out."""

_MIN_SPACING_NS = NS_PER_S
"""Least time (ns) between two readings that are both used."""
_MAX_EXTENSION_NS = 3_600_000_000_000
"""How far (ns) the line of a clock goes on before its first reading and after its last one."""
_PPM = 1e-6


class ExchangeReading(Protocol):
    """A clock against rank 0's: ahead by `offset_ns` when it showed `at_ns`, give or take half of `rtt_ns`."""

    @property
    def at_ns(self) -> Ns: ...

    @property
    def offset_ns(self) -> Ns: ...

    @property
    def rtt_ns(self) -> Ns: ...


@dataclass(frozen=True)
class HostOffset:
    """How far the clock of a host is ahead of rank 0's: straight lines from reading to reading."""

    origin_ns: Ns
    """Time by the host's clock (ns) that `at_ns` counts from: a double cannot hold ns since the epoch exactly."""
    at_ns: Floats
    """Corners of the line by the host's clock, in ns since `origin_ns`: the readings, and an hour before and after them."""
    ahead_ns: Floats
    """By how many ns the clock is ahead of rank 0's at each of `at_ns`."""
    drift_ppm: float | None
    """Microseconds that the clock gains per second, over all readings; None where they are too close together to tell."""
    error_ns: Ns
    """By how many ns the readings may be wrong: half of the longest round trip."""

    @property
    def offset_ns(self) -> Ns:
        """By how many ns the clock is ahead of rank 0's in the middle of the readings."""
        return round(float(np.interp((self.at_ns[0] + self.at_ns[-1]) / 2, self.at_ns, self.ahead_ns)))

    def apply(self, times_ns: Ints) -> Ints:
        """Times by the host's clock (int64 ns, any shape) on rank 0's. Their order stays."""
        if not self.ahead_ns.any():
            return times_ns
        ahead = np.interp(times_ns - self.origin_ns, self.at_ns, self.ahead_ns)
        return times_ns - np.rint(ahead).astype(np.int64)

    def aligned(self, rows: Table) -> Table:
        """A table of a Run (`esprof.run.schema`) with all its times on rank 0's clock."""
        if not self.ahead_ns.any():
            return rows
        arrow = rows.arrow
        moments = {name: self._shifted(arrow[name]) for name in arrow.column_names if name in _MOMENTS}
        if "dur_ns" in arrow.column_names and "start_ns" in moments:
            ends = pc.add(arrow["start_ns"], arrow["dur_ns"])
            moments["dur_ns"] = pc.subtract(self._shifted(ends), moments["start_ns"])
        for name, column in moments.items():
            arrow = arrow.set_column(arrow.column_names.index(name), name, column)
        return Table(arrow)

    def _shifted(self, column: pa.ChunkedArray) -> pa.Array:
        """`column` on rank 0's clock; null stays null."""
        values = column.combine_chunks()
        shifted = self.apply(pc.fill_null(values, 0).to_numpy())
        return pa.array(shifted, mask=pc.is_null(values).to_numpy(zero_copy_only=False))


_MOMENTS = {"start_ns", "end_ns", "at_ns"}


def clock_of(readings: Iterable[ExchangeReading]) -> HostOffset | None:
    """The clock of one host by the readings of its ranks; None where there are no readings."""
    found = _surest(readings)
    if not found:
        return None
    at, offset, rtt = np.array(found, np.int64).T
    origin_ns = int(at[0])
    since = (at - origin_ns).astype(np.float64)
    drift = _drift(since, offset, rtt)
    # Jobs step before the first reading and after the last one: there the clock goes on as it did.
    beyond = _MAX_EXTENSION_NS * (drift or 0.0)
    return HostOffset(
        origin_ns=origin_ns,
        at_ns=np.array([since[0] - _MAX_EXTENSION_NS, *since, since[-1] + _MAX_EXTENSION_NS]),
        ahead_ns=np.array([offset[0] - beyond, *offset, offset[-1] + beyond]),
        drift_ppm=None if drift is None else round(drift / _PPM, 3),
        error_ns=int((rtt.max() + 1) // 2),
    )


def clocks_of_ranks(
    readings: Mapping[Rank, Sequence[ExchangeReading]], hosts: Mapping[Rank, str | None]
) -> dict[Rank, HostOffset | None]:
    """The clock of each rank's host. Ranks of one host share a clock, so they share its readings."""
    of_host: dict[str, list[ExchangeReading]] = {}
    for rank, rows in readings.items():
        of_host.setdefault(_host(rank, hosts), []).extend(rows)
    clocks = {host: clock_of(rows) for host, rows in of_host.items()}
    return {rank: clocks[_host(rank, hosts)] for rank in readings}


def _host(rank: Rank, hosts: Mapping[Rank, str | None]) -> str:
    return hosts[rank] or f"rank {rank}"


def _surest(readings: Iterable[ExchangeReading]) -> list[tuple[Ns, Ns, Ns]]:
    """(at, offset, round trip) in ns of the readings to use, by time: none with an unusually long round trip, and none so
    close to a better one that the noise of both would look like drift."""
    rows = sorted({(one.at_ns, one.offset_ns, one.rtt_ns) for one in readings}, key=lambda row: row[2])
    if not rows:
        return []
    longest = _MAX_RTT_PER_TYPICAL * rows[len(rows) // 2][2]
    taken: list[tuple[Ns, Ns, Ns]] = []
    for row in rows:
        place = bisect(taken, row)
        near = taken[max(place - 1, 0) : place + 1]
        if row[2] <= longest and all(abs(other[0] - row[0]) >= _MIN_SPACING_NS for other in near):
            taken.insert(place, row)
    return taken


def _drift(since: Floats, offset: Ints, rtt: Ints) -> float | None:
    """Slope of the line through the readings, weighted by 1 / round trip; None where they span too short a time."""
    if since[-1] - since[0] < MIN_SPAN_FOR_DRIFT_NS:
        return None
    slope, _ = np.polyfit(since, (offset - offset[0]).astype(np.float64), 1, w=1.0 / np.maximum(rtt, 1))
    return float(slope)
