"""Counterparts: nodes that do the same work on other ranks, and their durations."""

import re
from dataclasses import dataclass

import numpy as np

from esprof.core.statistics import medians_of
from esprof.core.types import NS_PER_MS
from esprof.replay.dfg import Cls, Dfg, LaneKind

MIN_SHARED_WORK_SHARE = 0.9
"""Least share of their compute nodes that two ranks must have in common to have the same role in a pipeline."""

MIN_SLEEP_NS = NS_PER_MS
"""A longer gap is a sleep or a blocking call, which is never due to a stage's role in a pipeline (`host` in
docs/reference/what-ifs.md)."""

_MESSAGE = re.compile("send|recv", re.IGNORECASE)
"""Occurs in the names of all point-to-point operations of any backend."""


@dataclass(frozen=True)
class Counterparts:
    """Durations of the counterparts of each of N nodes, ns, float64[N]; NaN for a node without counterparts.

    Counterparts share step, lane role, name, neighbour and occurrence. If there are none (rank 0 logs, and so has other
    neighbours), and for work launched before the first step, they share step, lane role and name. In loaders, which work
    ahead, they share lane role and name in any step. Of several counterparts on one rank the mean counts.

    A gap counts as 0 on ranks that do not have it: on ranks of the same role, or on all ranks if it is longer than
    `MIN_SLEEP_NS`. Work that a rank does more often than the others counts as 0 on the others, too.
    """

    own: np.ndarray
    """bool[N], the compared nodes: each rank's own work."""
    others: np.ndarray
    """Median over the other ranks."""
    median: np.ndarray
    """Median over all ranks."""
    mean: np.ndarray
    """Mean over all ranks."""


def counterparts(dfg: Dfg, work_ns: np.ndarray, roles: np.ndarray) -> Counterparts:
    """Compare the own work of all ranks, `work_ns`, ns, int64[N].

    `roles`, int[ranks], is the role of each rank of `dfg.marks` (`roles_of`). Compute nodes, and allocator calls, which wait
    for compute, have counterparts only on ranks of the same role.
    """
    before = (dfg.step < 0) & dfg.on(LaneKind.STREAM)
    own = ~dfg.of(Cls.COMMUNICATION, Cls.WAIT, Cls.RESIDUAL) & (dfg.key >= 0) & ((dfg.step >= 0) | before)
    column = np.searchsorted(dfg.marks.ranks, dfg.rank).astype(np.int64)
    # The role of the rank where it matters, otherwise a number above all roles. Joins have no rank and are not compared.
    bound = dfg.of(Cls.COMPUTE, Cls.CONTENTION, Cls.ALLOCATOR) & (dfg.rank >= 0)
    role = np.full(dfg.nodes, roles.max() + 1)
    role[bound] = roles[column[bound]]
    sharing = np.bincount(roles)[roles]
    found = Counterparts(own, *(np.full(dfg.nodes, np.nan) for _ in range(3)))
    gap, loader = dfg.of(Cls.HOST_GAP), dfg.on(LaneKind.LOADER)
    step, purpose = dfg.step.astype(np.int64) + 1, _purpose(dfg)
    # Each identity packs the numbers that counterparts share into one int64; later ones serve nodes without counterparts.
    exact, alike = (
        (step * (int(shared.max()) + 1) + shared) * (int(roles.max()) + 2) + role for shared in (dfg.key, purpose)
    )
    for identity, allowed in ((exact, own & ~before), (alike, own & ~loader & ~gap), (purpose, own & loader)):
        todo = np.unique(identity[allowed & np.isnan(found.others)])
        nodes = np.flatnonzero(allowed)
        nodes = nodes[np.isin(identity[nodes], todo)]
        new = np.isnan(found.others[nodes])
        if identity is alike:
            surplus = new & ~before[nodes] & _surplus(identity[nodes], column[nodes], new)
            new &= ~surplus
            # A rank that is alone in its role has no counterparts.
            extra = nodes[surplus & (sharing[column[nodes]] > 1)]
            _fill_in(found, extra, work_ns, sharing[column[extra]])
        present = np.where(work_ns[nodes] > MIN_SLEEP_NS, len(roles), sharing[column[nodes]])
        least = np.where(gap[nodes], present, 0)
        columns = _over_ranks(identity[nodes], column[nodes], work_ns[nodes], least)
        for into, values in zip((found.others, found.median, found.mean), columns, strict=True):
            into[nodes[new]] = values[new]
    return found


def _surplus(identity: np.ndarray, column: np.ndarray, is_new: np.ndarray) -> np.ndarray:
    """Mask of the new nodes beyond the number of nodes of that identity that a rank usually has.

    These are nodes of ranks that do something more often than the others.
    """
    pairs, first, which = np.unique(
        identity * (int(column.max(initial=0)) + 1) + column, return_index=True, return_inverse=True
    )
    count, new = np.bincount(which), np.bincount(which, is_new, len(pairs))
    # With two ranks, the lower count is the usual one.
    usual, _ = medians_of(identity[first], count, identity[first], low=True)
    mask: np.ndarray = is_new & (count - new >= usual)[which]
    return mask


def _fill_in(found: Counterparts, nodes: np.ndarray, work_ns: np.ndarray, ranks: np.ndarray) -> None:
    """Set the counterparts of `nodes` to 0 on all other ranks; `ranks` is the number of compared ranks."""
    found.others[nodes] = 0
    found.median[nodes] = np.where(ranks == 2, work_ns[nodes] / 2, 0)
    found.mean[nodes] = work_ns[nodes] / ranks


def _purpose(dfg: Dfg) -> np.ndarray:
    """A number for each lane role and name, int64[N]."""
    numbers = {role: number for number, role in enumerate(dict.fromkeys(lane.role for lane in dfg.lanes))}
    role = np.array([numbers[lane.role] for lane in dfg.lanes] + [-1], np.int64)[dfg.lane]
    purpose: np.ndarray = role * len(dfg.names) + dfg.name
    return purpose


def _over_ranks(
    identity: np.ndarray, column: np.ndarray, dur_ns: np.ndarray, least: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(median over the other ranks, median over all, mean over all) of the durations of each identity, ns, float64[nodes].

    NaN if fewer than two ranks have it. `column` is the rank of each node; if fewer than `least` ranks have its identity, it
    counts as 0 on the rest.
    """
    if not len(identity):
        return (np.zeros(0),) * 3
    # One value for each identity and rank; sorted by identity, then value.
    pairs, first_of, which = np.unique(
        identity * (int(column.max(initial=0)) + 1) + column, return_index=True, return_inverse=True
    )
    value = np.bincount(which, weights=dur_ns, minlength=len(pairs)) / np.maximum(np.bincount(which), 1)
    name = identity[first_of]
    order = np.lexsort((value, name))
    _, first, group, count = np.unique(name[order], return_index=True, return_inverse=True, return_counts=True)
    zeros = np.maximum(np.maximum.reduceat(least[first_of][order], first) - count, 0)[group]
    ranked, begin, total = value[order], first[group], count[group] + zeros
    own_position = zeros + np.arange(len(order)) - begin

    def at(position: np.ndarray) -> np.ndarray:
        """Value at this position of each pair's sorted group, which begins with the zeros."""
        last = len(ranked) - 1
        values: np.ndarray = np.where(position < zeros, 0, ranked[np.clip(begin + position - zeros, 0, last)])
        return values

    # Without the pair itself, later positions move up by one.
    low, high = ((k + (k >= own_position)) for k in ((total - 2) // 2, (total - 1) // 2))
    others = (at(low) + at(high)) / 2
    medians = (at((total - 1) // 2) + at(total // 2)) / 2
    means = np.bincount(group, weights=ranked)[group] / total
    back = np.empty(len(order), np.int64)
    back[order] = np.arange(len(order))
    of_node = back[which]
    known = (total > 1)[of_node]
    others, medians, means = (np.where(known, values[of_node], np.nan) for values in (others, medians, means))
    return others, medians, means


def roles_of(dfg: Dfg) -> np.ndarray:
    """Role of each rank of `dfg.marks`, int64[ranks], numbered from 0.

    All ranks of a job have the same role, unless they exchange messages like the stages of a pipeline. Then ranks have the
    same role only if they share at least `MIN_SHARED_WORK_SHARE` of their compute nodes.
    """
    roles = np.zeros(len(dfg.marks.ranks), np.int64)
    if not _passes_messages(dfg):
        return roles
    computed = [set(np.unique(dfg.key[dfg.of(Cls.COMPUTE) & (dfg.rank == rank)]).tolist()) for rank in dfg.marks.ranks]
    known: list[set[int]] = []
    for column, keys in enumerate(computed):
        alike = (n for n, other in enumerate(known) if len(keys & other) >= MIN_SHARED_WORK_SHARE * len(keys | other))
        roles[column] = next(alike, len(known))
        if roles[column] == len(known):
            known.append(keys)
    return roles


def _passes_messages(dfg: Dfg) -> bool:
    """Whether ranks exchange messages: whether a collective between two ranks has the name of a send or receive."""
    arrivals = (dfg.collective >= 0) & dfg.of(Cls.WAIT) & (dfg.rank >= 0)
    if not arrivals.any():
        return False
    of_two = np.flatnonzero(np.bincount(dfg.collective[arrivals]) == 2)
    names = np.unique(dfg.name[arrivals & np.isin(dfg.collective, of_two)])
    return any(_MESSAGE.search(dfg.names[name]) for name in names)
