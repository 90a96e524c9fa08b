"""Which collective calls of different ranks are one: matching, clock offsets from their ends, and transfer times."""

from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from esprof.replay.rank_events import RankEvents, members_of
from esprof.trace.clocks import Offset, align
from esprof.trace.columns import collective_word
from esprof.trace.groups import group_name
from esprof.trace.run import Run
from esprof.types import Ns, Rank


@dataclass(frozen=True)
class Collective:
    """One collective on all ranks that are here: rank -> row. `arrival` is when the last of them came."""

    number: int
    rows: dict[Rank, int]
    arrival: Ns


def match(run: Run, events: dict[Rank, RankEvents]) -> list[Collective]:
    """Match the collective calls of all ranks.

    Identity is (group, sequence number) where the trace has it. Else it is the occurrence of (group, kind of collective)
    within the step that launched it, counted from the step's end: windows open at different places on different ranks,
    but all ranks leave a step together (docs/replay.md §2). Calls
    of different sizes are not matched, nor those with a member that the run lacks: it may be the one that came last. Nor
    are point-to-point transfers, which pair by role.
    """
    found: dict[tuple[object, ...], dict[Rank, list[int]]] = defaultdict(lambda: defaultdict(list))
    for rank, mine in events.items():
        for row, kind in enumerate(mine.kind):
            if kind == "collective" and not mine.p2p[row]:
                found[_identity(run, mine, row)][rank].append(row)
    matched: list[Collective] = []
    for identity, rows in found.items():
        members = members_of(run, str(identity[0]))
        if len(members) < 2 or any(rank not in rows for rank in members):
            continue
        depth = min(len(rows[rank]) for rank in members)
        for back in range(depth, 0, -1):
            at = {rank: rows[rank][-back] for rank in members}
            if len({events[r].bytes[row] for r, row in at.items() if events[r].bytes[row] >= 0}) <= 1:
                arrival = max(events[rank].start[row] for rank, row in at.items())
                matched.append(Collective(len(matched), at, arrival))
    return matched


def _identity(run: Run, events: RankEvents, row: int) -> tuple[object, ...]:
    group = events.group[row] or group_name(range(run.world_size))
    if events.coll_seq[row] >= 0:
        return (group, "seq", events.coll_seq[row])
    # The kernel's own word, not the call's: a launch before the window is not there to tell what the kernel was for.
    return (group, collective_word(events.name[row]) or events.name[row], events.step[row])


def align_clocks(run: Run, events: dict[Rank, RankEvents], matched: list[Collective]) -> dict[Rank, Offset]:
    """Bring all ranks onto one clock, in place, by the ends of their matched collectives; returns what was done."""
    full = [c for c in matched if len(c.rows) == len(events)]
    ends = {rank: np.array([mine.end[c.rows[rank]] for c in full], np.int64) for rank, mine in events.items()}
    offsets = align(ends, {rank: run.rank(rank).host for rank in events})
    for rank, offset in offsets.items():
        if offset.shift_ns:
            _shift(events[rank], offset.shift_ns)
    return offsets


def _shift(events: RankEvents, by: Ns) -> None:
    events.start = [moment + by for moment in events.start]
    events.end = [moment + by for moment in events.end]
    events.begin += by
    events.finish += by
    events.steps = {step: (start + by, end + by) for step, (start, end) in events.steps.items()}
    events.clock_shift = by


def with_arrivals(matched: list[Collective], events: dict[Rank, RankEvents]) -> list[Collective]:
    """The same collectives with the arrival on the clocks as they are now."""
    return [Collective(c.number, c.rows, max(events[rank].start[row] for rank, row in c.rows.items())) for c in matched]
