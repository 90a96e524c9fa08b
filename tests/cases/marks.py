"""Which cases `make test` runs, and which only `pytest -m soak`."""

from typing import Any

import pytest


def soak(*values: Any, id: str | None = None) -> Any:
    """A case of a parametrized test that is left to the long runs: another one of its kind is always run."""
    return pytest.param(*values, marks=pytest.mark.soak, id=id)
