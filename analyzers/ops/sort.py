"""What the table of operations can be sorted by."""

from typing import Literal

Sort = Literal["own-gpu", "total-gpu", "own-cpu", "total-cpu", "calls"]

By = Literal["operation", "module"]
"""Which rows: all kinds, or modules only."""
