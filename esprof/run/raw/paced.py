"""Events that end the steps of a rank. The job's processes record which one counts."""

from enum import StrEnum


class PacedBy(StrEnum):
    """The event that ends a rank's steps, most reliable first. Counting restarts when a more reliable one occurs."""

    JOB = "job"
    """The job calls `esprof.step`."""
    OPTIMIZER = "optimizer"
    """An optimizer steps."""
    LOADER = "loader"
    """The job requests the next batch of a DataLoader."""
    MODULE = "module"
    """An outermost module, called by no other one, returns."""

    def is_better_than(self, other: "PacedBy") -> bool:
        order = list(PacedBy)
        return order.index(self) < order.index(other)
