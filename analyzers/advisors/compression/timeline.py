"""When gradients are synchronised: a recurrence over buckets in the order in which they become ready.

It stands for the replay of a graph (`esprof.replay`) in the search, which values very many choices; what the search
answers is valued by replay again. It is Espresso's F(S) (EuroSys 2023, §4.3), with a server for each thing that handles one
bucket at a time.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from esprof.core.compiled import compiled_in_place


class Costs(NamedTuple):
    """What each option of each bucket takes, ns. N buckets in the order in which they become ready, C options."""

    ready: np.ndarray
    """When each bucket is ready if nothing is compressed, float64[N], ascending."""
    stall: np.ndarray
    """float64[N, C], what an option takes of the lane that computes: all that is computed later comes as much later."""
    host: np.ndarray
    """float64[N, C], what it takes of the host's CPUs, beside the computation, before the bucket is sent."""
    link: np.ndarray
    """float64[N, C], how long the link is taken. It sends one bucket at a time, in order."""
    after: np.ndarray
    """float64[N, C], what is left to do beside the computation once a bucket has arrived."""
    computed: float
    """When all is computed if nothing is compressed: no step ends sooner."""
    lost: np.ndarray
    """float64[N, C], what an option loses, as a share of the square of the whole gradient."""
    may_lose: float
    """What all buckets together may lose; infinite where that does not matter."""


@dataclass(frozen=True)
class BucketTimeline:
    """A choice is one option for each bucket, int64[N]."""

    costs: Costs

    @property
    def shape(self) -> tuple[int, int]:
        """(N, C)."""
        count, options = self.costs.stall.shape
        return count, options

    def end_ns(self, choice: np.ndarray) -> float:
        """When the last bucket is synchronised and all is computed; infinite for a choice that loses too much."""
        return float(_end(self.costs, choice))

    def free(self) -> "BucketTimeline":
        """The same with compression that costs nothing and may lose all: only sending takes time."""
        nothing = np.zeros(self.shape)
        return BucketTimeline(self.costs._replace(stall=nothing, host=nothing, after=nothing, may_lose=np.inf))

    def best_move(self, choice: np.ndarray, movable: np.ndarray) -> np.ndarray:
        """`choice` with the best change of one of the buckets of `movable`, bool[N]; as it is where none is better."""
        moved = choice.copy()
        _move(self.costs, moved, movable)
        return moved

    def before_bubble(self, choice: np.ndarray) -> np.ndarray:
        """bool[N], mask of the buckets that are sent before the link waits for another one: to compress these only makes it
        wait longer (Espresso, §4.4.2, property 1)."""
        waits = np.zeros(len(choice), bool)
        _find_waits(self.costs, choice, waits)
        # Whether the link waits for any bucket behind each.
        later = np.logical_or.accumulate(waits[::-1])[::-1]
        return np.append(later[1:], False)


@compiled_in_place
def _end(costs: Costs, choice: np.ndarray) -> float:
    stalled, hosted, sent, done, lost = 0.0, 0.0, 0.0, 0.0, 0.0
    for bucket in range(len(costs.ready)):
        option = choice[bucket]
        stalled += costs.stall[bucket, option]
        moment = costs.ready[bucket] + stalled
        hosted = max(hosted, moment) + costs.host[bucket, option]
        sent = max(sent, hosted) + costs.link[bucket, option]
        done = max(done, sent) + costs.after[bucket, option]
        lost += costs.lost[bucket, option]
    return max(done, costs.computed + stalled) if lost <= costs.may_lose else np.inf


@compiled_in_place
def _move(costs: Costs, choice: np.ndarray, movable: np.ndarray) -> None:
    best, which, what = _end(costs, choice), -1, -1
    for bucket in range(len(choice)):
        if movable[bucket]:
            old = choice[bucket]
            for option in range(costs.stall.shape[1]):
                choice[bucket] = option
                end = _end(costs, choice)
                if end < best:
                    best, which, what = end, bucket, option
            choice[bucket] = old
    if which >= 0:
        choice[which] = what


@compiled_in_place
def _find_waits(costs: Costs, choice: np.ndarray, waits: np.ndarray) -> None:
    stalled, hosted, sent = 0.0, 0.0, 0.0
    for bucket in range(len(costs.ready)):
        option = choice[bucket]
        stalled += costs.stall[bucket, option]
        moment = costs.ready[bucket] + stalled
        hosted = max(hosted, moment) + costs.host[bucket, option]
        waits[bucket] = hosted > sent
        sent = max(sent, hosted) + costs.link[bucket, option]
