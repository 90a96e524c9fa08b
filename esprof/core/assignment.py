"""Assignment of ESTs to processes."""

from collections.abc import Sequence
from dataclasses import dataclass

from esprof.core.errors import UsageError
from esprof.core.types import Rank

Est = int
"""Number of an EasyScaleThread (EST), a logical worker: 0 to `n_est` - 1, constant during a job."""


@dataclass(frozen=True)
class Assignment:
    """A partition of the ESTs over the ranks of a job; a rank may have none. Raises UsageError if it is not a partition.

    Within a rank ESTs run in ascending order. The assignment does not change the bits of the result, but it changes memory
    and traffic: they are smallest if each rank has a contiguous range of ESTs whose length is a power of two and whose start
    is a multiple of that length.
    """

    ests: tuple[tuple[Est, ...], ...]
    """The ESTs of each rank, ascending."""

    def __post_init__(self) -> None:
        listed = sorted(est for ests in self.ests for est in ests)
        if listed != list(range(len(listed))) or not listed:
            raise UsageError(f"the assignment is not a partition of the ESTs 0 to {len(listed) - 1}: {self.ests}")
        if any(list(ests) != sorted(ests) for ests in self.ests):
            raise UsageError(f"the ESTs of each rank must be in ascending order: {self.ests}")

    @classmethod
    def of(cls, ests: Sequence[Sequence[Est]]) -> "Assignment":
        """The assignment that gives each rank its list of ESTs, in any order."""
        return cls(tuple(tuple(sorted(own)) for own in ests))

    @classmethod
    def even(cls, n_est: int, world: int) -> "Assignment":
        """The assignment of contiguous ranges whose lengths differ by at most one, the longer ones first."""
        length, longer = divmod(n_est, world)
        starts = [rank * length + min(rank, longer) for rank in range(world + 1)]
        return cls(tuple(tuple(range(starts[rank], starts[rank + 1])) for rank in range(world)))

    @property
    def n_est(self) -> int:
        return sum(map(len, self.ests))

    @property
    def world(self) -> int:
        return len(self.ests)

    def check_fits(self, n_est: int, world: int) -> None:
        """Raise UsageError if this does not assign `n_est` ESTs to `world` processes."""
        if (self.n_est, self.world) != (n_est, world):
            raise UsageError(
                f"the assignment has {self.n_est} ESTs on {self.world} processes, but the job has {n_est} and {world}"
            )

    def owner(self, est: Est) -> Rank:
        return next(rank for rank, ests in enumerate(self.ests) if est in ests)
