"""End of the synchronisation of gradients, by a recurrence over buckets in the order in which they become ready.

The search evaluates very many choices with it in place of a replay of the graph (`esprof.replay`); its result is replayed
afterwards. The recurrence is Espresso's F(S) (EuroSys 2023, §4.3), with a server for each resource that handles one bucket
at a time.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from esprof.core.compiled import compiled_in_place


class Costs(NamedTuple):
    """Costs of each option of each bucket, ns. N buckets in the order in which they become ready, C options."""

    ready: np.ndarray
    """Time at which each bucket is ready if nothing is compressed, float64[N], ascending."""
    stall: np.ndarray
    """Time in the computing lane, which delays all later computation, float64[N, C]."""
    host: np.ndarray
    """CPU time of the host before the bucket is sent, concurrent with computation, float64[N, C]."""
    link: np.ndarray
    """Time on the link, which sends one bucket at a time, in order, float64[N, C]."""
    after: np.ndarray
    """Time after a bucket has arrived, concurrent with computation, float64[N, C]."""
    computed: float
    """End of the computation if nothing is compressed: a lower bound of the step."""
    lost: np.ndarray
    """Loss as a share of the square of the whole gradient, float64[N, C]."""
    may_lose: float
    """Largest loss of all buckets together; infinite if there is no limit."""


@dataclass(frozen=True)
class BucketTimeline:
    """The recurrence for given costs. A choice is one option for each bucket, int64[N]."""

    costs: Costs

    @property
    def shape(self) -> tuple[int, int]:
        """(N, C)."""
        count, options = self.costs.stall.shape
        return count, options

    def end_ns(self, choice: np.ndarray) -> float:
        """Time at which all buckets are synchronised and all is computed, ns; infinite for a choice that loses too much."""
        return float(_end(self.costs, choice))

    def free(self) -> "BucketTimeline":
        """The same timeline with free compression and unlimited loss: only the link takes time."""
        nothing = np.zeros(self.shape)
        return BucketTimeline(self.costs._replace(stall=nothing, host=nothing, after=nothing, may_lose=np.inf))

    def best_move(self, choice: np.ndarray, movable: np.ndarray) -> np.ndarray:
        """`choice` with the best change of one bucket of `movable`, bool[N]; unchanged if no change is better."""
        moved = choice.copy()
        _move(self.costs, moved, movable)
        return moved

    def before_bubble(self, choice: np.ndarray) -> np.ndarray:
        """Mask of the buckets after which the link still waits for another one, bool[N]. To compress these only makes the
        link wait longer (Espresso, §4.4.2, property 1)."""
        waits = np.zeros(len(choice), bool)
        _find_waits(self.costs, choice, waits)
        # Whether the link waits for this bucket or any later one.
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
    best, best_bucket, best_option = _end(costs, choice), -1, -1
    for bucket in range(len(choice)):
        if movable[bucket]:
            old = choice[bucket]
            for option in range(costs.stall.shape[1]):
                choice[bucket] = option
                end = _end(costs, choice)
                if end < best:
                    best, best_bucket, best_option = end, bucket, option
            choice[bucket] = old
    if best_bucket >= 0:
        choice[best_bucket] = best_option


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
