"""Scalar types and units that all layers share."""

from typing import Annotated, TypeAlias

import msgspec

Rank: TypeAlias = int
"""Global rank of a worker in the job, from 0."""

Ns: TypeAlias = int
"""Nanoseconds: a point on the job's aligned clock (since the Unix epoch), or a duration. Always int64."""

Bytes: TypeAlias = int

# A file may be corrupt, or made to do harm: reject values that no table and no clock could hold.
Number: TypeAlias = Annotated[int, msgspec.Meta(ge=0, lt=1 << 31)]
"""A number in a file, such as that of a step."""
Large: TypeAlias = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]
"""A large number in a file, such as a size in bytes."""
Time: TypeAlias = Annotated[Ns, msgspec.Meta(ge=0, lt=1 << 62)]
"""A point in time or a duration in a file, ns."""
Span: TypeAlias = Annotated[Ns, msgspec.Meta(gt=-(1 << 62), lt=1 << 62)]
"""A difference of times in a file, ns, which may be negative."""

NS_PER_US = 1_000
NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000


def us(ns: float) -> float:
    """Microseconds for JSON and tables, from nanoseconds; rounded to the nanosecond."""
    return round(float(ns) / NS_PER_US, 3)


def ns(us: float) -> Ns:
    """Nanoseconds, from the microseconds of JSON and tables."""
    return round(us * NS_PER_US)


NOT_DECODED = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What msgspec raises for bytes that are not as expected; RecursionError for thousands of nested brackets."""
