"""Whether a rank has room for the ESTs that a plan gives it."""

from esprof.core.assignment import Assignment
from esprof.core.errors import UsageError
from esprof.core.tree import cover
from esprof.core.types import Bytes, Rank

_MEMINFO = "/proc/meminfo"


def check_room(after: Assignment, before: Assignment, rank: Rank, gradient_bytes: Bytes, context_bytes: Bytes) -> None:
    """Raise UsageError if this host lacks memory for the new EST contexts, `context_bytes` each, and for the additional
    partial sums of gradients, one per subtree of ESTs."""
    mine, were = after.ests[rank], before.ests[rank]
    comes = len(set(mine) - set(were)) * context_bytes
    held = [len(cover(frozenset(ests), after.n_est)) for ests in (mine, were)]
    needed = comes + max(0, held[0] - held[1]) * gradient_bytes
    there = available()
    if there is not None and needed > there:
        raise UsageError(f"its ESTs would need {needed:,} bytes more; {there:,} are available")


def available() -> Bytes | None:
    """Available memory of the host; None if unknown."""
    try:
        with open(_MEMINFO) as file:
            return next((int(line.split()[1]) << 10 for line in file if line.startswith("MemAvailable:")), None)
    except (OSError, ValueError, IndexError):
        return None
