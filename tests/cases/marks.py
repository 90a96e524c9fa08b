"""Which cases `make test` runs, which only `pytest -m soak`, and which need something of torch."""

from typing import Any

import pytest
from torch._C import _distributed_c10d

flight_recorder_of_gloo = pytest.mark.skipif(
    not hasattr(_distributed_c10d, "_dump_fr_trace_json"), reason="this torch has no flight recorder for gloo"
)


def soak(*values: Any, id: str | None = None) -> Any:
    """A case of a parametrized test that is left to the long runs: another one of its kind is always run."""
    return pytest.param(*values, marks=pytest.mark.soak, id=id)
