"""Scalar types and units that all layers share."""

from typing import TypeAlias

Rank: TypeAlias = int
"""Global rank of a worker in the job, from 0."""

Ns: TypeAlias = int
"""Nanoseconds: a point on the job's aligned clock (since the Unix epoch), or a duration. Always int64."""

Bytes: TypeAlias = int

NS_PER_US = 1_000
NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000


def us(ns: float) -> float:
    """Microseconds for JSON and tables, from nanoseconds; rounded to the nanosecond."""
    return round(float(ns) / NS_PER_US, 3)


def ns(us: float) -> Ns:
    """Nanoseconds, from the microseconds of JSON and tables."""
    return round(us * NS_PER_US)
