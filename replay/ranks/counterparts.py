"""Counterparts: nodes that do the same work on other ranks, and their durations.

Nodes are compared by identities: numbers of what counterparts share. Of the work of all ranks, which may be read some ranks
at a time, a `PeerTable` keeps the durations in the middle for each identity. They give each node the median over the others.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from esprof.core.statistics import distinct, medians_of
from esprof.core.types import NS_PER_MS
from esprof.replay.dfg import Cls, Dfg, LaneKind
from esprof.replay.ranks.narrow import narrow

MIN_SHARED_WORK_SHARE = 0.9
"""Least share of their compute nodes that two ranks must have in common to have the same role in a pipeline."""

MIN_SLEEP_NS = NS_PER_MS
"""A longer gap is a sleep or a blocking call, which is never due to a stage's role in a pipeline (`host` in
docs/reference/what-ifs.md)."""

_SORTED_AT_ONCE = 1 << 22
"""Durations that are sorted at once, which bounds the memory that takes."""

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
    work = RankWork(dfg, work_ns, roles, keys=int(dfg.key.max(initial=0)) + 1)
    return PeerTable.of([work]).counterparts(work)


@dataclass(frozen=True)
class RankWork:
    """What ranks of a job do: all of them, or some. The graph has N nodes."""

    dfg: Dfg
    """Names, keys, lanes and ranks have the numbers that they have in the job."""
    work_ns: np.ndarray
    """Duration of each node, ns, int64[N]."""
    roles: np.ndarray
    """Role of each rank of the job, int64[ranks]."""
    keys: int
    """More than any key of the job."""

    @cached_property
    def before(self) -> np.ndarray:
        """Mask of the work launched before the first step, bool[N]."""
        mask: np.ndarray = (self.dfg.step < 0) & self.dfg.on(LaneKind.STREAM)
        return mask

    @cached_property
    def own(self) -> np.ndarray:
        """Mask of the compared nodes, bool[N]."""
        dfg = self.dfg
        compared = ~dfg.of(Cls.COMMUNICATION, Cls.WAIT, Cls.RESIDUAL) & (dfg.key >= 0)
        mask: np.ndarray = compared & ((dfg.step >= 0) | self.before)
        return mask

    @cached_property
    def gap(self) -> np.ndarray:
        return self.dfg.of(Cls.HOST_GAP)

    @cached_property
    def loader(self) -> np.ndarray:
        return self.dfg.on(LaneKind.LOADER)

    @cached_property
    def column(self) -> np.ndarray:
        """Position of the rank of each node among those of the job, int64[N]. Joins have no rank and are not compared."""
        of_lane = np.searchsorted(self.dfg.marks.ranks, [lane.rank for lane in self.dfg.lanes])
        column: np.ndarray = of_lane.astype(np.int64)[self.dfg.lane]
        return column

    @cached_property
    def sharing(self) -> np.ndarray:
        """Number of ranks that have the role of each node's rank, int64[N]."""
        ranks: np.ndarray = np.bincount(self.roles)[self.roles][self.column]
        return ranks

    # Each identity packs the numbers that counterparts share into one int64.

    @cached_property
    def exact(self) -> np.ndarray:
        """Identity of step, key, and role where it matters, int64[N]."""
        return self._with_step_and_role(self.dfg.key, self.keys)

    @cached_property
    def alike(self) -> np.ndarray:
        """Identity of step, purpose, and role where it matters, int64[N]."""
        lane_roles = len({lane.role for lane in self.dfg.lanes})
        return self._with_step_and_role(self.purpose, lane_roles * len(self.dfg.names))

    @cached_property
    def purpose(self) -> np.ndarray:
        """Identity of lane role and name, int64[N]."""
        dfg = self.dfg
        numbers = {role: number for number, role in enumerate(dict.fromkeys(lane.role for lane in dfg.lanes))}
        role = np.array([numbers[lane.role] for lane in dfg.lanes] + [-1], np.int64)[dfg.lane]
        purpose: np.ndarray = role * len(dfg.names) + dfg.name
        return purpose

    def _with_step_and_role(self, shared: np.ndarray, count: int) -> np.ndarray:
        """`shared` is below `count`."""
        dfg = self.dfg
        step = np.where(dfg.step < 0, 0, dfg.step.astype(np.int64) - dfg.marks.steps[0] + 1)
        # The role of the rank where it matters, otherwise a number above all roles.
        bound = dfg.of(Cls.COMPUTE, Cls.CONTENTION, Cls.ALLOCATOR) & (dfg.rank >= 0)
        role = np.full(dfg.nodes, self.roles.max() + 1)
        role[bound] = self.roles[self.column[bound]]
        identity: np.ndarray = (step * count + shared) * (int(self.roles.max()) + 2) + role
        return identity

    # Which nodes are compared by which identity; later ones serve nodes without counterparts.

    @cached_property
    def by_exact(self) -> "_ByRank":
        return self._by_rank(self.exact, np.flatnonzero(self.own & ~self.before))

    @cached_property
    def by_alike(self) -> "_ByRank":
        return self._by_rank(self.alike, np.flatnonzero(self.own & ~self.loader & ~self.gap))

    @cached_property
    def by_purpose(self) -> "_ByRank":
        return self._by_rank(self.purpose, np.flatnonzero(self.own & self.loader))

    def _by_rank(self, identity: np.ndarray, nodes: np.ndarray) -> "_ByRank":
        work_ns, column = self.work_ns[nodes], self.column[nodes]
        column = column - column.min(initial=len(self.roles))
        width = int(column.max(initial=0)) + 1
        pairs, pair, size = _grouped(identity[nodes] * width + column)
        ranks = np.where(work_ns > MIN_SLEEP_NS, len(self.roles), self.sharing[nodes])
        least = np.zeros(len(size), np.int64)
        # With repeated indices numpy stores the last value; in reverse order that is the first node of each pair.
        least[pair[::-1]] = np.where(self.gap[nodes], ranks, 0)[::-1]
        mean_ns = np.bincount(pair, work_ns, len(size)) / size
        return _ByRank(nodes, pair, pairs // width, mean_ns, size, least)


def _grouped(numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(distinct numbers, position of each among them, how often each occurs); none is negative."""
    if numbers.max(initial=0) >= len(numbers):
        return np.unique(numbers, return_inverse=True, return_counts=True)
    # Few different numbers need not be sorted.
    count = np.bincount(numbers)
    found = np.flatnonzero(count)
    return found, (np.cumsum(count > 0) - 1)[numbers], count[found]


class _ByRank(NamedTuple):
    """N nodes by identity and rank; P pairs of these, sorted by identity."""

    nodes: np.ndarray
    """Ids of the nodes, int64[N]."""
    pair: np.ndarray
    """Pair of each node, int64[N]."""
    identity: np.ndarray
    """int64[P]."""
    mean_ns: np.ndarray
    """Mean duration of the nodes, ns, float64[P]."""
    size: np.ndarray
    """Number of the nodes, int64[P]."""
    least: np.ndarray
    """If fewer ranks have the identity, it counts as 0 on the rest, int64[P]."""


@dataclass(frozen=True)
class _Middles:
    """The durations in the middle of those of all ranks, for each of I identities."""

    identity: np.ndarray
    """Ascending, int64[I]."""
    ranks: np.ndarray
    """Number of ranks that have it, or count as 0, int64[I]."""
    middle_ns: np.ndarray
    """The (n - 2) // 2 th of n durations and the two that follow, ascending from the 0 th, ns, float64[I, 3]. The last is
    meaningless for even n, all are for n = 1."""
    mean_ns: np.ndarray
    """Mean over the ranks, ns, float64[I]."""

    @classmethod
    def of(cls, parts: Sequence[_ByRank]) -> "_Middles":
        """Of the pairs of all parts, each of which has other ranks."""
        identity, at = _numbered([part.identity for part in parts])
        count, least = np.zeros(len(identity), np.int64), np.zeros(len(identity), np.int64)
        for mine, part in zip(at, parts, strict=True):
            count += np.bincount(mine, minlength=len(count))
            some = np.flatnonzero(part.least)
            np.maximum.at(least, mine[some], part.least[some])
        ranked = _ranked([part.mean_ns for part in parts], at, count)
        first = np.cumsum(count) - count
        zeros = np.maximum(least - count, 0)
        total = count + zeros

        def at_place(place: np.ndarray) -> np.ndarray:
            """Value at this place of each sorted group, which begins with the zeros."""
            inside = np.clip(first + place - zeros, 0, len(ranked) - 1)
            values: np.ndarray = np.where(place < zeros, 0, ranked[inside])
            return values

        middle = np.stack([at_place((total - 2) // 2 + behind) for behind in range(3)], axis=1)
        return cls(identity, total, middle, np.add.reduceat(ranked, first) / total)

    def around(self, identity: np.ndarray, own_ns: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(median over the other ranks, median over all, mean over all) for ranks that take `own_ns`, ns, float64; NaN if
        no other rank has the identity."""
        at = np.searchsorted(self.identity, identity)
        low, middle, high = self.middle_ns[at].T
        ranks = self.ranks[at]
        is_odd = ranks % 2 == 1
        # Without the own duration, those that are not below it move down by one place.
        first = np.where(low >= own_ns, middle, low)
        second = np.where(is_odd, np.where(middle >= own_ns, high, middle), first)
        of_all = np.where(is_odd, middle, (low + middle) / 2)
        others, median, mean = (
            np.where(ranks > 1, of, np.nan) for of in ((first + second) / 2, of_all, self.mean_ns[at])
        )
        return others, median, mean


def _numbered(identities: Sequence[np.ndarray]) -> tuple[np.ndarray, list[np.ndarray]]:
    """(all distinct identities, ascending, int64; the positions of those of each part among them, int32)."""
    found = distinct(np.concatenate(identities))
    return found.astype(np.int64), [np.searchsorted(found, values).astype(np.int32) for values in identities]


def _ranked(values: Sequence[np.ndarray], at: Sequence[np.ndarray], count: np.ndarray) -> np.ndarray:
    """The values of all parts, each group of `count` sorted, one group after the other; `at` are the groups of the values,
    ascending within a part."""
    first = np.cumsum(count) - count
    ranked, begin = np.empty(count.sum()), first.copy()
    for mine, own in zip(at, values, strict=True):
        ranked[begin[mine] + np.arange(len(mine)) - np.searchsorted(mine, mine)] = own
        begin += np.bincount(mine, minlength=len(begin))
    for size in np.unique(count).tolist():
        groups = first[count == size]
        for some in np.array_split(groups, -(-len(groups) * size // _SORTED_AT_ONCE)):
            rows = some[:, None] + np.arange(size)
            ranked[rows] = np.sort(ranked[rows], axis=1)
    return ranked


@dataclass(frozen=True)
class PeerTable:
    """What the work of a job's ranks is compared with, by identity."""

    exact: _Middles
    alike: _Middles
    usual: np.ndarray
    """How many nodes of each identity of `alike` a rank usually has, int64; with two ranks, the lower count."""
    purpose: _Middles

    @classmethod
    def of(cls, parts: Iterable[RankWork]) -> "PeerTable":
        """Of the work of all ranks, which the parts share out. Of each, only durations by identity are kept."""
        kept = (tuple(map(_kept, (part.by_exact, part.by_alike, part.by_purpose))) for part in parts)
        exact, alike, purpose = zip(*kept, strict=True)
        middles = _Middles.of(alike)
        identity, size = (np.concatenate([getattr(one, name) for one in alike]) for name in ("identity", "size"))
        usual, _ = medians_of(identity, size, middles.identity, low=True)
        return cls(_Middles.of(exact), middles, usual, _Middles.of(purpose))

    def counterparts(self, work: RankWork) -> Counterparts:
        """The counterparts of the nodes of one of the parts."""
        found = Counterparts(work.own, *(np.full(work.dfg.nodes, np.nan) for _ in range(3)))
        _fill_in(found, self.exact, work.by_exact)
        pairs = work.by_alike
        # What a rank does more often than the others.
        is_new = np.isnan(found.others[pairs.nodes])
        compared = pairs.size - np.bincount(pairs.pair, is_new, len(pairs.size))
        is_more = compared >= self.usual[np.searchsorted(self.alike.identity, pairs.identity)]
        surplus = is_new & ~work.before[pairs.nodes] & is_more[pairs.pair]
        _fill_in(found, self.alike, pairs, ~surplus)
        # A rank that is alone in its role has no counterparts.
        extra = pairs.nodes[surplus]
        _count_as_zero(found, extra[work.sharing[extra] > 1], work)
        _fill_in(found, self.purpose, work.by_purpose)
        return found


def _kept(pairs: _ByRank) -> _ByRank:
    """The pairs in little memory, without the nodes."""
    none = np.zeros(0, np.int64)
    small = {name: narrow(getattr(pairs, name)) for name in ("identity", "size", "least")}
    return pairs._replace(nodes=none, pair=none, **small)


def _fill_in(found: Counterparts, among: _Middles, pairs: _ByRank, which: np.ndarray | None = None) -> None:
    """Set the counterparts of nodes that have none yet, of those in `which`."""
    new = np.isnan(found.others[pairs.nodes])
    if which is not None:
        new &= which
    nodes, pair = pairs.nodes[new], pairs.pair[new]
    of_pairs = among.around(pairs.identity, pairs.mean_ns)
    for into, values in zip((found.others, found.median, found.mean), of_pairs, strict=True):
        into[nodes] = values[pair]


def _count_as_zero(found: Counterparts, nodes: np.ndarray, work: RankWork) -> None:
    """Set the counterparts of `nodes` to 0 on all other ranks of the role."""
    ranks, work_ns = work.sharing[nodes], work.work_ns[nodes]
    found.others[nodes] = 0
    found.median[nodes] = np.where(ranks == 2, work_ns / 2, 0)
    found.mean[nodes] = work_ns / ranks


def roles_of(dfg: Dfg) -> np.ndarray:
    """Role of each rank of `dfg.marks`, int64[ranks], numbered from 0.

    All ranks of a job have the same role, unless they exchange messages like the stages of a pipeline. Then ranks have the
    same role only if they share at least `MIN_SHARED_WORK_SHARE` of their compute nodes.
    """
    ranks = dfg.marks.ranks
    if not passes_messages(dfg):
        return np.zeros(len(ranks), np.int64)
    is_compute = dfg.of(Cls.COMPUTE)
    return roles_by_compute(dfg.key[mine[is_compute[mine]]] for mine in map(dfg.nodes_of, ranks))


def roles_by_compute(keys_of_ranks: Iterable[np.ndarray]) -> np.ndarray:
    """`roles_of` ranks whose compute nodes have these keys."""
    roles: list[int] = []
    known: list[set[int]] = []
    seen: dict[bytes, int] = {}
    for keys in map(np.unique, keys_of_ranks):
        if (content := keys.tobytes()) not in seen:
            mine = set(keys.tolist())
            alike = (
                n for n, other in enumerate(known) if len(mine & other) >= MIN_SHARED_WORK_SHARE * len(mine | other)
            )
            seen[content] = next(alike, len(known))
            if seen[content] == len(known):
                known.append(mine)
        roles.append(seen[content])
    return np.array(roles, np.int64)


def passes_messages(dfg: Dfg) -> bool:
    """Whether ranks exchange messages: whether a collective between two ranks has the name of a send or receive."""
    arrivals = (dfg.collective >= 0) & dfg.of(Cls.WAIT) & (dfg.rank >= 0)
    if not arrivals.any():
        return False
    of_two = np.flatnonzero(np.bincount(dfg.collective[arrivals]) == 2)
    names = np.unique(dfg.name[arrivals & np.isin(dfg.collective, of_two)])
    return any(_MESSAGE.search(dfg.names[name]) for name in names)
