"""What several findings tell of a flight recorder's snapshots: who waited for whom, and where the ranks were."""

from collections.abc import Mapping, Sequence

from esprof.analyzers.evidence import Evidence
from esprof.core.types import Rank
from esprof.run.flight.hang import Hang
from esprof.run.flight.log import Snapshot

_MAX_RANKS_LOCATED = 8
"""Ranks whose place is named: those at fault first."""


def waiting_evidence(still: Hang) -> dict[str, Evidence]:
    """What is waited in and by whom; empty where ranks that disagreed do not wait."""
    if not still.waiting:
        return {}
    first = still.waiting[0]
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
    """Rank -> `file(line): function`: where the ranks of `first` are, then some of the others; and where the loader's worker
    is that a rank waits for."""
    ranks = [*first, *sorted(snapshots.keys() - set(first))]
    found = {rank: snapshots[rank].whereabouts for rank in ranks if rank in snapshots}
    return {rank: location for rank, location in list(found.items())[:_MAX_RANKS_LOCATED] if location}


def last_entered(ranks: Sequence[Rank], snapshots: Mapping[Rank, Snapshot]) -> dict[Rank, str]:
    """Rank -> the last collective that it entered, and the line that entered it, as far as calls tell lines."""
    found = {}
    for rank in (rank for rank in ranks[:_MAX_RANKS_LOCATED] if rank in snapshots):
        calls = [call for log in snapshots[rank].calls for call in log.entries if call.entered_at]
        if calls:
            last = max(calls, key=lambda call: call.time_created_ns)
            found[rank] = f"{last.collective} {last.collective_seq_id} at {last.entered_at}"
    return found
