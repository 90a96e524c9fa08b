"""Which ranks of a large job a page draws."""

from itertools import chain, zip_longest

import numpy as np

from esprof.core.types import Rank
from esprof.replay.engine.timeline import rank_totals
from esprof.replay.ranks.arrivals import arrivals
from esprof.replay.replayed import Replayed

MAX_RANKS_DRAWN = 16
"""Most ranks with bars of their own in the timeline, and with a column of their own among the arrivals."""


def drawn_ranks(replayed: Replayed, limit: int = MAX_RANKS_DRAWN) -> tuple[Rank, ...]:
    """All ranks, ascending, if they are at most `limit`. Otherwise the extremes: in equal parts those with most time on the
    critical path, those that arrive last at collectives in the mean, and those that arrive first."""
    ranks = replayed.built.dfg.marks.ranks
    if len(ranks) <= limit:
        return ranks
    on_path = sorted(rank_totals(list(replayed.path)).items(), key=lambda item: -item[1])
    latest = _by_arrival(replayed)
    turns = zip_longest([rank for rank, _ in on_path], latest, reversed(latest))
    in_turn = dict.fromkeys(rank for rank in chain.from_iterable(turns) if rank is not None)
    return tuple(sorted([*in_turn, *(rank for rank in ranks if rank not in in_turn)][:limit]))


def _by_arrival(replayed: Replayed) -> list[Rank]:
    """The ranks by their mean arrival at collectives, relative to the median arrival of each, latest first; without those
    that take part in none."""
    seen = arrivals(replayed.built.dfg, replayed.steps.steady)
    if not len(seen):
        return []
    behind = seen.arrived_ns - seen.median_ns()[seen.row]
    count = np.bincount(seen.column, minlength=len(seen.ranks))
    mean = np.bincount(seen.column, behind, len(seen.ranks)) / np.maximum(count, 1)
    order = np.argsort(-mean, kind="stable")
    return [seen.ranks[column] for column in order.tolist() if count[column]]
