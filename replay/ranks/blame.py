"""Slow ranks and their cost: the delay that each rank alone causes."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from esprof.core.statistics import binomial_test, trimmed_mean, trimmed_test
from esprof.core.types import Rank
from esprof.replay.dfg import Cls, Dfg, LaneKind
from esprof.replay.engine import longest_path
from esprof.replay.ranks.arrivals import arrivals, held_ns
from esprof.replay.ranks.counterparts import Counterparts, counterparts, roles_of

MIN_BLAME_RATIO = 1.4
"""A rank is slow when it bears more than this many times an even share of the blame: of two ranks, seven tenths."""

MIN_SHARE_OF_DELAY = 0.8
"""Slow ranks are listed, longest delay first, until mending them shortens the steps by this share of mending all."""

MAX_CHANCE = 0.01
"""Significance level of the test that a rank is late in more steps than chance explains."""

MIN_STEPS_FOR_TEST = 5
"""Least number of steps with which the test can be significant for any number of ranks."""

MAX_SUSPECTS = 16
"""Number of ranks whose delay is replayed, those with most excess work: bounds the number of replays for large jobs."""

MIN_CATEGORY_SHARE_OF_STEP = 0.01
"""Least excess time of a category of work, as a share of a step, for its rank to count as slow."""

MIN_DEVIATIONS = 3.0
"""Number of standard deviations from which on excess work is more than scatter."""


class Sums(NamedTuple):
    """Sums over the nodes of some ranks of a job; those of parts of it add up."""

    beyond_ns: np.ndarray
    """Excess work of each rank, of the lanes and steps that have any, ns, float64[ranks]."""
    clear_ns: np.ndarray
    """As `Blame.clear_excess_ns`."""
    of_name_ns: np.ndarray
    """Own work of each name in all steady-state steps, of ranks that share their role, without gaps, ns, float64[names]."""
    matched_ns: np.ndarray
    """As `Blame.matched_ns` of all ranks."""


class NewDurations(NamedTuple):
    """What nodes take instead."""

    of: "Blame"
    """The nodes are those of its graph."""
    nodes: np.ndarray
    dur_ns: np.ndarray

    @classmethod
    def to(cls, blame: "Blame", dur_ns: np.ndarray) -> "NewDurations":
        """The change of a graph to these durations."""
        nodes = np.flatnonzero(dur_ns != blame.dfg.dur_ns)
        return cls(blame, nodes, dur_ns[nodes])


@dataclass(frozen=True)
class Blame:
    """Ranks that delay the `steps` of a graph, and by how much; computed lazily.

    The blame of a rank is the delay that it alone would cause: the steps with its own work as recorded and all other work
    at its counterparts' median, minus the steps with all work at the median. Neighbours of a slow rank arrive late without
    having more work, and so bear no blame; nor does work that a backlog hides (docs/explanation/replay.md §4).
    """

    dfg: Dfg
    steps: tuple[int, ...]
    gaps_wait: bool = False
    """Whether gaps between operations count as waits for other ranks, not as a rank's own time."""

    @cached_property
    def roles(self) -> np.ndarray:
        """The role of each rank (`roles_of`)."""
        return roles_of(self.dfg)

    @cached_property
    def work_ns(self) -> np.ndarray:
        """Duration of each node without waiting for other ranks inside calls (`held_ns`), ns, int64[N]."""
        work: np.ndarray = self.dfg.dur_ns - held_ns(self.dfg, self.dfg.marks.ranks)
        return work

    @cached_property
    def peers(self) -> Counterparts:
        """Duration of the same work on other ranks."""
        return counterparts(self.dfg, self.work_ns, self.roles)

    @cached_property
    def usual_ns(self) -> np.ndarray:
        """Duration of each node in a job whose ranks are all alike, ns, float64[N].

        It is 0 for work that no other rank of the same role has.
        """
        alone = self.peers.own & np.isnan(self.peers.median) & self.shares_role
        usual = np.where(np.isnan(self.peers.median), self.work_ns, self.peers.median)
        return np.where(alone, 0, usual)

    @property
    def shares_role(self) -> np.ndarray:
        """Mask of the nodes of ranks that share their role with another, bool[N]."""
        ranks = np.searchsorted(self.dfg.marks.ranks, [lane.rank for lane in self.dfg.lanes])
        shared = (np.bincount(self.roles)[self.roles] > 1)[ranks]
        # JOIN_LANE is -1 and reads the last entry.
        mask: np.ndarray = np.append(shared, False)[self.dfg.lane]
        return mask

    @cached_property
    def excess_ns(self) -> np.ndarray:
        """Duration of each node beyond `usual_ns`, ns, float64[N]; negative for shorter nodes, 0 for waits."""
        excess: np.ndarray = self.work_ns - self.usual_ns
        return np.where(self.dfg.of(Cls.HOST_GAP), 0, excess) if self.gaps_wait else excess

    # A job of many ranks has its nodes in parts.

    def parts(self) -> "Iterable[Blame]":
        """The same on the nodes of some ranks at a time, which together are those of all ranks."""
        return (self,)

    def of_ranks(self, ranks: Collection[Rank]) -> "Blame":
        """The same on the nodes of these ranks, if not of more."""
        return self

    def changed(self, changes: Iterable[NewDurations]) -> "Blame":
        """The comparison of ranks that take this time instead."""
        dur = self.dfg.dur_ns.copy()
        for change in changes:
            dur[change.nodes] = change.dur_ns
        return replace(self, dfg=replace(self.dfg, dur_ns=dur))

    @cached_property
    def sums(self) -> Sums:
        """Over all nodes."""
        dfg = self.dfg
        named = self.peers.own & self.shares_role & np.isin(dfg.step, self.steps) & ~dfg.of(Cls.HOST_GAP)
        of_name = np.bincount(dfg.name[named], dfg.dur_ns[named], len(dfg.names))
        matched = self.matched_ns(self.peers.others, dfg.marks.ranks)
        return Sums(self._beyond_ns(), self.clear_excess_ns(), of_name, matched)

    def matched_ns(self, others_ns: np.ndarray, ranks: Sequence[Rank]) -> np.ndarray:
        """(time of the nodes of `ranks` that have counterparts, which take `others_ns`, float64[N]; of all that can have
        some), in all steady-state steps, ns, float64[2]."""
        dfg = self.dfg
        # A step that was lost on the other ranks has counterparts nowhere.
        mine = self.peers.own & np.isin(dfg.rank, ranks) & np.isin(dfg.step, self.steps)
        # What only one stage of a pipeline computes has nothing to be compared with.
        bound = dfg.of(Cls.COMPUTE, Cls.CONTENTION, Cls.ALLOCATOR, Cls.HOST_GAP)
        unlike = bound & np.isnan(self.peers.others) & ~self.shares_role
        of = (mine & ~np.isnan(others_ns), mine & ~unlike)
        return np.array([dfg.dur_ns[nodes].sum() for nodes in of], np.float64)

    @cached_property
    def late_ns(self) -> np.ndarray:
        """Delay that each rank alone causes in each of `steps`, ns, int64[steps, ranks]."""
        late = np.zeros((len(self.steps), len(self.dfg.marks.ranks)), np.int64)
        suspects = self._suspects()
        alike, alone = self._progress_alone_ns(suspects)
        late[:, suspects] = np.maximum(alone - alike[:, None], 0)
        return late

    def _progress_alone_ns(self, suspects: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """Growth of the end of all work launched so far, ns, where the work of all ranks is usual, int64[steps], and where
        that of all but one of the `suspects` (columns) is, int64[steps, suspects]."""
        dfg, ranks = self.dfg, self.dfg.marks.ranks
        by_rank = np.argsort(dfg.rank, kind="stable")
        offsets = np.searchsorted(dfg.rank[by_rank], [*ranks, np.iinfo(np.int32).max])
        usual = np.rint(self.usual_ns).astype(np.int64)
        alone = np.zeros((len(self.steps), len(suspects)), np.int64)
        for at, column in enumerate(suspects):
            mine = by_rank[offsets[column] : offsets[column + 1]]
            dur = usual.copy()
            dur[mine] += np.rint(self.excess_ns[mine]).astype(np.int64)
            alone[:, at] = self._progress_ns(dur)
        return self._progress_ns(usual), alone

    @cached_property
    def delay_ns(self) -> np.ndarray:
        """Delay that each rank alone causes in a mean step, ns, float64[ranks]."""
        delay: np.ndarray = self.late_ns.mean(axis=0)
        return delay

    def _suspects(self) -> list[int]:
        """Columns of the ranks with most excess work, summed over lanes and steps; at most `MAX_SUSPECTS`."""
        beyond = self.sums.beyond_ns
        most = np.argsort(-beyond, kind="stable")[:MAX_SUSPECTS]
        return [int(rank) for rank in most if beyond[rank] > 0]

    def _beyond_ns(self) -> np.ndarray:
        """Excess work of each rank, of the lanes and steps that have any, ns, float64[ranks]."""
        dfg, count = self.dfg, len(self.steps)
        within = np.flatnonzero(np.isin(dfg.step, self.steps) & (dfg.lane >= 0))
        visit = dfg.lane[within].astype(np.int64) * count + np.searchsorted(self.steps, dfg.step[within])
        visits = np.bincount(visit, self.excess_ns[within], minlength=len(dfg.lanes) * count)
        column = np.repeat(np.searchsorted(dfg.marks.ranks, [lane.rank for lane in dfg.lanes]), count)
        return np.bincount(column, np.maximum(visits, 0), minlength=len(dfg.marks.ranks))

    @cached_property
    def step_ns(self) -> float:
        """Mean duration of `steps` as recorded, ns: growth of the end of all work launched so far."""
        return float(self._progress_ns(self.dfg.dur_ns).mean())

    @cached_property
    def _by_step(self) -> tuple[np.ndarray, np.ndarray]:
        """(nodes sorted by step, without those of loaders; index at which each step of the graph begins among them)."""
        nodes = np.flatnonzero((self.dfg.step >= 0) & ~self.dfg.on(LaneKind.LOADER))
        nodes = nodes[np.argsort(self.dfg.step[nodes], kind="stable")]
        return nodes, np.searchsorted(self.dfg.step[nodes], self.dfg.marks.steps)

    def _progress_ns(self, dur_ns: np.ndarray) -> np.ndarray:
        """Growth of the end of all work launched so far in each of `steps`, ns, int64[steps]."""
        marks = self.dfg.marks
        end = longest_path.ends(self.dfg, dur_ns, self.dfg.residual_ns)
        nodes, begin = self._by_step
        reached = np.maximum.accumulate([end[marks.first[0]].max(), *np.maximum.reduceat(end[nodes], begin)])
        progress: np.ndarray = np.diff(reached)[np.searchsorted(marks.steps, self.steps)]
        return progress

    @cached_property
    def slow_ranks(self) -> tuple[Rank, ...]:
        """Ranks that bear clearly more than an even share of the blame, if that is statistically significant: they have more
        work in more steps, or in the same category step after step, than chance explains.

        Empty without collectives, if different ranks are late in different steps, or if a single hiccup decides.
        """
        if not len(arrivals(self.dfg, self.steps)):
            return ()
        count = len(self.dfg.marks.ranks)
        # The trimmed mean ignores a hiccup of another rank; the mean includes delays that show in few steps.
        blames = (trimmed_mean(self.late_ns), self.delay_ns)
        slow = np.any([blamed > MIN_BLAME_RATIO * blamed.sum() / count for blamed in blames], axis=0)
        if slow.any():
            # Pipeline stages have unequal work in every step by design, and do not count as slow because of it.
            shared = np.bincount(self.roles)[self.roles] > 1
            certain = ~self._by_chance() | (self._is_last_again_and_again() & shared)
            persists = self.persist(np.flatnonzero(slow & shared & ~certain), among=count)
            # A sleep is never due to a stage's role, so all ranks are its counterparts.
            sleeps = self.persist(np.flatnonzero(slow & ~shared & ~certain), among=count, only=(Cls.HOST_GAP,))
            slow &= certain | persists | sleeps
            # A rank that delays the steps no more than one that is not slow is not slow either.
            slow &= np.any([blamed > blamed[~slow].max(initial=0) for blamed in blames], axis=0)
            slow = self._fewest(slow)
        return tuple(rank for rank, is_slow in zip(self.dfg.marks.ranks, slow, strict=True) if is_slow)

    def _fewest(self, slow: np.ndarray) -> np.ndarray:
        """The fewest of the `slow` ranks, longest delay first, that account for most of their delay, bool[ranks].

        Without some ranks, a step is as late as the latest of the others: a rank that is late in the shadow of a slower one
        is not listed.
        """
        worst_first = [rank for rank in np.argsort(-self.delay_ns, kind="stable").tolist() if slow[rank]]

        def left_ns(ranks: Sequence[int]) -> float:
            """Delay of a mean step without these ranks, ns."""
            return float(np.delete(self.late_ns, ranks, axis=1).max(axis=1, initial=0).mean())

        all_ns = left_ns([])
        most_ns = MIN_SHARE_OF_DELAY * (all_ns - left_ns(worst_first))
        counts = (count for count in range(1, len(worst_first)) if all_ns - left_ns(worst_first[:count]) >= most_ns)
        fewest = np.zeros_like(slow)
        fewest[worst_first[: next(counts, len(worst_first))]] = True
        return fewest

    def _by_chance(self) -> np.ndarray:
        """Whether each rank may have had more work in that many steps by chance, bool[ranks]."""
        # Delays show only at a rendezvous, possibly once in several steps, so the test counts steps with more work.
        guilty, count = self.has_more().sum(axis=0), len(self.dfg.marks.ranks)
        # With more than two ranks, MAX_CHANCE is divided among them. With few steps even all of them may be chance.
        by_chance = binomial_test(guilty, len(self.steps), 1 / count) > MAX_CHANCE * 2 / count
        mask: np.ndarray = by_chance & (guilty < len(self.steps))
        return mask

    def _is_last_again_and_again(self) -> np.ndarray:
        """Whether each rank delays the steps by more than any other rank step after step, bool[ranks].

        Tests the amount (`trimmed_test`) and the number of steps.
        """
        late, count = self.late_ns.astype(np.float64), len(self.dfg.marks.ranks)
        ranked = np.sort(late, axis=1)
        # Time that the others wait for this rank alone: its own delay minus the longest delay of another rank.
        alone = late - np.where(late == ranked[:, -1:], ranked[:, -2:-1], ranked[:, -1:])
        by_amount = trimmed_test(alone) < MAX_CHANCE * 2 / count
        by_number = binomial_test((alone > 0).sum(axis=0), len(self.steps), 1 / count) < MAX_CHANCE * 2 / count
        certain: np.ndarray = by_amount | by_number
        return certain

    def persist(self, suspects: np.ndarray, among: int = 2, only: tuple[Cls, ...] = tuple(Cls)) -> np.ndarray:
        """Whether a category of work of each rank takes noticeably longer than usual step after step, bool[ranks].

        A category is all nodes of a lane with one name, all with one class, or all nodes of the lane. Only ranks in the
        columns `suspects` and only these classes are tested; `among` is the number of ranks from which chance could pick.
        """
        ranks = np.array(self.dfg.marks.ranks)[suspects]
        extra, of_rank = self.of_ranks(ranks.tolist())._extra_by_category(suspects, only)
        # The significance level is divided among all categories of a rank, noticed or not.
        categories = np.bincount(of_rank, minlength=1)
        noticed = trimmed_mean(extra) > MIN_CATEGORY_SHARE_OF_STEP * self.step_ns
        extra, of_rank = extra[:, noticed], of_rank[noticed]
        certain = trimmed_test(extra) < MAX_CHANCE * 2 / among / categories[of_rank]
        found = np.zeros(len(self.dfg.marks.ranks), bool)
        found[of_rank[certain]] = True
        return found

    def _extra_by_category(self, suspects: np.ndarray, only: tuple[Cls, ...]) -> tuple[np.ndarray, np.ndarray]:
        """(excess time of each of P categories in each of `steps`, ns, float64[steps, P]; column of its rank, int[P])."""
        dfg = self.dfg
        of_suspects = np.isin(dfg.rank, np.array(dfg.marks.ranks)[suspects])
        nodes = np.flatnonzero(self.peers.own & dfg.of(*only) & np.isin(dfg.step, self.steps) & of_suspects)
        # One category per name, per class, and for the whole lane.
        kinds = len(dfg.names) + len(Cls) + 1
        kind = (dfg.name[nodes], len(dfg.names) + dfg.cls[nodes].astype(np.int64), np.full(len(nodes), kinds - 1))
        lane = dfg.lane[nodes].astype(np.int64) * kinds
        categories, category = np.unique(np.concatenate([lane + one for one in kind]), return_inverse=True)
        row = np.searchsorted(self.steps, dfg.step[nodes])
        extra = np.zeros((len(self.steps), len(categories)))
        np.add.at(extra, (np.tile(row, len(kind)), category), np.tile(self.excess_ns[nodes], len(kind)))
        # A lane with nodes of one name only has identical categories.
        extra, first = np.unique(extra, axis=1, return_index=True)
        ranks = [dfg.lanes[lane].rank for lane in (categories[first] // kinds).tolist()]
        return extra, np.searchsorted(dfg.marks.ranks, ranks)

    def has_more(self, besides: tuple[Cls, ...] = ()) -> np.ndarray:
        """Whether each rank had clearly more work than its counterparts in each of `steps`, bool[steps, ranks].

        The excess of a lane, without nodes of the classes `besides`, must exceed its scatter, to which the node with the
        largest excess does not contribute: a rank may be late by all of its work, or by one pause. The clear lanes of a rank
        together must explain most of the delay that the rank causes in a mean step.
        """
        more = self.clear_excess_ns(besides) if besides else self.sums.clear_ns
        most: np.ndarray = more > self.delay_ns / 2
        return most & (more > 0)

    def clear_excess_ns(self, besides: tuple[Cls, ...] = ()) -> np.ndarray:
        """Excess work of each rank in each of `steps`, of the lanes where it is clear, ns, float64[steps, ranks]."""
        dfg, steps, lanes = self.dfg, len(self.steps), len(self.dfg.lanes)
        nodes = np.flatnonzero(self.peers.own & ~dfg.of(*besides) & np.isin(dfg.step, self.steps))
        visit = np.searchsorted(self.steps, dfg.step[nodes]) * lanes + dfg.lane[nodes]
        excess, longest = self.excess_ns[nodes], np.zeros(steps * lanes)
        np.maximum.at(longest, visit, excess)
        beyond, squares = (np.bincount(visit, of, len(longest)) for of in (excess, excess**2))
        clear = (beyond > 0) & (beyond > MIN_DEVIATIONS * np.sqrt(np.maximum(squares - longest**2, 0)))
        # Threads of a rank hand work over to each other, so their excess is added.
        row, lane = np.nonzero(clear.reshape(steps, lanes))
        column = np.searchsorted(dfg.marks.ranks, [one.rank for one in dfg.lanes])[lane]
        more = np.zeros((steps, len(dfg.marks.ranks)))
        np.add.at(more, (row, column), beyond.reshape(steps, lanes)[row, lane])
        return more
