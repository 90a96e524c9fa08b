"""The choice of an option for each bucket that ends soonest, with how far it may be from the best.

Heuristics first: Espresso's order (EuroSys 2023, §4.4.2) with all options tried for each bucket, repeated from several
starts, and changes of two buckets at once. Their end bounds an exact search, which goes through the buckets in order and
keeps of all partial choices only those that no other one beats everywhere (label setting, Pareto dominance): five numbers
tell all that later buckets need to know, and no later end gains from a larger one. Where too many would be kept, the most
hopeful go on, and in a second pass those that differ little are put together, by the least of each, which gives a lower
bound. What all buckets together may lose is shared out among them in the same search, as L-GreCo does (Markov et al. 2022).
"""

from dataclasses import dataclass
from itertools import product
from typing import Literal, NamedTuple

import numpy as np

from esprof.analyzers.advisors.compression.dominance import undominated
from esprof.analyzers.advisors.compression.timeline import BucketTimeline, Costs
from esprof.core.compiled import compiled_in_place

GapKind = Literal["exact", "lower_bound"]

_MAX_SWEEPS = 20
_KEPT, _MIN_KEPT_OF_A_BUCKET = 14_000, 100
"""Partial choices that are kept in all, and side by side at least: so that a search takes no more than some seconds."""
_PARTS = {1: 1, 2: 8, 3: 6, 4: 4}
"""How finely so many things are weighed against one another (`_simplex`)."""
_FOR_BOUND = 4
"""How many times as many are kept for the lower bound, which is found once."""
_MAX_ROUNDS = 2
"""How often a search that could not keep all looks for a better choice."""
_BEGIN = np.zeros((1, 5))
"""`_Kept.ends` before the first bucket."""
_MAX_CELLS = 1 << 12
"""In each of the five columns, for a cell's number to fit into 64 bits."""
_MAX_PAIR_STEPS = 2e7
"""Steps of the recurrence that changes of two buckets at once may take."""
_ROUNDING_SHARE = 1e-12
"""Relative: two sums of the same numbers may differ by this."""


@dataclass(frozen=True)
class Found:
    """A choice, and what is known of better ones."""

    choice: np.ndarray
    end_ns: float
    least_ns: float
    """No choice ends sooner."""

    @property
    def gap(self) -> float:
        """By how much the choice may end later than the best one, relative."""
        return max(0.0, self.end_ns / self.least_ns - 1) if self.least_ns > 0 else 0.0

    @property
    def kind(self) -> GapKind:
        return "exact" if self.end_ns <= self.least_ns * (1 + 1e-9) else "lower_bound"


def search(timeline: BucketTimeline, sizes: np.ndarray, kept: int = _KEPT) -> Found:
    """The choice that ends soonest of those that lose no more than they may; `sizes` are those of the buckets, by which
    heuristics order them. About `kept` partial choices are looked at: more find more, and prove more."""
    most_kept = max(min(_MIN_KEPT_OF_A_BUCKET, kept), kept // len(sizes))
    good = heuristic(timeline, sizes)
    end, is_whole = timeline.end_ns(good), False
    for _ in range(_MAX_ROUNDS):
        better, is_whole = _explored(timeline, end, most_kept)
        if better is not None and timeline.end_ns(better) < end:
            good = _swept(timeline, better, sizes)
            end = timeline.end_ns(good)
        if is_whole or better is None:
            break
    return Found(good, end, end if is_whole else _lower_bound_ns(timeline, end, _FOR_BOUND * most_kept))


# Heuristics


def algorithm_1(timeline: BucketTimeline, sizes: np.ndarray) -> np.ndarray:
    """Espresso's Algorithm 1, from option 0 for all: each bucket in turn gets the option with which all ends soonest. The
    largest come first, of equal ones those that are ready last; who is sent before the link waits stays as it is."""
    choice = np.zeros(len(sizes), np.int64)
    left = ~timeline.before_bubble(choice)
    for bucket in _largest_first(sizes):
        if left[bucket]:
            choice = timeline.best_move(choice, np.arange(len(sizes)) == bucket)
            left &= (choice > 0) | ~timeline.before_bubble(choice)
    return choice


def heuristic(timeline: BucketTimeline, sizes: np.ndarray) -> np.ndarray:
    """The best of Algorithm 1, of one option for all and of what loses least, each improved until no change of one or two
    buckets helps."""
    count, options = timeline.shape
    starts = [algorithm_1(timeline, sizes), *(np.full(count, option) for option in range(options))]
    starts.append(np.argmin(timeline.costs.lost, axis=1))
    good = min((_swept(timeline, start, sizes) for start in starts), key=timeline.end_ns)
    return _with_pairs(timeline, good, sizes)


def _largest_first(sizes: np.ndarray) -> list[int]:
    order: list[int] = np.lexsort((-np.arange(len(sizes)), -np.asarray(sizes))).tolist()
    return order


def _swept(timeline: BucketTimeline, choice: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """`choice` improved, one bucket after the other, until that no longer helps."""
    order = _largest_first(sizes)
    for _ in range(_MAX_SWEEPS):
        before = choice
        for bucket in order:
            choice = timeline.best_move(choice, np.arange(len(sizes)) == bucket)
        if np.array_equal(before, choice):
            break
    return choice


def _with_pairs(timeline: BucketTimeline, choice: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """`choice` improved by changes of one bucket to which a change of another is the best answer."""
    count, options = timeline.shape
    if (count * options) ** 2 * count > _MAX_PAIR_STEPS:
        return choice
    end = timeline.end_ns(choice)
    for bucket in _largest_first(sizes):
        for option in range(options):
            changed = choice.copy()
            changed[bucket] = option
            changed = timeline.best_move(changed, np.arange(count) != bucket)
            if (better := timeline.end_ns(changed)) < end:
                choice = _swept(timeline, changed, sizes)
                end = min(better, timeline.end_ns(choice))
    return choice


# The exact search


@dataclass(frozen=True)
class _Kept:
    """Partial choices after some bucket, K of them."""

    ends: np.ndarray
    """Of each, ns: by how much it has held up the computation, when the host's CPUs are done, when the link has sent all,
    when all is decoded; and what it has lost. float64[K, 5]."""
    parent: np.ndarray
    """Position of what it continues, among those kept one bucket earlier, int64[K]."""
    option: np.ndarray
    """int64[K]."""

    def only(self, which: np.ndarray) -> "_Kept":
        return _Kept(self.ends[which], self.parent[which], self.option[which])


def _explored(timeline: BucketTimeline, good_ns: float, most_kept: int) -> tuple[np.ndarray | None, bool]:
    """(a choice that ends before `good_ns`, or None; whether none ends sooner than it, or than `good_ns`).

    Where too many partial choices would be kept, those that may end soonest go on.
    """
    costs, rest, is_whole = timeline.costs, _rest(timeline.costs), True
    kept = [_Kept(_BEGIN, np.zeros(1, np.int64), np.zeros(1, np.int64))]
    for bucket in range(len(costs.ready)):
        more, least = _hopeful(rest, bucket, kept[-1].ends, good_ns)
        if not len(least):
            return None, is_whole
        if len(least) > most_kept:
            more, is_whole = more.only(np.argpartition(least, most_kept)[:most_kept]), False
        kept.append(more)
    return _traced(kept, int(np.argmin(_last_end(costs, kept[-1].ends)))), is_whole


def _lower_bound_ns(timeline: BucketTimeline, good_ns: float, most_kept: int) -> float:
    """No choice ends sooner than this; `good_ns` if none is better than that."""
    costs, rest, ends = timeline.costs, _rest(timeline.costs), _BEGIN
    for bucket in range(len(costs.ready)):
        more, least = _hopeful(rest, bucket, ends, good_ns)
        if not len(least):
            return good_ns
        ends = _merged(more.ends, most_kept)
    return min(float(_last_end(costs, ends).min()), good_ns)


def _hopeful(rest: "_Rest", bucket: int, ends: np.ndarray, good_ns: float) -> tuple[_Kept, np.ndarray]:
    """(what continues partial choices by an option of the bucket, may end before `good_ns` and is beaten by no other; when
    each ends at the earliest)."""
    useful = _useful(rest.costs, bucket)
    size = len(ends) * len(useful)
    more = _Kept(np.empty((size, ends.shape[1])), np.empty(size, np.int64), np.empty(size, np.int64))
    least = np.empty(size)
    limit = good_ns * (1 - _ROUNDING_SHARE)
    count = _continue(rest, bucket, useful, ends, limit, more.ends, more.parent, more.option, least)
    stay = undominated(more.ends[:count]) if count else np.zeros(0, np.int64)
    return more.only(stay), least[stay]


def _last_end(costs: Costs, ends: np.ndarray) -> np.ndarray:
    """When all is synchronised and computed, float64[K]."""
    last: np.ndarray = np.maximum(ends[:, 3], costs.computed + ends[:, 0])
    return last


@compiled_in_place
def _continue(
    rest: "_Rest",
    bucket: int,
    useful: np.ndarray,
    ends: np.ndarray,
    limit: float,
    more: np.ndarray,
    parent: np.ndarray,
    option: np.ndarray,
    least: np.ndarray,
) -> int:
    """Each partial choice with each useful option of the bucket, as far as it may end before `limit`: fill the rest of the
    arguments, as in `_Kept`, and `least`, when each ends at the earliest; returns how many there are."""
    costs, count, is_last = rest.costs, 0, bucket + 1 == len(rest.costs.ready)
    for row in range(len(ends)):
        for one in useful:
            stalled = ends[row, 0] + costs.stall[bucket, one]
            moment = costs.ready[bucket] + stalled
            hosted = max(ends[row, 1], moment) + costs.host[bucket, one]
            sent = max(ends[row, 2], hosted) + costs.link[bucket, one]
            done = max(ends[row, 3], sent) + costs.after[bucket, one]
            lost = ends[row, 4] + costs.lost[bucket, one]
            if not is_last:
                # Nobody needs the host or the link until the next bucket is ready: when they were free before does not
                # matter.
                ready = costs.ready[bucket + 1] + stalled
                hosted, sent = max(hosted, ready), max(sent, ready)
                done = max(done, sent)
            if lost + rest.lost[bucket + 1] > costs.may_lose:
                continue
            end = _least_end(rest, bucket, stalled, hosted, sent, done, limit)
            if end < limit:
                more[count, 0], more[count, 1], more[count, 2], more[count, 3] = stalled, hosted, sent, done
                more[count, 4], parent[count], option[count], least[count] = lost, row, one, end
                count += 1
    return count


@compiled_in_place
def _least_end(
    rest: "_Rest", bucket: int, stalled: float, hosted: float, sent: float, done: float, limit: float
) -> float:
    """When all can end at the earliest after `bucket`, as far as that is below `limit`.

    All ends no sooner than when any one of the four is done with all that is left for it, and so no sooner than any weighed
    mean of these: of the sum in such a mean each bucket adds at least its least.
    """
    computed = rest.costs.computed
    end: float = max(done, sent + rest.link[bucket + 1], stalled + max(rest.sent[bucket + 1], computed))
    for way in range(len(rest.weights)):
        if end >= limit:
            break
        weights = rest.weights[way]
        mean = weights[0] * (stalled + computed) + weights[1] * hosted + weights[2] * sent + weights[3] * done
        end = max(end, mean + rest.weighed[way, bucket + 1])
    return end


def _useful(costs: Costs, bucket: int) -> np.ndarray:
    """The options of a bucket to which no other one is preferable in all respects."""
    columns = (costs.stall, costs.host, costs.link, costs.after, costs.lost)
    table = np.stack([column[bucket] for column in columns], axis=1)
    return np.sort(undominated(table))


class _Rest(NamedTuple):
    """What the buckets from each one on take at least."""

    costs: Costs
    link: np.ndarray
    """Of the link, float64[N + 1]."""
    sent: np.ndarray
    """When that is done at the earliest if nothing stalls, float64[N + 1]."""
    weights: np.ndarray
    """W ways to weigh stalls, the host, the link and what is left after it, float64[W, 4]; each adds up to 1."""
    weighed: np.ndarray
    """The weighed sum of what these take, float64[W, N + 1]."""
    lost: np.ndarray
    """What they lose, float64[N + 1]."""


def _rest(costs: Costs) -> _Rest:
    table = np.stack([costs.stall, costs.host, costs.link, costs.after])
    least = np.min(costs.link, axis=1)
    link = _from_each_on(least)
    sent = np.append(np.maximum.accumulate((costs.ready + link[:-1])[::-1])[::-1], 0.0)
    weights = _simplex(np.array([part.any() for part in table]))
    weighed = np.tensordot(weights, table, axes=1).min(axis=2)
    lost = _from_each_on(costs.lost.min(axis=1)) * (1 - _ROUNDING_SHARE)
    return _Rest(costs, link, sent, weights, np.apply_along_axis(_from_each_on, 1, weighed), lost)


def _from_each_on(values: np.ndarray) -> np.ndarray:
    """The sum of the values from each one on, and 0, float64[N + 1]."""
    return np.append(np.cumsum(values[::-1])[::-1], 0.0)


def _simplex(used: np.ndarray) -> np.ndarray:
    """Weights of four things, those of unused ones (bool[4]) 0, on a grid over all that add up to 1, float64[W, 4]."""
    if not used.any():
        return np.array([[0.0, 0.0, 1.0, 0.0]])
    parts = _PARTS[int(used.sum())]
    grid = np.array([one for one in product(range(parts + 1), repeat=4) if sum(one) == parts])
    found: np.ndarray = grid[~grid[:, ~used].any(axis=1)] / parts
    return found


def _merged(ends: np.ndarray, most: int) -> np.ndarray:
    """At most so many rows, or one, each no larger in any column than those that it stands for: those of a cell of a grid
    that is as fine as that allows."""
    low, span = ends.min(axis=0), np.ptp(ends, axis=0)
    cells = min(1 << most.bit_length(), _MAX_CELLS)
    while len(ends) > most and cells > 1:
        cells //= 2
        grid = np.minimum((ends - low) / np.where(span > 0, span, 1.0) * cells, cells - 1).astype(np.int64)
        cell = grid @ np.array([cells**column for column in range(grid.shape[1])])
        if cells == 1 or len(np.unique(cell)) <= most:
            order = np.argsort(cell, kind="stable")
            borders = np.flatnonzero(np.diff(cell[order], prepend=-1))
            ends = np.minimum.reduceat(ends[order], borders, axis=0)
    return ends


def _traced(kept: list[_Kept], last: int) -> np.ndarray:
    """The options along the way to the partial choice `last` of the last bucket."""
    found = []
    for one in kept[:0:-1]:
        found.append(int(one.option[last]))
        last = int(one.parent[last])
    return np.array(found[::-1], np.int64)
