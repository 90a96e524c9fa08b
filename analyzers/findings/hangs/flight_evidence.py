"""Evidence from the flight recorder's snapshots: which ranks waited for which, and where they were."""

from collections.abc import Mapping, Sequence

from esprof.analyzers.evidence import Evidence
from esprof.core.types import Rank
from esprof.run.flight.hang import Hang
from esprof.run.flight.log import Snapshot

_MAX_RANKS_LOCATED = 8
"""Number of ranks whose source location is reported, ranks at fault first."""


def waiting_evidence(hang: Hang) -> dict[str, Evidence]:
    """The collective in which ranks wait, and its ranks; empty if mismatched ranks do not wait."""
    if not hang.waiting:
        return {}
    first = hang.waiting[0]
    return {
        "group": Evidence(first.group, "ranks"),
        "number": Evidence(first.number),
        "collective": Evidence(first.what.collective),
        "size": Evidence(first.what.bytes, "bytes"),
        "entered_by": Evidence(first.entered, "ranks"),
        "missing": Evidence(first.missing or first.unknown, "ranks"),
        "waited": Evidence(first.waited_ns, "ns"),
    }


def locations(first: Sequence[Rank], snapshots: Mapping[Rank, Snapshot]) -> dict[Rank, str]:
    """Rank -> `file(line): function`, for the ranks of `first`, then for some of the others.

    If a rank waits for a loader worker, the text includes the location of that worker.
    """
    ranks = [*first, *sorted(snapshots.keys() - set(first))]
    found = {rank: snapshots[rank].whereabouts for rank in ranks if rank in snapshots}
    return {rank: location for rank, location in list(found.items())[:_MAX_RANKS_LOCATED] if location}


def last_entered(ranks: Sequence[Rank], snapshots: Mapping[Rank, Snapshot]) -> dict[Rank, str]:
    """Rank -> the last collective that it entered, and the line of the call, where recorded."""
    found = {}
    for rank in (rank for rank in ranks[:_MAX_RANKS_LOCATED] if rank in snapshots):
        calls = [call for log in snapshots[rank].calls for call in log.entries if call.entered_at]
        if calls:
            last = max(calls, key=lambda call: call.time_created_ns)
            found[rank] = f"{last.collective} {last.collective_seq_id} at {last.entered_at}"
    return found
