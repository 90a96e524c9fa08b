"""The collectives of a run's steady-state steps: launch times, durations, and exposed time."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from esprof.analyzers.views.breakdown import layers, partition
from esprof.core.types import NS_PER_S, Bytes, Rank
from esprof.replay.dfg import Cls, Dfg, Edge
from esprof.replay.replayed import Replayed
from esprof.replay.whatif.gradients.backward import EVALUATE
from esprof.replay.whatif.gradients.buckets import MIB
from esprof.run.collective_names import collective_word

SMALL: Bytes = MIB
"""Size of DDP's first bucket (torch's `_DEFAULT_FIRST_BUCKET_BYTES`); the others hold 25 MiB."""

_NEVER = np.iinfo(np.int64).max


@dataclass(frozen=True)
class SteadyStateCollectives:
    """The matched collectives of the steady-state steps: an entry for each collective on each of its ranks."""

    replayed: Replayed
    node: np.ndarray
    """Communication nodes, ascending, int64[collectives]."""
    launched_ns: np.ndarray
    """Launch time on the rank, ns since `t0_ns`, int64[collectives]; -1 if unknown."""

    @property
    def dfg(self) -> Dfg:
        return self.replayed.built.dfg

    @property
    def bytes(self) -> np.ndarray:
        """Bytes of each collective; -1 where unknown."""
        sizes: np.ndarray = self.dfg.bytes[self.node]
        return sizes

    @property
    def took_ns(self) -> np.ndarray:
        took: np.ndarray = self.dfg.dur_ns[self.node]
        return took

    @property
    def shares(self) -> int:
        """Steps times ranks: the divisor of sums."""
        return len(self.replayed.steps.steady) * len(self.dfg.marks.ranks)

    @property
    def is_small(self) -> np.ndarray:
        small: np.ndarray = (self.bytes > 0) & (self.bytes < SMALL)
        return small

    @cached_property
    def _evaluated(self) -> np.ndarray:
        """Nodes of autograd functions that accumulate gradients, ascending."""
        return np.flatnonzero(self.dfg.named(EVALUATE.__eq__) & (self.dfg.event >= 0))

    @cached_property
    def _gradients(self) -> dict[Rank, np.ndarray]:
        """Rank -> (step, begin, end) of its autograd functions, by begin; times in ns since `t0_ns`, shape (n, 3)."""
        dfg, nodes, found = self.dfg, self._evaluated, {}
        for rank in dfg.marks.ranks:
            mine = nodes[dfg.rank[nodes] == rank]
            # An operation that launches work continues after the launch, as another node of the same event.
            event, first, which = np.unique(dfg.event[mine], return_index=True, return_inverse=True)
            end = np.zeros(len(event), np.int64)
            np.maximum.at(end, which, (dfg.recorded_ns + dfg.dur_ns)[mine])
            begin = dfg.recorded_ns[mine[first]]
            found[rank] = np.stack([dfg.step[mine[first]], begin, end], axis=1)[np.argsort(begin)]
        return found

    @cached_property
    def by_gradient(self) -> np.ndarray:
        """Mask of the collectives launched from within an autograd function, as DDP does."""
        return self._of_rank(_within)

    @cached_property
    def after_first_gradient(self) -> np.ndarray:
        """Mask of the collectives launched after the start of the first autograd function of the rank's step."""
        return self._of_rank(lambda launched, step, gradients: _since(launched, step, gradients, np.minimum, _NEVER))

    @cached_property
    def after_last_gradient(self) -> np.ndarray:
        """Mask of the collectives launched with or after the last gradient of the rank's step: no backward pass can overlap
        them.

        The launch order is decisive on GPUs, too: a collective waits for all work that was launched before.
        """
        return self._of_rank(lambda launched, step, gradients: _since(launched, step, gradients, np.maximum, -1))

    def _of_rank(self, select: Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]) -> np.ndarray:
        """Mask from `select`, called for each rank with its collectives' launch times and steps, and its `_gradients`. False
        for ranks without recorded gradients."""
        mask = np.zeros(len(self.node), bool)
        for rank, gradients in self._gradients.items():
            mine = self.dfg.rank[self.node] == rank
            if len(gradients):
                mask[mine] = select(self.launched_ns[mine], self.dfg.step[self.node[mine]], gradients)
        return mask

    def is_kind(self, *words: str) -> np.ndarray:
        """Mask of the collectives whose kind is one of these words (`collective_word`)."""
        mask: np.ndarray = self.dfg.named(lambda name: collective_word(name) in words)[self.node]
        return mask

    def exposed_ns(self, chosen: np.ndarray) -> dict[Rank, float]:
        """Rank -> time of its mean step in which only collectives of the mask `chosen` run, ns."""
        timeline, dfg, at = self.replayed.timeline, self.dfg, self.replayed.pricer.steady_at
        spans_ns = np.stack([timeline.start_ns[self.node], timeline.end_ns[self.node]], axis=1)
        found = {}
        for column, rank in enumerate(dfg.marks.ranks):
            mine = dfg.rank[self.node] == rank
            marks = dfg.marks.first[at, column], dfg.marks.last[at, column]
            steps = np.stack([timeline.end_ns[mark] for mark in marks], axis=1)
            computing = layers(timeline, rank)[0]
            parts = partition([computing, spans_ns[mine & ~chosen], spans_ns[mine & chosen]], steps)
            found[rank] = float(parts[:, 2].mean())
        return found

    def idle_ns(self) -> dict[Rank, float]:
        """Rank -> time of its mean step from the start of its first gradient to the end of its last one in which none of its
        collectives runs, ns."""
        timeline, dfg, steady = self.replayed.timeline, self.dfg, np.array(self.replayed.steps.steady)
        found = {}
        for rank in dfg.marks.ranks:
            nodes = self._evaluated[(dfg.rank[self._evaluated] == rank) & np.isin(dfg.step[self._evaluated], steady)]
            at = np.searchsorted(steady, dfg.step[nodes])
            begin, end = np.full(len(steady), _NEVER), np.full(len(steady), -1)
            np.minimum.at(begin, at, timeline.start_ns[nodes])
            np.maximum.at(end, at, timeline.end_ns[nodes])
            backward = np.stack([begin, end], axis=1)[end >= 0]
            sent = self.node[dfg.rank[self.node] == rank]
            busy = np.stack([timeline.start_ns[sent], timeline.end_ns[sent]], axis=1)
            found[rank] = float(partition([busy], backward)[:, 1].sum()) / len(steady)
        return found

    def a_step(self, values: np.ndarray) -> float:
        """The sum of `values` in a mean step of a mean rank."""
        return float(values.sum()) / self.shares

    def rate(self, chosen: np.ndarray) -> float:
        """Bandwidth of the collectives of the mask `chosen`, of known sizes, bytes/s."""
        return float(self.bytes[chosen].sum()) / max(float(self.took_ns[chosen].sum()), 1) * NS_PER_S


def _within(launched: np.ndarray, step: np.ndarray, gradients: np.ndarray) -> np.ndarray:
    at = np.searchsorted(gradients[:, 1], launched, side="right") - 1
    inside: np.ndarray = (at >= 0) & (launched < gradients[np.maximum(at, 0), 2])
    return inside


def _since(launched: np.ndarray, step: np.ndarray, gradients: np.ndarray, which: np.ufunc, start: int) -> np.ndarray:
    """Mask of launches at or after the start of the first (`np.minimum`) or last (`np.maximum`) gradient of their step."""
    steps, at = np.unique(gradients[:, 0], return_inverse=True)
    begin = np.full(len(steps), start)
    which.at(begin, at, gradients[:, 1])
    index = np.minimum(np.searchsorted(steps, step), len(steps) - 1)
    since: np.ndarray = (steps[index] == step) & (launched >= begin[index])
    return since


def steady_collectives(replayed: Replayed) -> SteadyStateCollectives:
    """The collectives of the steady-state steps."""
    dfg = replayed.built.dfg
    counted = np.isin(dfg.step, replayed.steps.steady) & (dfg.collective >= 0)
    node = np.flatnonzero(dfg.of(Cls.COMMUNICATION) & counted)
    launches = np.flatnonzero((dfg.pred_kind == Edge.LAUNCH) & (counted & dfg.of(Cls.WAIT))[dfg.pred_target])
    source, arrival = dfg.pred_idx[launches], dfg.pred_target[launches]
    at_ns = (dfg.recorded_ns[source] + dfg.dur_ns[source]).tolist()
    # (rank, collective) is unique: a rank takes part in a collective once.
    launched = dict(zip(_participations(dfg, arrival), at_ns, strict=True))
    launched_ns = np.array([launched.get(key, -1) for key in _participations(dfg, node)], np.int64)
    return SteadyStateCollectives(replayed, node, launched_ns)


def _participations(dfg: Dfg, nodes: np.ndarray) -> list[tuple[int, int]]:
    """(rank, number of the collective) of each of these nodes."""
    return list(zip(dfg.rank[nodes].tolist(), dfg.collective[nodes].tolist(), strict=True))
