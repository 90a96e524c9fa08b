"""Align the clocks of different hosts by exchanges of their ranks with rank 0."""

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
"""Readings with a round trip above this multiple of the median are ignored."""

_MIN_SPACING_NS = NS_PER_S
"""Minimum time between two used readings, ns."""
_MAX_EXTENSION_NS = 3_600_000_000_000
"""Extrapolation of a clock before its first and after its last reading, ns."""
_PPM = 1e-6


class ExchangeReading(Protocol):
    """Lead `offset_ns` of a clock over that of rank 0 when it showed `at_ns`, with an error of at most half of `rtt_ns`."""

    @property
    def at_ns(self) -> Ns: ...

    @property
    def offset_ns(self) -> Ns: ...

    @property
    def rtt_ns(self) -> Ns: ...


@dataclass(frozen=True)
class HostOffset:
    """Lead of a host's clock over that of rank 0, linear between readings."""

    origin_ns: Ns
    """Zero of `at_ns` on the host's clock, ns: a double cannot represent ns since the epoch exactly."""
    at_ns: Floats
    """Times of the readings, and one hour before and after them, on the host's clock, ns since `origin_ns`."""
    ahead_ns: Floats
    """Lead of the clock over that of rank 0 at each of `at_ns`, ns."""
    drift_ppm: float | None
    """Microseconds that the clock gains per second, over all readings; None if they span too short a time."""
    error_ns: Ns
    """Error bound of the readings, ns: half of the longest round trip."""

    @property
    def offset_ns(self) -> Ns:
        """Lead of the clock over that of rank 0 in the middle of the readings, ns."""
        return round(float(np.interp((self.at_ns[0] + self.at_ns[-1]) / 2, self.at_ns, self.ahead_ns)))

    def apply(self, times_ns: Ints) -> Ints:
        """Convert times of the host (int64 ns, any shape) to the clock of rank 0. Their order is unchanged."""
        if not self.ahead_ns.any():
            return times_ns
        ahead = np.interp(times_ns - self.origin_ns, self.at_ns, self.ahead_ns)
        return times_ns - np.rint(ahead).astype(np.int64)

    def aligned(self, rows: Table) -> Table:
        """Return a table of a Run (`esprof.run.schema`) with all times on the clock of rank 0."""
        if not self.ahead_ns.any():
            return rows
        arrow = rows.arrow
        moments = {name: self._aligned_times(arrow[name]) for name in arrow.column_names if name in _MOMENTS}
        if "dur_ns" in arrow.column_names and "start_ns" in moments:
            ends = pc.add(arrow["start_ns"], arrow["dur_ns"])
            moments["dur_ns"] = pc.subtract(self._aligned_times(ends), moments["start_ns"])
        for name, column in moments.items():
            arrow = arrow.set_column(arrow.column_names.index(name), name, column)
        return Table(arrow)

    def _aligned_times(self, column: pa.ChunkedArray) -> pa.Array:
        """Return `column` on the clock of rank 0; null stays null."""
        values = column.combine_chunks()
        aligned = self.apply(pc.fill_null(values, 0).to_numpy())
        return pa.array(aligned, mask=pc.is_null(values).to_numpy(zero_copy_only=False))


_MOMENTS = {"start_ns", "end_ns", "at_ns"}


def clock_of(readings: Iterable[ExchangeReading]) -> HostOffset | None:
    """Return the clock of one host from the readings of its ranks; None without readings."""
    found = _best_readings(readings)
    if not found:
        return None
    at, offset, rtt = np.array(found, np.int64).T
    origin_ns = int(at[0])
    since = (at - origin_ns).astype(np.float64)
    drift = _drift(since, offset, rtt)
    # Steps before the first and after the last reading need extrapolation with the same drift.
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
    """Return the clock of each rank's host. Ranks of one host share a clock, so their readings are combined."""
    of_host: dict[str, list[ExchangeReading]] = {}
    for rank, rows in readings.items():
        of_host.setdefault(_host(rank, hosts), []).extend(rows)
    clocks = {host: clock_of(rows) for host, rows in of_host.items()}
    return {rank: clocks[_host(rank, hosts)] for rank in readings}


def _host(rank: Rank, hosts: Mapping[Rank, str | None]) -> str:
    return hosts[rank] or f"rank {rank}"


def _best_readings(readings: Iterable[ExchangeReading]) -> list[tuple[Ns, Ns, Ns]]:
    """Return (at, offset, round trip) of the readings to use, ns, by time. Readings with long round trips are ignored, and
    those so close to a better one that their noise would appear as drift."""
    rows = sorted({(one.at_ns, one.offset_ns, one.rtt_ns) for one in readings}, key=lambda row: row[2])
    if not rows:
        return []
    longest = _MAX_RTT_PER_TYPICAL * rows[len(rows) // 2][2]
    taken: list[tuple[Ns, Ns, Ns]] = []
    for row in rows:
        position = bisect(taken, row)
        near = taken[max(position - 1, 0) : position + 1]
        if row[2] <= longest and all(abs(other[0] - row[0]) >= _MIN_SPACING_NS for other in near):
            taken.insert(position, row)
    return taken


def _drift(since: Floats, offset: Ints, rtt: Ints) -> float | None:
    """Return the slope of a line through the readings, weighted by 1 / round trip; None if they span too short a time."""
    if since[-1] - since[0] < MIN_SPAN_FOR_DRIFT_NS:
        return None
    slope, _ = np.polyfit(since, (offset - offset[0]).astype(np.float64), 1, w=1.0 / np.maximum(rtt, 1))
    return float(slope)
