"""Evidence: the measured figures and texts on which a finding rests."""

from collections.abc import Mapping
from typing import Literal

import msgspec

from esprof.core.types import Rank

Unit = Literal["ns", "bytes", "bytes/s", "share", "ranks"]
"""Unit of a value. A `share` is from 0 to 1; `ranks` is a list of ranks."""

By = Literal["rank", "step", "cause"]
"""Kind of key of several values."""

Value = int | float | str | bool | tuple[Rank, ...] | None
"""One value; None where unknown."""


class Evidence(msgspec.Struct, frozen=True, omit_defaults=True):
    """One observation: a single value, or one for each rank, step or cause. Its name is its key in the finding."""

    value: Value | dict[str, Value]
    """The value or, with `by`, values by rank, step or cause."""
    unit: Unit | None = None
    """None for texts and plain counts."""
    by: By | None = None
    """Kind of the keys of `value`; None for a single value."""

    def of(self, key: object) -> Value:
        """The value of one rank, step or cause; None if there is none."""
        return self.value.get(str(key)) if isinstance(self.value, dict) else None


def by_rank(values: Mapping[Rank, Value], unit: Unit | None = None) -> Evidence:
    """One value for each rank."""
    return Evidence({str(rank): value for rank, value in values.items()}, unit, "rank")


def by_step(values: Mapping[int, Value], unit: Unit | None = None) -> Evidence:
    """One value for each step."""
    return Evidence({str(step): value for step, value in values.items()}, unit, "step")
