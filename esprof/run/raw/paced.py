"""What ends the steps of a rank: noted by the job's processes, read by whoever reads the recording."""

from enum import StrEnum


class PacedBy(StrEnum):
    """What ends a rank's steps, best first: where a better one shows itself later, steps are counted anew by that."""

    JOB = "job"
    """The job says so, by `esprof.step`."""
    OPTIMIZER = "optimizer"
    """An optimizer has stepped."""
    LOADER = "loader"
    """A DataLoader is asked for its next batch."""
    MODULE = "module"
    """A module returns that was not called from inside another one."""

    def is_better_than(self, other: "PacedBy") -> bool:
        order = list(PacedBy)
        return order.index(self) < order.index(other)
