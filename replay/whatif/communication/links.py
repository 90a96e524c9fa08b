"""Share of a collective's time on the link, apart from latency and CPU work, from the recorded collectives alone."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from esprof.core.types import NS_PER_US, Bytes, Ns
from esprof.replay.dfg import Cls, Dfg, LaneKind
from esprof.replay.engine import timeline
from esprof.replay.whatif.communication.probed import Link, ProbedCollectives
from esprof.run.collective_names import collective_word

UNDISTURBED_QUANTILE = 0.05
"""Share of the collectives, those with the least time per byte, that only the link is assumed to limit."""

TYPICAL_QUANTILE = 0.25
"""Quantile of the time per byte at which a collective is assumed not to be slowed down by compute."""

DEFAULT_LATENCY: Ns = 10 * NS_PER_US
"""Latency of a collective between GPUs where all recorded ones have one size, so that it is unknown."""

_MAX_WORKED = 0.2
"""Share of a collective's time in which its ranks work, up to which its usual time is that of the link."""

_MIN_IDLE = 8
"""Least number of such collectives of a kind to know their usual time."""

_WORK = (Cls.COMPUTE, Cls.CPU, Cls.HOST_GAP)

MIN_SIZE_RATIO = 1.5
"""Least ratio of the largest to the smallest collective for a fit of a line through their times."""


def bus_factor(word: str, ranks: int) -> float | None:
    """Bytes that each link carries for a byte of a collective's size, that of its larger side; None for unknown kinds.

    From nccl-tests, doc/PERFORMANCE.md: bus bandwidth = size / time · factor can be compared with the link's peak.
    """
    if word == "all_reduce":
        return 2 * (ranks - 1) / ranks
    if word in ("reduce_scatter", "all_gather", "all_to_all"):
        return (ranks - 1) / ranks
    return 1.0 if word in ("broadcast", "reduce", "send", "recv", "send_recv") else None


@dataclass(frozen=True)
class Stretches:
    """Stretches of time in which collectives followed each other without a gap. C collectives, S stretches.

    Two collectives that share a link take as long together as one after the other, so a stretch measures the link better
    than a single collective.
    """

    collective: np.ndarray
    """Numbers of the collectives, ascending, int[C]."""
    stretch: np.ndarray
    """Stretch of each collective, int[C]."""
    begin_ns: np.ndarray
    """When each stretch begins, ns since the graph's `t0_ns`, int64[S]."""
    end_ns: np.ndarray
    moved: np.ndarray
    """Bytes that each link carried in each stretch (`bus_factor`), float64[S]."""
    kind: np.ndarray
    """Number of the kind of collective in each stretch, int[S]; a mixture of kinds is one, too."""
    is_idle: np.ndarray
    """Whether the ranks hardly work meanwhile, bool[S]."""

    @property
    def took_ns(self) -> np.ndarray:
        """Duration of each stretch, ns, int64[S]."""
        took: np.ndarray = np.maximum(self.end_ns - self.begin_ns, 1)
        return took

    def with_work(self, worked_ns: np.ndarray) -> "Stretches":
        """The stretches, meanwhile the rank with most work works for `worked_ns`, float64[S]."""
        return replace(self, is_idle=worked_ns <= _MAX_WORKED * self.took_ns)

    @property
    def ns_per_byte(self) -> np.ndarray:
        """Time per byte on the link in each stretch, ns, float64[S]."""
        slowness: np.ndarray = self.took_ns / self.moved
        return slowness

    def link_ns_per_byte(self, quantile: float = UNDISTURBED_QUANTILE) -> float:
        """This quantile of the time per byte, ns, over the stretches with at least half the median number of bytes.

        The time of smaller stretches is mostly latency.
        """
        large = self.moved >= np.median(self.moved) / 2
        return float(np.quantile(self.ns_per_byte[large], quantile))

    @cached_property
    def link_share(self) -> np.ndarray:
        """The link's share of the time of each stretch, float64[S].

        While the ranks only wait, collectives take what their algorithm takes on this link, which is not the same for all
        kinds: with gloo, a rank that comes late to an all-gather gets the second half of it late. Where there are too few
        of a kind, only the fastest of all are taken to be undisturbed.
        """
        needed = np.full(len(self.moved), self.link_ns_per_byte())
        for one in np.unique(self.kind[self.is_idle]).tolist():
            idle = self.is_idle & (self.kind == one)
            large = idle & (self.moved >= np.median(self.moved[idle]) / 2)
            if np.count_nonzero(large) >= _MIN_IDLE:
                needed[self.kind == one] = np.quantile(self.ns_per_byte[large], TYPICAL_QUANTILE)
        share: np.ndarray = np.minimum(1.0, needed / self.ns_per_byte)
        return share

    def all_reduce_ns(self, size: Bytes, ranks: int) -> Ns:
        """Duration of an all-reduce of `size` bytes on links that carry one at a time, ns."""
        return self.collective_ns("all_reduce", size, ranks)

    def collective_ns(self, word: str, size: Bytes, ranks: int) -> Ns:
        """Duration of a collective of this kind (`bus_factor`) of `size` bytes on links that carry one at a time, ns."""
        return round(size * _carried(word, ranks) * self._typical)

    @cached_property
    def _typical(self) -> float:
        return self.link_ns_per_byte(TYPICAL_QUANTILE)


def between_cpus(dfg: Dfg) -> np.ndarray:
    """Ids of the nodes of matched collectives between CPUs that send bytes, int64."""
    return np.flatnonzero(dfg.on(LaneKind.COMM) & dfg.of(Cls.COMMUNICATION) & (dfg.collective >= 0) & (dfg.bytes > 0))


def stretches(dfg: Dfg) -> Stretches | None:
    """The stretches of `dfg` as recorded; None without matched collectives of known size on CPU threads."""
    nodes = between_cpus(dfg)
    if not len(nodes):
        return None
    # A collective lasts from the first begin to the last end on any rank; `first` is one of its communication nodes.
    collective, first, which = np.unique(dfg.collective[nodes], return_index=True, return_inverse=True)
    begin, end = np.full(len(collective), np.iinfo(np.int64).max), np.zeros(len(collective), np.int64)
    np.minimum.at(begin, which, dfg.recorded_ns[nodes])
    np.maximum.at(end, which, (dfg.recorded_ns + dfg.dur_ns)[nodes])
    # Sorted by begin, a stretch opens with each collective that begins after the latest end so far. It closes at the latest
    # end before the next stretch opens.
    order = np.argsort(begin, kind="stable")
    reached = np.maximum.accumulate(end[order])
    opens = np.r_[True, begin[order][1:] > reached[:-1]]
    stretch = np.empty(len(collective), np.int64)
    stretch[order] = np.cumsum(opens) - 1
    last = np.r_[np.flatnonzero(opens)[1:], len(order)] - 1
    opened, closed = begin[order][opens], reached[last]
    found = Stretches(
        collective=collective,
        stretch=stretch,
        begin_ns=opened,
        end_ns=closed,
        moved=np.bincount(stretch, weights=(dfg.bytes * bus_factors(dfg))[nodes[first]]),
        kind=_kinds(stretch, dfg.name[nodes[first]]),
        is_idle=np.zeros(len(opened), bool),
    )
    return found.with_work(worked_ns(dfg, found))


def _kinds(stretch: np.ndarray, name: np.ndarray) -> np.ndarray:
    """A number for the set of names in each stretch, int[S]; `stretch` and `name` are those of each collective."""
    which, names = np.unique(np.stack([stretch, name]), axis=1)  # Each name once, by stretch.
    named = [tuple(some.tolist()) for some in np.split(names, np.flatnonzero(np.diff(which)) + 1)]
    numbers = {some: number for number, some in enumerate(dict.fromkeys(named))}
    return np.array([numbers[some] for some in named])


def worked_ns(dfg: Dfg, during: Stretches) -> np.ndarray:
    """Recorded work of CPU threads during each stretch, on the rank with most of it, ns, float64[S]."""
    begin, end = during.begin_ns, during.end_ns
    work = dfg.on(LaneKind.CPU) & dfg.of(*_WORK) & (dfg.recorded_ns > 0)
    most = np.zeros(len(begin))
    for rank in dfg.marks.ranks:
        nodes = dfg.nodes_of(rank)
        nodes = nodes[work[nodes]]
        nodes = nodes[np.argsort(dfg.recorded_ns[nodes], kind="stable")]
        most = np.maximum(most, timeline.worked_ns(dfg.recorded_ns[nodes], dfg.dur_ns[nodes], begin, end))
    return most


def bus_factors(dfg: Dfg) -> np.ndarray:
    """`bus_factor` of each communication node, float64[N]; 1 for unknown kinds, single ranks, and other nodes."""
    factors = np.ones(dfg.nodes)
    nodes = np.flatnonzero(dfg.of(Cls.COMMUNICATION) & (dfg.collective >= 0))
    ranks = np.bincount(dfg.collective[nodes])[dfg.collective[nodes]]
    kinds, which = np.unique(np.stack([dfg.name[nodes], ranks]), axis=1, return_inverse=True)
    known = [_carried(collective_word(dfg.names[name]), count) for name, count in kinds.T.tolist()]
    factors[nodes] = np.array(known)[which.reshape(-1)]
    return factors


def _carried(word: str | None, ranks: int) -> float:
    """`bus_factor`; 1 for unknown kinds, and for a single rank, which sends nothing."""
    return (word and bus_factor(word, ranks)) or 1.0


@dataclass(frozen=True)
class RecordedLinks:
    """The communication of a job before any edits: edited durations do not measure the link."""

    dfg: Dfg
    stretches: Stretches | None

    @classmethod
    def of(cls, dfg: Dfg) -> "RecordedLinks":
        return cls(dfg, stretches(dfg))


class LinkShare(NamedTuple):
    """The link's share of each node's time."""

    share: np.ndarray
    """The link's share, from 0 to 1, float64[N]."""
    least: np.ndarray
    """Lower bound of the share, however fast the link, since CPUs work during that time; float64[N]."""


def link_share(dfg: Dfg, recorded: RecordedLinks, probed: ProbedCollectives | None = None) -> LinkShare:
    """The link's share of the time of each node of `dfg`.

    For communication between CPUs it is the time of its bytes at the link's bandwidth: as `probed`, or else as
    `Stretches.link_share`. The rest is CPU time: CPUs copy, reduce, and compute concurrently. For communication between GPUs
    it is all except the latency, for all other nodes 1.
    """
    share, least = np.ones(dfg.nodes), np.zeros(dfg.nodes)
    collectives = dfg.of(Cls.COMMUNICATION) & (dfg.collective >= 0)
    count = max(int(dfg.collective.max(initial=-1)), int(recorded.dfg.collective.max(initial=-1))) + 1
    on_gpu, on_cpu = (np.flatnonzero(collectives & dfg.on(kind)) for kind in (LaneKind.STREAM, LaneKind.COMM))
    latency = latencies_ns(recorded.dfg, count)[dfg.collective[on_gpu]]
    share[on_gpu] -= np.minimum(latency / np.maximum(dfg.dur_ns[on_gpu], 1), 1)
    share[on_cpu] = _share_between_cpus(recorded, count)[dfg.collective[on_cpu]]
    if probed is not None:
        _as_probed(share, least, dfg, recorded, on_cpu, probed)
    return LinkShare(share, least)


def _as_probed(
    share: np.ndarray,
    least: np.ndarray,
    dfg: Dfg,
    recorded: RecordedLinks,
    nodes: np.ndarray,
    probed: ProbedCollectives,
) -> None:
    """Set the shares of the communication `nodes` whose collective was measured."""
    slowness = ns_per_byte(dfg, recorded, nodes)
    by_number: dict[int, list[int]] = {}
    for node in nodes.tolist():
        by_number.setdefault(int(dfg.collective[node]), []).append(node)
    known: dict[tuple[str, tuple[int, ...]], Link | None] = {}
    own = dict(zip(nodes.tolist(), slowness.tolist(), strict=True))
    for members in by_number.values():
        kind = dfg.label(members[0]), tuple(sorted(dfg.rank[members].tolist()))
        if kind not in known:
            known[kind] = probed.link(*kind)
        link = known[kind]
        if link is not None:
            for node in members:
                share[node] = min(1.0, link.ns_per_byte / own[node])
                least[node] = min(share[node], link.cpu_ns_per_byte / own[node])


def ns_per_byte(dfg: Dfg, recorded: RecordedLinks, nodes: np.ndarray) -> np.ndarray:
    """Time per byte of the size of these communication nodes, ns; for recorded nodes by that of their stretch."""
    slowness: np.ndarray = np.maximum(dfg.dur_ns[nodes], 1) / np.maximum(dfg.bytes[nodes], 1)
    if (found := recorded.stretches) is not None:
        row = np.minimum(np.searchsorted(found.collective, dfg.collective[nodes]), len(found.collective) - 1)
        is_old = found.collective[row] == dfg.collective[nodes]
        slowness[is_old] = (found.ns_per_byte[found.stretch[row]] * bus_factors(dfg)[nodes])[is_old]
    return slowness


def _share_between_cpus(recorded: RecordedLinks, count: int) -> np.ndarray:
    """The link's share of each of `count` collectives between CPUs, float64[count]; 1 for others.

    Collectives that are not in `recorded` were added by an edit and take the typical time (`Stretches.all_reduce_ns`).
    """
    share, found = np.ones(count), recorded.stretches
    if found is not None:
        share[found.collective] = found.link_share[found.stretch]
        share[int(recorded.dfg.collective.max()) + 1 :] = found.link_ns_per_byte() / found.link_ns_per_byte(
            TYPICAL_QUANTILE
        )
    return share


def latencies_ns(dfg: Dfg, count: int | None = None) -> np.ndarray:
    """Latency of each of `count` collectives between GPUs, ns, float64[count]; 0 for others.

    `count` defaults to the number of collectives of `dfg`; collectives beyond were added by an edit and get the median.
    Collectives of one kind on one stream, hence of one process group, take `latency + bytes * ns_per_byte` (the α–β model),
    a line through their median times by size (Theil–Sen estimator). If all have about one size, the latency is the median
    over the other kinds, or DEFAULT_LATENCY. It never exceeds the time of the smallest collective.
    """
    known = int(dfg.collective.max(initial=-1)) + 1
    latency = np.zeros(known if count is None else count)
    nodes = np.flatnonzero(
        dfg.on(LaneKind.STREAM) & dfg.of(Cls.COMMUNICATION) & (dfg.collective >= 0) & (dfg.bytes > 0)
    )
    number, first = np.unique(dfg.collective[nodes], return_index=True)
    nodes = nodes[first]
    kind = dfg.lane[nodes].astype(np.int64) * len(dfg.names) + dfg.name[nodes]
    order = np.argsort(kind, kind="stable")
    fitted: list[float] = []
    for mine in np.split(order, np.flatnonzero(np.diff(kind[order])) + 1):
        found = line(dfg.bytes[nodes[mine]], dfg.dur_ns[nodes[mine]])
        latency[number[mine]] = np.nan if found is None else min(found.fixed_ns, found.least_ns)
        fitted += [] if found is None else [min(found.fixed_ns, found.least_ns)]
    usual = float(np.median(fitted)) if fitted else DEFAULT_LATENCY
    latency[known:] = usual
    return np.where(np.isnan(latency), usual, latency)


class LinkModel(NamedTuple):
    """Duration of collectives of one kind: `fixed_ns + bytes * ns_per_byte`; neither is negative."""

    fixed_ns: float
    ns_per_byte: float
    least_ns: float
    """Median time of the fastest size, ns."""


def line(size: np.ndarray, took_ns: np.ndarray) -> LinkModel | None:
    """Theil–Sen line through the median times (ns) by size (bytes); None if the sizes are too similar."""
    sizes, which = np.unique(size, return_inverse=True)
    if not len(sizes) or sizes[-1] < MIN_SIZE_RATIO * sizes[0]:
        return None
    medians = np.array([np.median(took_ns[which == at]) for at in range(len(sizes))])
    one, other = np.triu_indices(len(sizes), 1)
    slope = float(np.median((medians[other] - medians[one]) / (sizes[other] - sizes[one])))
    slope = max(slope, 0.0)
    return LinkModel(max(0.0, float(np.median(medians - slope * sizes))), slope, float(medians.min()))
