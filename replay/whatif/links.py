"""What the link takes of a transfer between CPUs (gloo), and what the CPUs take: from the recorded transfers alone."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from esprof.replay.dfg import Cls, Dfg
from esprof.types import Bytes, Ns

UNDISTURBED = 0.05
"""Share of the transfers, the fastest by byte, that are taken to be limited by nothing but the link."""

TYPICAL = 0.25
"""Quantile of the time by byte that a transfer takes which computing does not slow down."""


@dataclass(frozen=True)
class Stretches:
    """Stretches of time in which transfers followed one another without a gap. Two transfers that share a link take as long
    as one after the other, so a stretch tells more of the link than one of them. C collectives, S stretches."""

    collective: np.ndarray
    """Numbers of the collectives, ascending, int[C]."""
    stretch: np.ndarray
    """Stretch of each collective, int[C]."""
    took_ns: np.ndarray
    moved: np.ndarray
    """Bytes a rank, int64[S]."""

    @property
    def ns_per_byte(self) -> np.ndarray:
        slowness: np.ndarray = self.took_ns / self.moved
        return slowness

    def link_ns_per_byte(self, quantile: float = UNDISTURBED) -> float:
        """Time by byte, of the stretches that move at least half as much as is usual: of a short one, latency is most."""
        large = self.moved >= np.median(self.moved) / 2
        return float(np.quantile(self.ns_per_byte[large], quantile))

    def transfer_ns(self, size: Bytes) -> Ns:
        """What a transfer of `size` bytes a rank takes on a link that carries one after the other."""
        return round(size * self._typical)

    @cached_property
    def _typical(self) -> float:
        return self.link_ns_per_byte(TYPICAL)


def stretches(dfg: Dfg) -> Stretches | None:
    """The stretches of `dfg` as recorded; None where no matched transfer of known size ran on CPU threads."""
    nodes = np.flatnonzero(dfg.on("comm") & dfg.of(Cls.COMMUNICATION) & (dfg.collective >= 0) & (dfg.bytes > 0))
    if not len(nodes):
        return None
    collective, first, which = np.unique(dfg.collective[nodes], return_index=True, return_inverse=True)
    begin, end = np.full(len(collective), np.iinfo(np.int64).max), np.zeros(len(collective), np.int64)
    np.minimum.at(begin, which, dfg.recorded_ns[nodes])
    np.maximum.at(end, which, (dfg.recorded_ns + dfg.dur_ns)[nodes])
    order = np.argsort(begin, kind="stable")
    reached = np.maximum.accumulate(end[order])
    opens = np.r_[True, begin[order][1:] > reached[:-1]]
    stretch = np.empty(len(collective), np.int64)
    stretch[order] = np.cumsum(opens) - 1
    last = np.r_[np.flatnonzero(opens)[1:], len(order)] - 1
    return Stretches(
        collective=collective,
        stretch=stretch,
        took_ns=np.maximum(reached[last] - begin[order][opens], 1),
        moved=np.bincount(stretch, weights=dfg.bytes[nodes[first]]).astype(np.int64),
    )


def link_share(dfg: Dfg, recorded: Dfg) -> np.ndarray:
    """Per node of `dfg`, the part of its time that the link takes, float64[N]: 1 but for transfers between CPUs, where it is
    what the bytes need at the speed of the fastest. The CPUs take the rest: they copy, add up, and compute beside.

    `recorded` is the graph that `dfg` was made of by edits: what was changed tells nothing of the link.
    """
    share, found = np.ones(dfg.nodes), stretches(recorded)
    if found is None:
        return share
    known = int(recorded.collective.max()) + 1
    of_number = np.ones(max(known, int(dfg.collective.max()) + 1))
    of_number[found.collective] = np.minimum(1.0, found.link_ns_per_byte() / found.ns_per_byte)[found.stretch]
    # What an edit put in takes what is typical (`transfer_ns`).
    of_number[known:] = found.link_ns_per_byte() / found.link_ns_per_byte(TYPICAL)
    nodes = np.flatnonzero(dfg.on("comm") & dfg.of(Cls.COMMUNICATION) & (dfg.collective >= 0))
    share[nodes] = of_number[dfg.collective[nodes]]
    return share
