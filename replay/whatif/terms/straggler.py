"""`straggler=fix`: slow ranks as fast as their peers."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from esprof.core import readable
from esprof.core.errors import UsageError
from esprof.core.statistics import medians_of
from esprof.core.types import Rank
from esprof.replay.dfg import Cls, Dfg
from esprof.replay.ranks.arrivals import held_ns
from esprof.replay.ranks.blame import Blame, NewDurations
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
        now = now.mended(mended.blame).noted(mended.note)
    return now


class Mended(NamedTuple):
    """Ranks of which the slow ones are as fast as their peers, and what should be said of it."""

    blame: Blame
    note: str

    @property
    def dfg(self) -> Dfg:
        return self.blame.dfg


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
    if not slow:
        # Where ranks do different things, none can be called slow.
        _matched_share(blame.sums.matched_ns, "ranks'")
        return Mended(blame, _nothing(blame))
    mine = blame.of_ranks(slow)
    is_more = _is_more(blame, mine, slow)
    share = _matched_share(mine.matched_ns(_others_ns(mine, slow, is_more=is_more), slow), "slow ranks'")
    changes, known, took = [], list[np.ndarray](), list[np.ndarray]()
    # The other ranks change only in how long they wait for the slow ones.
    for part in blame.parts() if blame.gaps_wait else (mine,):
        dur = _mended_ns(part, slow, classes, is_more=is_more)
        changes.append(NewDurations.to(part, dur))
        calls = (part.dfg.key >= 0) & np.isin(part.dfg.rank, slow) & part.dfg.of(Cls.ALLOCATOR, Cls.LAUNCH)
        known.append(_in_step(part.dfg, calls))
        took.append(dur[calls])
    if classes is None or Cls.ALLOCATOR in classes:
        changes.append(_without_waiting(blame, slow, np.concatenate(known), np.concatenate(took)))
    covered = f"{100 * share:.0f} % of their operations have a counterpart on other ranks, by time"
    return Mended(blame.changed(changes), f"{readable.ranks(slow)} as fast as the others; {covered}")


def _matched_share(matched_ns: np.ndarray, whose: str) -> float:
    """The share of the time that has counterparts. Raises Declined where it is too small."""
    share = float(matched_ns[0] / max(1.0, matched_ns[1]))
    if share < MIN_MATCHED_SHARE:
        raise Declined(f"only {100 * share:.0f} % of the {whose} time has a counterpart on the other ranks")
    return share


def _mended_ns(blame: Blame, slow: Sequence[Rank], classes: tuple[Cls, ...] | None, *, is_more: bool) -> np.ndarray:
    """Duration of each node where the `slow` ranks are as fast as their peers, int64[N]. Other ranks still wait for them
    in calls."""
    dfg, others = blame.dfg, _others_ns(blame, slow, is_more=is_more)
    found = blame.peers.own & np.isin(dfg.rank, slow) & ~np.isnan(others)
    if classes is not None:
        found &= dfg.of(*classes)
    dur = dfg.dur_ns.copy()
    dur[found] = np.rint(others[found]).astype(np.int64)
    if blame.gaps_wait:  # The other ranks no longer wait for the slow ones.
        waits = dfg.of(Cls.HOST_GAP) & blame.peers.own & (dfg.dur_ns > blame.peers.others)
        dur[waits] = np.rint(blame.peers.others[waits]).astype(np.int64)
    # An allocator call stops its device until all work on it is done: on the peers it may take long because they wait for
    # this rank.
    spared = (dfg.of(Cls.ALLOCATOR) & (dur > dfg.dur_ns)) | _made_longer(dfg, dur)
    dur[spared] = dfg.dur_ns[spared]
    return dur


def _others_ns(blame: Blame, slow: Sequence[Rank], *, is_more: bool) -> np.ndarray:
    """Median over the other ranks for each node, ns, float64[N]; NaN without counterparts.

    If they do more (`_is_more`), what no other rank does takes no time.
    """
    others = _as_slow_as_the_rest(blame, slow)
    return np.where(_only_here(blame, slow), 0, others) if is_more else others


def _only_here(blame: Blame, slow: Sequence[Rank]) -> np.ndarray:
    """Mask of what the `slow` ranks do and no other rank of their role does at all, bool[N]."""
    mask: np.ndarray = _compared(blame) & np.isin(blame.dfg.rank, slow) & np.isnan(blame.peers.others)
    return mask


def _compared(blame: Blame) -> np.ndarray:
    """Mask of the own work of ranks that share their role, in steady-state steps, bool[N]."""
    mask: np.ndarray = blame.peers.own & blame.shares_role & np.isin(blame.dfg.step, blame.steps)
    return mask


def _is_more(blame: Blame, mine: Blame, slow: Sequence[Rank]) -> bool:
    """Whether what only the `slow` ranks do, whose nodes are in `mine`, is more work: mended, it takes no time.

    It is not where the others have operations that the slow ranks lack: then they do the same in another way, as unlike
    devices do.
    """
    dfg = mine.dfg
    only_ns = float(dfg.dur_ns[_only_here(mine, slow)].sum()) / len(slow)
    of_name = blame.sums.of_name_ns.copy()
    of_name[dfg.name[_compared(mine) & np.isin(dfg.rank, slow)]] = 0
    lacking_ns = float(of_name.sum()) / max(1, len(dfg.marks.ranks) - len(slow))
    return lacking_ns <= (1 - MIN_MATCHED_SHARE) * only_ns


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


def _without_waiting(blame: Blame, slow: Sequence[Rank], known: np.ndarray, took_ns: np.ndarray) -> NewDurations:
    """The calls of other ranks without the time that they wait for a `slow` rank (`held_ns`).

    Such a call still takes no less than its counterparts on the slow ranks: `known` calls (`_in_step`) that take `took_ns`.
    """
    dfg = blame.dfg
    waits = held_ns(dfg, slow)
    nodes = np.flatnonzero((waits > 0) & ~np.isin(dfg.rank, slow))
    medians, found = medians_of(known, took_ns, _in_step(dfg, nodes))
    least = np.where(found, np.minimum(medians, dfg.dur_ns[nodes]), 0)
    return NewDurations(
        blame, nodes, np.minimum(dfg.dur_ns[nodes], np.maximum(dfg.dur_ns[nodes] - waits[nodes], least))
    )


def _in_step(dfg: Dfg, nodes: np.ndarray) -> np.ndarray:
    """A number that counterparts in the same step share, for each of `nodes`."""
    numbers: np.ndarray = (dfg.step[nodes].astype(np.int64) << 32) + dfg.key[nodes]
    return numbers


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
