"""What several findings tell of a flight recorder's snapshots: who waited for whom, and where the ranks were."""

from collections.abc import Mapping, Sequence
from typing import Any

from esprof.trace.flight.log import Snapshot
from esprof.trace.flight.standstill import Standstill
from esprof.trace.run import Run
from esprof.types import NS_PER_S, Rank

_MOST_STACKS = 8
"""Ranks whose place is named: those at fault first."""


def last_step(run: Run, rank: Rank) -> int:
    """The last step of `rank` that ended; 0 where none is known."""
    steps = run.steps(rank).ints("step")
    return int(steps.max()) if len(steps) else 0


def waiting_evidence(still: Standstill) -> dict[str, Any]:
    """What is waited in and by whom; empty where ranks that disagreed do not wait."""
    if not still.waiting:
        return {}
    first = still.waiting[0]
    return {
        "group": list(first.group),
        "number": first.number,
        "collective": first.what.collective,
        "bytes": first.what.bytes,
        "entered_by": list(first.entered),
        "missing": list(first.missing or first.unknown),
        "waited_s": round(first.waited_ns / NS_PER_S, 3),
    }


def places(first: Sequence[Rank], snapshots: Mapping[Rank, Snapshot]) -> dict[str, str]:
    """Rank -> `file(line): function`: where the ranks of `first` are, then some of the others."""
    ranks = [*first, *sorted(snapshots.keys() - set(first))]
    found = {str(rank): snapshots[rank].place for rank in ranks if rank in snapshots}
    return {rank: str(place) for rank, place in list(found.items())[:_MOST_STACKS] if place}
