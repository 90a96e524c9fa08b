"""Search for the choice of one option per bucket that ends soonest, with a bound of its distance from the optimum.

Heuristics come first: Espresso's order (EuroSys 2023, §4.4.2) with all options tried for each bucket, repeated from several
starts, and changes of two buckets at once. Their end bounds an exact search over the buckets in order, which retains the
undominated partial choices (label setting, Pareto dominance). Five numbers per partial choice suffice: later buckets depend
on nothing else, and a larger number never makes a later end sooner. If there are too many partial choices, the most
promising are retained; a second pass then merges similar ones into their minimum, which gives a lower bound. The same
search distributes the allowed loss among the buckets, as in L-GreCo (Markov et al. 2022).
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
_MAX_PARTIAL, _MIN_PARTIAL_OF_A_BUCKET = 14_000, 100
"""Limit of retained partial choices over all buckets, and its minimum per bucket: a search takes at most some seconds."""
_GRID_DIVISIONS = {1: 1, 2: 8, 3: 6, 4: 4}
"""Number of used resources -> subdivisions of the grid of their weights (`_simplex`)."""
_BOUND_FACTOR = 4
"""Factor by which the pass for the lower bound, which runs once, retains more partial choices."""
_MAX_ROUNDS = 2
"""Most rounds of an incomplete search, each from the best choice so far."""
_START = np.zeros((1, 5))
"""`_PartialChoices.ends` before the first bucket."""
_MAX_CELLS = 1 << 12
"""Most cells in each of the five columns: the number of a cell must fit into 64 bits."""
_MAX_PAIR_STEPS = 2e7
"""Most steps of the recurrence for changes of two buckets at once."""
_ROUNDING_SHARE = 1e-12
"""Relative difference of two sums of the same numbers."""


@dataclass(frozen=True)
class Found:
    """A choice, int64[N], and a bound of all others."""

    choice: np.ndarray
    end_ns: float
    least_ns: float
    """Lower bound of the end of all choices."""

    @property
    def gap(self) -> float:
        """Upper bound of the choice's distance from the optimum, relative."""
        return max(0.0, self.end_ns / self.least_ns - 1) if self.least_ns > 0 else 0.0

    @property
    def kind(self) -> GapKind:
        return "exact" if self.end_ns <= self.least_ns * (1 + 1e-9) else "lower_bound"


def search(timeline: BucketTimeline, sizes: np.ndarray, max_partial: int = _MAX_PARTIAL) -> Found:
    """Find the choice that ends soonest and loses no more than allowed.

    Heuristics order the buckets by `sizes`. About `max_partial` partial choices are retained: more improve the choice and
    its bound.
    """
    most = max(min(_MIN_PARTIAL_OF_A_BUCKET, max_partial), max_partial // len(sizes))
    good = heuristic(timeline, sizes)
    end, is_complete = timeline.end_ns(good), False
    for _ in range(_MAX_ROUNDS):
        better, is_complete = _search_exactly(timeline, end, most)
        if better is not None and timeline.end_ns(better) < end:
            good = _swept(timeline, better, sizes)
            end = timeline.end_ns(good)
        if is_complete or better is None:
            break
    return Found(good, end, end if is_complete else _lower_bound_ns(timeline, end, _BOUND_FACTOR * most))


# Heuristics


def algorithm_1(timeline: BucketTimeline, sizes: np.ndarray) -> np.ndarray:
    """Espresso's Algorithm 1: from option 0 for all, one bucket after the other gets the option with the soonest end.

    The largest come first, of equal ones the last to be ready. Buckets that are sent before the link waits stay unchanged.
    """
    choice = np.zeros(len(sizes), np.int64)
    left = ~timeline.before_bubble(choice)
    for bucket in _largest_first(sizes):
        if left[bucket]:
            choice = timeline.best_move(choice, np.arange(len(sizes)) == bucket)
            left &= (choice > 0) | ~timeline.before_bubble(choice)
    return choice


def heuristic(timeline: BucketTimeline, sizes: np.ndarray) -> np.ndarray:
    """The best of several starts (Algorithm 1, one option for all buckets, least loss), improved until no change of one or
    two buckets helps."""
    count, options = timeline.shape
    starts = [algorithm_1(timeline, sizes), *(np.full(count, option) for option in range(options))]
    starts.append(np.argmin(timeline.costs.lost, axis=1))
    good = min((_swept(timeline, start, sizes) for start in starts), key=timeline.end_ns)
    return _with_pairs(timeline, good, sizes)


def _largest_first(sizes: np.ndarray) -> list[int]:
    order: list[int] = np.lexsort((-np.arange(len(sizes)), -np.asarray(sizes))).tolist()
    return order


def _swept(timeline: BucketTimeline, choice: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """`choice` improved one bucket at a time until no change helps."""
    order = _largest_first(sizes)
    for _ in range(_MAX_SWEEPS):
        before = choice
        for bucket in order:
            choice = timeline.best_move(choice, np.arange(len(sizes)) == bucket)
        if np.array_equal(before, choice):
            break
    return choice


def _with_pairs(timeline: BucketTimeline, choice: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """`choice` improved by changes of one bucket combined with the best change of another."""
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
class _PartialChoices:
    """Partial choices after some bucket, K of them."""

    ends: np.ndarray
    """Delay of the computation, end of the host's CPU work, end of sending, end of decoding (all ns), and loss,
    float64[K, 5]."""
    parent: np.ndarray
    """Position of the partial choice it extends, among those of the previous bucket, int64[K]."""
    option: np.ndarray
    """Option of the last bucket, int64[K]."""

    def only(self, which: np.ndarray) -> "_PartialChoices":
        return _PartialChoices(self.ends[which], self.parent[which], self.option[which])


def _search_exactly(timeline: BucketTimeline, good_ns: float, most: int) -> tuple[np.ndarray | None, bool]:
    """(a choice that ends before `good_ns`, or None; whether the search was complete: no choice ends sooner than it, or than
    `good_ns`).

    If there are more than `most` partial choices, those with the earliest possible end are retained.
    """
    costs, rest, is_complete = timeline.costs, _rest(timeline.costs), True
    stages = [_PartialChoices(_START, np.zeros(1, np.int64), np.zeros(1, np.int64))]
    for bucket in range(len(costs.ready)):
        more, least = _promising(rest, bucket, stages[-1].ends, good_ns)
        if not len(least):
            return None, is_complete
        if len(least) > most:
            more, is_complete = more.only(np.argpartition(least, most)[:most]), False
        stages.append(more)
    return _traced(stages, int(np.argmin(_last_end(costs, stages[-1].ends)))), is_complete


def _lower_bound_ns(timeline: BucketTimeline, good_ns: float, most: int) -> float:
    """Lower bound of the end of all choices; `good_ns` if no choice is better."""
    costs, rest, ends = timeline.costs, _rest(timeline.costs), _START
    for bucket in range(len(costs.ready)):
        more, least = _promising(rest, bucket, ends, good_ns)
        if not len(least):
            return good_ns
        ends = _merged(more.ends, most)
    return min(float(_last_end(costs, ends).min()), good_ns)


def _promising(rest: "_Rest", bucket: int, ends: np.ndarray, good_ns: float) -> tuple[_PartialChoices, np.ndarray]:
    """(undominated partial choices, extended by an option of the bucket, that may end before `good_ns`; the earliest end of
    each, ns)."""
    useful = _useful(rest.costs, bucket)
    size = len(ends) * len(useful)
    more = _PartialChoices(np.empty((size, ends.shape[1])), np.empty(size, np.int64), np.empty(size, np.int64))
    least = np.empty(size)
    limit = good_ns * (1 - _ROUNDING_SHARE)
    count = _continue(rest, bucket, useful, ends, limit, more.ends, more.parent, more.option, least)
    stay = undominated(more.ends[:count]) if count else np.zeros(0, np.int64)
    return more.only(stay), least[stay]


def _last_end(costs: Costs, ends: np.ndarray) -> np.ndarray:
    """End of synchronisation and computation, ns, float64[K]."""
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
    """Extend each partial choice by each useful option of the bucket, if it may end before `limit`.

    Fills `more`, `parent` and `option`, as in `_PartialChoices`, and `least` with the earliest end of each; returns their
    number.
    """
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
                # The host and the link are idle until the next bucket is ready: normalising their ends to that time lets
                # more partial choices dominate each other.
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
    """Lower bound of the end after `bucket`; computed only as far as it is below `limit`.

    The end is no sooner than the time at which any of the four resources has finished its remaining work, and so no sooner
    than any weighted mean of these times. Each remaining bucket adds at least its smallest weighted cost to the mean.
    """
    computed = rest.costs.computed
    end: float = max(done, sent + rest.link[bucket + 1], stalled + max(rest.sent[bucket + 1], computed))
    for way in range(len(rest.weights)):
        if end >= limit:
            break
        weights = rest.weights[way]
        mean = weights[0] * (stalled + computed) + weights[1] * hosted + weights[2] * sent + weights[3] * done
        end = max(end, mean + rest.weighted[way, bucket + 1])
    return end


def _useful(costs: Costs, bucket: int) -> np.ndarray:
    """The undominated options of a bucket."""
    columns = (costs.stall, costs.host, costs.link, costs.after, costs.lost)
    table = np.stack([column[bucket] for column in columns], axis=1)
    return np.sort(undominated(table))


class _Rest(NamedTuple):
    """Lower bounds of the costs of all buckets from each one on, ns."""

    costs: Costs
    link: np.ndarray
    """Time on the link, float64[N + 1]."""
    sent: np.ndarray
    """Earliest end of sending if nothing stalls, float64[N + 1]."""
    weights: np.ndarray
    """W weightings of stalls, host, link and work after it, each with sum 1, float64[W, 4]."""
    weighted: np.ndarray
    """Weighted sum of their times, float64[W, N + 1]."""
    lost: np.ndarray
    """Loss, float64[N + 1]."""


def _rest(costs: Costs) -> _Rest:
    table = np.stack([costs.stall, costs.host, costs.link, costs.after])
    least = np.min(costs.link, axis=1)
    link = _from_each_on(least)
    sent = np.append(np.maximum.accumulate((costs.ready + link[:-1])[::-1])[::-1], 0.0)
    weights = _simplex(np.array([resource.any() for resource in table]))
    weighted = np.tensordot(weights, table, axes=1).min(axis=2)
    lost = _from_each_on(costs.lost.min(axis=1)) * (1 - _ROUNDING_SHARE)
    return _Rest(costs, link, sent, weights, np.apply_along_axis(_from_each_on, 1, weighted), lost)


def _from_each_on(values: np.ndarray) -> np.ndarray:
    """Sums of the values from each one on, and a final 0, float64[N + 1]."""
    return np.append(np.cumsum(values[::-1])[::-1], 0.0)


def _simplex(used: np.ndarray) -> np.ndarray:
    """A grid of weights of four resources with sum 1, float64[W, 4]; those not `used` (bool[4]) have weight 0."""
    if not used.any():
        return np.array([[0.0, 0.0, 1.0, 0.0]])
    divisions = _GRID_DIVISIONS[int(used.sum())]
    grid = np.array([one for one in product(range(divisions + 1), repeat=4) if sum(one) == divisions])
    found: np.ndarray = grid[~grid[:, ~used].any(axis=1)] / divisions
    return found


def _merged(ends: np.ndarray, most: int) -> np.ndarray:
    """At most `most` rows, or one: the column-wise minima of the rows in each cell of the finest grid with so few cells in
    use."""
    low, span = ends.min(axis=0), np.ptp(ends, axis=0)
    cells = min(1 << most.bit_length(), _MAX_CELLS)
    while len(ends) > most and cells > 1:
        cells //= 2
        grid = np.minimum((ends - low) / np.where(span > 0, span, 1.0) * cells, cells - 1).astype(np.int64)
        cell = grid @ np.array([cells**column for column in range(grid.shape[1])])
        if cells == 1 or len(np.unique(cell)) <= most:
            order = np.argsort(cell, kind="stable")
            starts = np.flatnonzero(np.diff(cell[order], prepend=-1))
            ends = np.minimum.reduceat(ends[order], starts, axis=0)
    return ends


def _traced(stages: list[_PartialChoices], last: int) -> np.ndarray:
    """The options that lead to the partial choice `last` of the last bucket, int64[N]."""
    found = []
    for one in stages[:0:-1]:
        found.append(int(one.option[last]))
        last = int(one.parent[last])
    return np.array(found[::-1], np.int64)
