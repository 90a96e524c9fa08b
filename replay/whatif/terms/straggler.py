"""`straggler=fix`: slow ranks as fast as their peers."""

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from esprof import readable
from esprof.errors import UsageError
from esprof.replay.blame import arrivals, slow_ranks
from esprof.replay.dfg import Cls, Dfg, LaneKind
from esprof.replay.whatif.averages import medians_of
from esprof.replay.whatif.scenario import Declined, Scenario
from esprof.replay.whatif.term import Edit, Kind, Phase, Term, word
from esprof.types import Ns, Rank

MATCHED = 0.9
"""Least share of the slow ranks' time for which counterparts must be found on the other ranks."""

CLASSES = {
    "host_gap": (Cls.HOST_GAP,),
    "compute": (Cls.COMPUTE, Cls.CONTENTION),
    "cpu": (Cls.CPU, Cls.LAUNCH),
    "allocator": (Cls.ALLOCATOR,),
}
"""Word in brackets behind `straggler` -> the classes of nodes that are mended."""
CLASSES["work"] = tuple(cls for classes in CLASSES.values() for cls in classes)


def _classes(name: str) -> tuple[Cls, ...]:
    if name not in CLASSES:
        raise UsageError(f"{name!r} is no kind of work", remedy=f"Known kinds: {', '.join(CLASSES)}.")
    return CLASSES[name]


def _mended(now: Scenario, terms: tuple[Term, ...]) -> Scenario:
    slow = slow_ranks(now.recorded, now.steps)
    for term in terms:
        mended = fix_stragglers(now.dfg, slow, term.argument)  # type: ignore[arg-type]
        now = replace(now, dfg=mended.dfg).noted(mended.note)
    return now


class Mended(NamedTuple):
    """A graph whose slow ranks are as fast as their peers, and what should be said of it."""

    dfg: Dfg
    note: str


def fix_stragglers(dfg: Dfg, slow: list[Rank], classes: tuple[Cls, ...] | None = None) -> Mended:
    """Give each node of the `slow` ranks the median duration of its counterparts on the other ranks.

    Only slow ranks (`blame.slow_ranks`) are changed: replacing the work of all ranks at once would only swap it, and
    replacing single nodes that happened to be slow would report noise as a gain. A step in which a slow rank did no more
    than its peers stays. `classes` limits what is replaced. Raises Declined where less than 90 % of the slow ranks' time
    has counterparts.
    """
    if len(dfg.marks.ranks) < 2:
        raise Declined("needs at least two ranks")
    if not (dfg.collective >= 0).any():
        raise Declined("no collective of these steps was matched across ranks, so none can be called slow")
    if not slow:
        return Mended(dfg, "no rank is clearly slower than its peers: nothing to mend")
    own = ~dfg.of(Cls.COMMUNICATION, Cls.WAIT, Cls.RESIDUAL) & (dfg.key >= 0) & (dfg.step >= 0)
    peers = _peer_medians(dfg, own, slow)
    mine = own & np.isin(dfg.rank, slow)
    found = mine & ~np.isnan(peers)
    share = float(dfg.dur_ns[found].sum()) / max(1.0, float(dfg.dur_ns[mine].sum()))
    if share < MATCHED:
        raise Declined(f"only {100 * share:.0f} % of the slow ranks' time has a counterpart on the other ranks")
    if classes is not None:
        found &= dfg.of(*classes)
    dur = dfg.dur_ns.copy()
    dur[found] = np.rint(peers[found]).astype(np.int64)
    # An allocator call stops its device until all work on it is done: on the peers it may take long because they wait for
    # this rank.
    spared = (dfg.of(Cls.ALLOCATOR) & (dur > dfg.dur_ns)) | _in_steps_made_longer(dfg, dur, slow)
    dur[spared] = dfg.dur_ns[spared]
    if classes is None or Cls.ALLOCATOR in classes:
        dur = _without_waiting(dfg, dur, slow)
    note = f"{readable.ranks(slow)} as fast as the others; {100 * share:.0f} % of the time matched"
    return Mended(replace(dfg, dur_ns=dur), note)


def _without_waiting(dfg: Dfg, dur_ns: np.ndarray, slow: list[Rank]) -> np.ndarray:
    """`dur_ns` with the allocator calls cut that other ranks make while a collective of theirs waits for a `slow` rank.

    Such a call takes no longer than its counterpart on the slow rank: an allocator call stops for the work that its device
    holds, and a pending collective is such work (docs/replay.md §4).
    """
    calls = dfg.of(Cls.ALLOCATOR) & (dfg.key >= 0)
    # One number for step and key: counterparts in the same step.
    known = dfg.step.astype(np.int64) * (int(dfg.key.max()) + 1) + dfg.key
    own = calls & np.isin(dfg.rank, slow)
    dur = dur_ns.copy()
    for begin, end, rank in _waits_for(dfg, slow):
        inside = (dfg.recorded_ns >= begin) & (dfg.recorded_ns + dfg.dur_ns <= end)
        held = np.flatnonzero(calls & inside & (dfg.rank == rank))
        medians, found = medians_of(known[own], dfg.dur_ns[own], known[held])
        dur[held[found]] = np.minimum(dur[held], medians)[found]
    return dur


def _waits_for(dfg: Dfg, slow: list[Rank]) -> list[tuple[Ns, Ns, Rank]]:
    """(begin, end, rank) of each wait of a rank for a collective to which a `slow` rank came last; ns since `t0_ns`."""
    seen = arrivals(dfg, dfg.marks.steps)
    last = seen.last()
    waits = []
    for row in np.flatnonzero(np.isin(np.array(seen.ranks)[last], slow)):
        arrived = seen.arrived_ns[row]
        until = int(arrived[last[row]])
        waits += [(int(a), until, rank) for a, rank in zip(arrived, seen.ranks, strict=True) if a < until]
    return waits


def _in_steps_made_longer(dfg: Dfg, after_ns: np.ndarray, ranks: list[Rank]) -> np.ndarray:
    """Mask of the nodes of those steps of `ranks` in which `after_ns` would add to the work instead of taking away."""
    mask = np.zeros(dfg.nodes, bool)
    for rank in ranks:
        nodes = np.flatnonzero((dfg.rank == rank) & (dfg.step >= 0))
        _, step = np.unique(dfg.step[nodes], return_inverse=True)
        # The sum of all changes in each step.
        change = np.bincount(step, weights=(after_ns - dfg.dur_ns)[nodes])
        mask[nodes] = change[step] > 0
    return mask


def _peer_medians(dfg: Dfg, own: np.ndarray, ranks: list[Rank]) -> np.ndarray:
    """For each node of `ranks` among `own`, the median duration (ns) of its counterparts on all other ranks; else NaN.

    Counterparts share step, lane role, name, neighbour and occurrence. Where there is none (rank 0 logs, and so has other
    neighbours), they share step, lane role and name; for a loader, which works ahead, lane role and name in any step. A gap
    that no peer has takes no time there.
    """
    # Each identity packs the numbers that counterparts share into one int64.
    roles = {role: number for number, role in enumerate(dict.fromkeys(lane.role for lane in dfg.lanes))}
    role = np.array([roles[lane.role] for lane in dfg.lanes] + [-1], np.int64)[dfg.lane]
    purpose = role * len(dfg.names) + dfg.name
    step = dfg.step.astype(np.int64) + 1
    identities = (step * (int(dfg.key.max()) + 1) + dfg.key, step * (int(purpose.max()) + 1) + purpose, purpose)
    allowed = (own, own & ~dfg.on(LaneKind.LOADER) & ~dfg.of(Cls.HOST_GAP), own & dfg.on(LaneKind.LOADER))
    peers = np.full(dfg.nodes, np.nan)
    for rank in ranks:
        others = own & (dfg.rank != rank)
        for identity, mask in zip(identities, allowed, strict=True):
            todo = np.flatnonzero(mask & (dfg.rank == rank) & np.isnan(peers))
            medians, known = medians_of(identity[others], dfg.dur_ns[others], identity[todo])
            peers[todo[known]] = medians[known]
    peers[own & np.isnan(peers) & dfg.of(Cls.HOST_GAP)] = 0
    return peers


TERM = Kind(
    name="straggler",
    examples=("straggler=fix", "straggler[work]=fix"),
    meaning="Ranks that clearly keep the others waiting take as long as their peers for the same work, input data included. "
    "In brackets, what of their work: `host_gap` (time without a recorded operation), `compute`, `cpu` (CPU work and "
    "launches), `allocator`, or `work` for all of these without the input data.",
    needs="Two ranks or more, matched collectives, and counterparts on the other ranks for nine tenths of the slow ranks' "
    "time.",
    effect=Edit(Phase.MEND, _mended),
    value=word("fix"),
    argument=_classes,
    argument_is_optional=True,
)
