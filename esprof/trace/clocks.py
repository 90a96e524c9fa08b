"""Clocks of different hosts brought together by the ends of the collectives that they shared."""

from dataclasses import dataclass

import numpy as np

from esprof.types import NS_PER_US, Ns, Rank

IGNORED: Ns = 200 * NS_PER_US
"""An offset below this is left alone: the GPU clocks of one host differ by tens of microseconds themselves."""

FEWEST = 3
"""Collectives needed for an offset."""


@dataclass(frozen=True)
class Offset:
    """What to add to a rank's clock, and how well the collectives agree on it afterwards (median absolute residual)."""

    shift_ns: Ns
    residual_ns: Ns | None


def align(ends: dict[Rank, np.ndarray], hosts: dict[Rank, str | None]) -> dict[Rank, Offset]:
    """Clock offset of each rank from the ends of matched collectives.

    `ends[rank]` holds the end (ns) of each collective on that rank, in the same order on all. The offset of a rank is
    the median difference to the median rank; of a host, the median over its ranks, since they share a clock
    (docs/replay.md §2). Ranks whose host is unknown are taken as hosts of their own.
    """
    count = min((len(values) for values in ends.values()), default=0)
    if len(ends) < 2 or count < FEWEST:
        return {rank: Offset(0, None) for rank in ends}
    ranks = sorted(ends)
    matrix = np.array([ends[rank] for rank in ranks])
    # Differences first: the median is a double, which holds a time since the epoch to a quarter of a microsecond only.
    apart = matrix - matrix[0]
    late = apart - np.median(apart, axis=0).astype(np.int64)
    by_host: dict[str, list[int]] = {}
    for row, rank in enumerate(ranks):
        by_host.setdefault(hosts[rank] or f"rank {rank}", []).append(row)
    shift = np.zeros(len(ranks), np.int64)
    if len(by_host) > 1:
        for rows in by_host.values():
            offset = int(np.median(late[rows]))
            shift[rows] = -offset if abs(offset) >= IGNORED else 0
    residual = np.median(np.abs(late + shift[:, None]), axis=1)
    return {rank: Offset(int(shift[row]), int(residual[row])) for row, rank in enumerate(ranks)}
