"""`straggler=fix`: slow ranks as fast as their peers."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from esprof.core import readable
from esprof.core.errors import UsageError
from esprof.core.statistics import medians_of
from esprof.core.types import Rank
from esprof.replay.dfg import Cls, Dfg
from esprof.replay.ranks.blame import Blame, held_ns
from esprof.replay.whatif.scenario import Declined, Scenario
from esprof.replay.whatif.term import Edit, Kind, Term, TermPhase, word

MIN_MATCHED_SHARE = 0.9
"""Least share of the slow ranks' time for which counterparts must be found on the other ranks."""

MIN_COMPARED_SHARE = 0.25
"""Least share of a lone stage's CPU time that has counterparts, for the rest to count as slow as that."""

CLASSES = {
    "host_gap": (Cls.HOST_GAP,),
    "compute": (Cls.COMPUTE, Cls.COPY, Cls.CONTENTION),
    "cpu": (Cls.CPU, Cls.LAUNCH),
    "allocator": (Cls.ALLOCATOR,),
}
"""Word in brackets behind `straggler` -> the classes of nodes that are mended."""
CLASSES["work"] = tuple(cls for classes in CLASSES.values() for cls in classes)
CLASSES["data"] = (Cls.DATA,)


def _classes(name: str) -> tuple[Cls, ...]:
    if name not in CLASSES:
        raise UsageError(f"{name!r} is not a kind of work", remedy=f"Known kinds: {', '.join(CLASSES)}.")
    return CLASSES[name]


def _mended(now: Scenario, terms: tuple[Term, ...]) -> Scenario:
    slow = now.blame.slow_ranks
    # Who is slow was recorded; what they are compared with is what there is now.
    for term in terms:
        mended = fix_stragglers(now.blame_now, slow, term.argument)  # type: ignore[arg-type]
        now = replace(now, dfg=mended.dfg).noted(mended.note)
    return now


class Mended(NamedTuple):
    """A graph whose slow ranks are as fast as their peers, and what should be said of it."""

    dfg: Dfg
    note: str


def fix_stragglers(blame: Blame, slow: Sequence[Rank], classes: tuple[Cls, ...] | None = None) -> Mended:
    """Give each node of the `slow` ranks the median duration of its counterparts on the other ranks.

    Only slow ranks (`Blame.slow_ranks`) are changed: replacing the work of all ranks at once would only swap it, and
    replacing single nodes that happened to be slow would report noise as a gain. What a lane does in a step stays where the
    rank did no more of it than its peers. `classes` limits what is replaced. Raises Declined where less than 90 % of the
    slow ranks' time has counterparts.
    """
    dfg = blame.dfg
    if len(dfg.marks.ranks) < 2:
        raise Declined("needs at least two ranks")
    if not (dfg.collective >= 0).any():
        raise Declined("no collective was matched across ranks, so slow ranks are unknown")
    peers = np.where(_is_more(blame, slow), 0, _as_slow_as_the_rest(blame, slow))
    # Where ranks do different things, none can be called slow.
    mine = blame.peers.own & np.isin(dfg.rank, slow or dfg.marks.ranks)
    found = mine & ~np.isnan(peers)
    # A step that was lost on the other ranks has counterparts nowhere.
    counted = np.isin(dfg.step, blame.steps)
    share = float(dfg.dur_ns[found & counted].sum()) / max(
        1.0, float(dfg.dur_ns[mine & counted & ~_unlike(blame)].sum())
    )
    if share < MIN_MATCHED_SHARE:
        whose = "slow ranks'" if slow else "ranks'"
        raise Declined(f"only {100 * share:.0f} % of the {whose} time has a counterpart on the other ranks")
    if not slow:
        return Mended(dfg, _nothing(blame))
    if classes is not None:
        found &= dfg.of(*classes)
    dur = dfg.dur_ns.copy()
    dur[found] = np.rint(peers[found]).astype(np.int64)
    if blame.gaps_wait:  # The other ranks no longer wait for the slow ones.
        waits = dfg.of(Cls.HOST_GAP) & blame.peers.own & (dfg.dur_ns > blame.peers.others)
        dur[waits] = np.rint(blame.peers.others[waits]).astype(np.int64)
    # An allocator call stops its device until all work on it is done: on the peers it may take long because they wait for
    # this rank.
    spared = (dfg.of(Cls.ALLOCATOR) & (dur > dfg.dur_ns)) | _made_longer(dfg, dur)
    dur[spared] = dfg.dur_ns[spared]
    if classes is None or Cls.ALLOCATOR in classes:
        dur = _without_waiting(dfg, dur, slow)
    covered = f"{100 * share:.0f} % of their operations have a counterpart on other ranks, by time"
    note = f"{readable.ranks(slow)} as fast as the others; {covered}"
    return Mended(replace(dfg, dur_ns=dur), note)


def _is_more(blame: Blame, slow: Sequence[Rank]) -> np.ndarray:
    """Mask of what the `slow` ranks do and no other rank of their role does at all, bool[N]: mended, it takes no time.

    Nothing where the others have operations that the slow ranks lack: then they do the same in another way, as unlike
    devices do.
    """
    dfg = blame.dfg
    is_slow = np.isin(dfg.rank, slow)
    own = blame.peers.own & blame.shares_role & np.isin(dfg.step, blame.steps)
    more = own & is_slow & np.isnan(blame.peers.others)
    lacking = own & ~is_slow & ~dfg.of(Cls.HOST_GAP) & ~np.isin(dfg.name, np.unique(dfg.name[own & is_slow]))
    mine, theirs = float(dfg.dur_ns[more].sum()) / max(1, len(slow)), float(dfg.dur_ns[lacking].sum())
    is_more: np.ndarray = more & (theirs / max(1, len(dfg.marks.ranks) - len(slow)) <= (1 - MIN_MATCHED_SHARE) * mine)
    return is_more


def _as_slow_as_the_rest(blame: Blame, slow: Sequence[Rank]) -> np.ndarray:
    """Median over the other ranks for each node, ns, float64[N], also for CPU work that only one of the `slow` stages does.

    A stage whose CPU is slow is slow in the calls that no other stage makes, too: these take longer by the median factor of
    its calls that others make.
    """
    dfg, work_ns, peers = blame.dfg, blame.work_ns, blame.peers.others.copy()
    calls = blame.peers.own & ~blame.shares_role & dfg.of(*CLASSES["cpu"])
    calls &= np.isin(dfg.step, blame.steps) & (work_ns > 0)
    for rank in slow:
        mine = calls & (dfg.rank == rank)
        compared = mine & ~np.isnan(peers)
        if work_ns[compared].sum() >= MIN_COMPARED_SHARE * work_ns[mine].sum() > 0:
            alone = mine & np.isnan(peers)
            peers[alone] = work_ns[alone] * float(np.median(peers[compared] / work_ns[compared]))
    return peers


def _nothing(blame: Blame) -> str:
    """What is said where no rank is slow."""
    if blame.roles.any():
        return "no rank is significantly slower than its peers; stages with different work are not stragglers"
    return "no rank is significantly slower than its peers"


def _unlike(blame: Blame) -> np.ndarray:
    """Mask of what only one stage of a pipeline computes: it has nothing to be compared with, bool[N]."""
    dfg = blame.dfg
    bound = dfg.of(Cls.COMPUTE, Cls.CONTENTION, Cls.ALLOCATOR, Cls.HOST_GAP)
    mask: np.ndarray = bound & np.isnan(blame.peers.others) & ~blame.shares_role
    return mask


def _without_waiting(dfg: Dfg, dur_ns: np.ndarray, slow: Sequence[Rank]) -> np.ndarray:
    """`dur_ns` without the time that calls of other ranks wait for a `slow` rank (`held_ns`).

    Such a call still takes no less than its counterpart on the slow rank.
    """
    waits = held_ns(dfg, slow)
    # One number for step and key: counterparts in the same step.
    known = dfg.step.astype(np.int64) * (int(dfg.key.max()) + 1) + dfg.key
    own, waiting = (dfg.key >= 0) & np.isin(dfg.rank, slow), np.flatnonzero((waits > 0) & ~np.isin(dfg.rank, slow))
    own &= dfg.of(Cls.ALLOCATOR, Cls.LAUNCH)
    medians, found = medians_of(known[own], dur_ns[own], known[waiting])
    least = np.where(found, np.minimum(medians, dfg.dur_ns[waiting]), 0)
    dur = dur_ns.copy()
    dur[waiting] = np.minimum(dur[waiting], np.maximum(dfg.dur_ns[waiting] - waits[waiting], least))
    return dur


def _made_longer(dfg: Dfg, after_ns: np.ndarray) -> np.ndarray:
    """Mask of what a lane does in a step, where `after_ns` would add to it instead of taking away, bool[N]."""
    changed = np.flatnonzero(after_ns != dfg.dur_ns)
    visit = dfg.lane[changed].astype(np.int64) * (int(dfg.step.max()) + 2) + dfg.step[changed] + 1
    _, which = np.unique(visit, return_inverse=True)
    mask = np.zeros(dfg.nodes, bool)
    mask[changed] = np.bincount(which, weights=(after_ns - dfg.dur_ns)[changed])[which] > 0
    return mask


TERM = Kind(
    name="straggler",
    examples=("straggler=fix", "straggler[work]=fix"),
    meaning="Ranks that significantly delay the others take as long as their peers for the same work, including input "
    "data. Brackets limit this to one kind of work: `host_gap` (time without a recorded operation), `compute`, `cpu` "
    "(CPU work and launches), `allocator`, `work` (all of these), or `data` (input data).",
    needs="Two or more ranks, matched collectives, and counterparts on other ranks for 90 % of the slow ranks' time.",
    assumes="Stages of a pipeline that compute different layers are not peers (see `balance[stages]`).",
    effect=Edit(TermPhase.MEND, _mended),
    value=word("fix"),
    argument=_classes,
    argument_is_optional=True,
)
