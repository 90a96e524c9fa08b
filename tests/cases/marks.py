"""Marks of cases that `make test` skips, and of cases that need a feature of torch."""

from typing import Any

import pytest
from torch._C import _distributed_c10d

KNOWS_GLOO = hasattr(_distributed_c10d, "_dump_fr_trace_json")
"""Whether this torch has a flight recorder for gloo, which records sizes and sequence numbers of collectives."""

flight_recorder_of_gloo = pytest.mark.skipif(not KNOWS_GLOO, reason="this torch has no flight recorder for gloo")


def soak(*values: Any, id: str | None = None) -> Any:
    """A case of a parametrized test that only long runs execute; a similar case always runs."""
    return pytest.param(*values, marks=pytest.mark.soak, id=id)
