"""Slow ranks and their cost: arrivals at collectives, and the delay that each rank alone causes."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from esprof.core.statistics import binomial_test, trimmed_mean, trimmed_test
from esprof.core.types import Rank
from esprof.replay import rules
from esprof.replay.dfg import Cls, Dfg, LaneKind
from esprof.replay.engine import longest_path
from esprof.replay.engine.timeline import covered_ns, union_ns
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


@dataclass(frozen=True)
class Arrivals:
    """Arrivals of each rank at each of C matched collectives."""

    ranks: tuple[Rank, ...]
    collective: np.ndarray
    """Number of each collective, int64[C]."""
    step: np.ndarray
    """Step that launched each collective, int64[C]."""
    arrived_ns: np.ndarray
    """Recorded arrival of each rank, ns since the graph's `t0_ns`, float64[C, ranks]; NaN if the rank is not a member."""

    def __len__(self) -> int:
        return len(self.step)

    def last(self) -> np.ndarray:
        """Column of the rank that arrived last at each collective, shape (C,)."""
        column: np.ndarray = np.argmax(np.nan_to_num(self.arrived_ns, nan=-np.inf), axis=1)
        return column

    def lateness(self) -> np.ndarray:
        """(second last arrival, last arrival) of each collective, ns, shape (C, 2); equal where only one rank arrived."""
        # Ranks that did not arrive sort first.
        order = np.sort(np.nan_to_num(self.arrived_ns, nan=-np.inf), axis=1)
        # With one arrival (the other ranks launched it in another step) nobody is late.
        return np.stack([np.where(np.isfinite(order[:, -2]), order[:, -2], order[:, -1]), order[:, -1]], axis=1)

    def late_ns(self) -> np.ndarray:
        """Time that all other ranks waited for each rank alone, ns, int64[ranks].

        Overlapping delays count once, however many collectives were outstanding.
        """
        spans, last = self.lateness(), self.last()
        return np.array([union_ns(*spans[last == column].T) for column in range(len(self.ranks))], np.int64)


def arrivals(dfg: Dfg, steps: tuple[int, ...]) -> Arrivals:
    """Arrivals at the collectives that were launched in `steps`."""
    nodes = np.flatnonzero((dfg.collective >= 0) & dfg.of(Cls.WAIT) & (dfg.rank >= 0) & np.isin(dfg.step, steps))
    numbers, row = np.unique(dfg.collective[nodes], return_inverse=True)
    arrived = np.full((len(numbers), len(dfg.marks.ranks)), np.nan)
    arrived[row, np.searchsorted(dfg.marks.ranks, dfg.rank[nodes])] = dfg.recorded_ns[nodes]
    step = np.zeros(len(numbers), np.int64)
    step[row] = dfg.step[nodes]
    return Arrivals(dfg.marks.ranks, numbers.astype(np.int64), step, arrived)


def held_ns(dfg: Dfg, by: Sequence[Rank]) -> np.ndarray:
    """Time that allocator and launch calls wait for one of the ranks `by`, ns, int64[N]; 0 for other nodes.

    An allocator call waits until its device has completed pending work, which may be a collective that waits for other
    ranks: the overlap of a long call with such a wait is not the rank's own work. Of a long launch, all time beyond
    `MAX_BLOCKING_OWN` counts as waiting: it waits for room in the queue after work that may have been launched before the
    first step (docs/explanation/replay.md §4).
    """
    seen = arrivals(dfg, dfg.marks.steps)
    is_long = dfg.dur_ns > rules.MIN_WAITING_CALL
    calls = np.flatnonzero(dfg.of(Cls.ALLOCATOR) & is_long)
    found = np.where(dfg.of(Cls.LAUNCH) & is_long, dfg.dur_ns - rules.MAX_BLOCKING_OWN, 0)
    if not len(seen) or not len(calls):
        return found
    last = seen.last()
    until = seen.arrived_ns[np.arange(len(seen)), last]
    collective, column = np.nonzero(np.isin(seen.ranks, by)[last][:, None] & (seen.arrived_ns < until[:, None]))
    # Each rank gets its own section of one time axis, so that calls and waits of different ranks never overlap.
    span = int((dfg.recorded_ns + dfg.dur_ns).max()) + 1
    begin, end = column * span + seen.arrived_ns[collective, column], column * span + until[collective]
    start = np.searchsorted(seen.ranks, dfg.rank[calls]) * span + dfg.recorded_ns[calls]
    within = covered_ns(begin, end, start + dfg.dur_ns[calls]) - covered_ns(begin, end, start)
    found[calls] = np.minimum(within.astype(np.int64), dfg.dur_ns[calls] - rules.MAX_BLOCKING_OWN)
    return found


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
        shared = np.append(np.bincount(self.roles)[self.roles] > 1, False)
        mask: np.ndarray = shared[
            np.where(self.dfg.rank >= 0, np.searchsorted(self.dfg.marks.ranks, self.dfg.rank), -1)
        ]
        return mask

    @cached_property
    def excess_ns(self) -> np.ndarray:
        """Duration of each node beyond `usual_ns`, ns, float64[N]; negative for shorter nodes, 0 for waits."""
        excess: np.ndarray = self.work_ns - self.usual_ns
        return np.where(self.dfg.of(Cls.HOST_GAP), 0, excess) if self.gaps_wait else excess

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
        dfg, count = self.dfg, len(self.steps)
        within = np.flatnonzero(np.isin(dfg.step, self.steps) & (dfg.lane >= 0))
        visit = dfg.lane[within].astype(np.int64) * count + np.searchsorted(self.steps, dfg.step[within])
        visits = np.bincount(visit, self.excess_ns[within], minlength=len(dfg.lanes) * count)
        column = np.repeat(np.searchsorted(dfg.marks.ranks, [lane.rank for lane in dfg.lanes]), count)
        beyond = np.bincount(column, np.maximum(visits, 0), minlength=len(dfg.marks.ranks))
        most = np.argsort(-beyond, kind="stable")[:MAX_SUSPECTS]
        return [int(rank) for rank in most if beyond[rank] > 0]

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
        extra, of_rank = self._extra_by_category(suspects, only)
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
        most: np.ndarray = more > self.delay_ns / 2
        return most & (more > 0)
