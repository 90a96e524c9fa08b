"""Backward passes whose gradients launch NCCL all-reduces: order of gradients, launched work, and work that waits for it.

DDP's autograd thread launches the all-reduce of a bucket while it handles the gradient that fills it.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from esprof.core.types import Rank
from esprof.replay.dfg import Cls, Dfg, Edge, LaneKind
from esprof.replay.whatif.gradients.backward import EVALUATE, NotBuckets
from esprof.run.collective_names import collective_word


@dataclass(frozen=True)
class Pass:
    """A rank's backward pass in one step. G gradients, K launches, B buckets."""

    begin: np.ndarray
    """First node of the handling of each gradient, int[G], ascending."""
    end: np.ndarray
    """Last node of the handling of each gradient, int[G]."""
    skipped: int
    """Number of earlier gradients of the step, in passes without all-reduces."""
    of: int
    """Number of gradients of the step."""
    source: np.ndarray
    """Node of the autograd thread before each launch to a computing stream, int[K], ascending."""
    work: np.ndarray
    """Launched node, int[K]."""
    closing: np.ndarray
    """The gradient that launched the all-reduce of each bucket, int[B]."""
    arrivals: np.ndarray
    """Arrival at the all-reduce of each bucket, in launch order, int[B]."""
    all_reduces: np.ndarray
    """Communication node of each bucket, int[B]."""


@dataclass(frozen=True)
class Passes:
    """Finds the backward passes in a graph of N nodes."""

    dfg: Dfg

    def find(self, rank: Rank, step: int) -> Pass:
        """The backward pass of a rank in a step that launches all-reduces. Raises NotBuckets unless there is exactly one."""
        begin, end = self._handled(rank, step)
        thread = self.dfg.lane[begin[0]]
        source, target = self._launched(thread, step)
        gradient = np.searchsorted(begin, source, side="right") - 1
        all_reduces = self._is_nccl[target]
        launches = np.flatnonzero(all_reduces & (gradient >= 0) & (source <= end[gradient]))
        arrivals, closing = target[launches], gradient[launches]
        self._check(arrivals)
        own = self._between_hand_overs(thread, step, begin, closing)
        skipped = int(np.argmax(own))
        return Pass(
            begin=begin[own],
            end=end[own],
            skipped=skipped,
            of=len(begin),
            source=source[~all_reduces],
            work=target[~all_reduces],
            closing=closing - skipped,
            arrivals=arrivals,
            all_reduces=self._all_reduces(arrivals),
        )

    def handling(self, one: Pass) -> list[tuple[int, ...]]:
        """The nodes of the autograd thread while it handles each gradient, ascending."""
        dfg, first = self.dfg, one.begin[0]
        on_thread = dfg.nodes_of(int(dfg.rank[first]))
        on_thread = on_thread[dfg.lane[on_thread] == dfg.lane[first]]
        since, until = np.searchsorted(on_thread, one.begin), np.searchsorted(on_thread, one.end, side="right")
        return [tuple(on_thread[a:b].tolist()) for a, b in zip(since, until, strict=True)]

    def readers(self, one: Pass) -> np.ndarray:
        """Edges from the all-reduces of a pass to the work that waits for them. Raises NotBuckets if there are none."""
        dfg, edges = self.dfg, self._reads
        edges = edges[np.isin(dfg.pred_idx[edges], one.all_reduces)]
        # Work after the pass also waits for the last bucket, so its ids are higher. It may be a collective on the same
        # stream; an edge to a collective of another step only states stream order, and is left out.
        target, source = dfg.pred_target[edges], dfg.pred_idx[edges]
        crosses_step = (dfg.pred_kind[edges] == Edge.LANE) & (dfg.step[target] != dfg.step[source])
        found: np.ndarray = edges[(target > one.all_reduces.max()) & ~crosses_step]
        if not len(found):
            raise NotBuckets("no recorded work waits for its all-reduces")
        return found

    def _handled(self, rank: Rank, step: int) -> tuple[np.ndarray, np.ndarray]:
        """(first, last) node of the handling of each gradient. Raises NotBuckets if there is no gradient."""
        dfg, mine = self.dfg, self._evaluated
        mine = mine[(dfg.rank[mine] == rank) & (dfg.step[mine] == step)]
        if not len(mine):
            raise NotBuckets("its backward pass has no recorded gradient")
        # An operation that launches work continues as another node of the same event.
        _, first, number = np.unique(dfg.event[mine], return_index=True, return_inverse=True)
        last = np.zeros(len(first), np.int64)
        np.maximum.at(last, number, np.arange(len(mine)))
        order = np.argsort(first)
        return mine[first[order]], mine[last[order]]

    def _launched(self, thread: int, step: int) -> tuple[np.ndarray, np.ndarray]:
        """(node before the launch, launched node) for each launch of a thread in a step, in order."""
        dfg, edges = self.dfg, self._launches
        edges = edges[(dfg.lane[dfg.pred_idx[edges]] == thread) & (dfg.step[dfg.pred_target[edges]] == step)]
        return dfg.pred_idx[edges], dfg.pred_target[edges]

    def _check(self, arrivals: np.ndarray) -> None:
        """Raises NotBuckets unless these are arrivals at matched all-reduces."""
        dfg = self.dfg
        if not len(arrivals):
            raise NotBuckets("its gradients launch no collective between GPUs")
        if {collective_word(dfg.label(node)) for node in arrivals.tolist()} != {"all_reduce"}:
            raise NotBuckets("its gradients launch collectives other than all-reduces (FSDP, ZeRO)")
        if (dfg.collective[arrivals] < 0).any():
            raise NotBuckets("some of its all-reduces are not matched across ranks")

    def _between_hand_overs(self, thread: int, step: int, begin: np.ndarray, closing: np.ndarray) -> np.ndarray:
        """Mask of the gradients of the pass whose gradients `closing` launched all-reduces, bool[len(begin)].

        Each backward pass begins with a hand-over to the autograd thread. Gradients of a pass without all-reduces are
        accumulated into those of the next one. Raises NotBuckets if several passes launch all-reduces.
        """
        dfg, edges = self.dfg, self._hand_overs
        handed = dfg.pred_target[edges]
        handed = np.unique(handed[(dfg.lane[handed] == thread) & (dfg.step[handed] == step)])
        number = np.searchsorted(handed, begin)
        own: np.ndarray = number == number[closing[0]]
        if not own[closing].all():
            raise NotBuckets("several backward passes of a step launch all-reduces")
        return own

    def _all_reduces(self, arrivals: np.ndarray) -> np.ndarray:
        """Communication node of each of these collectives on the same lane."""
        dfg = self.dfg
        known = {(int(dfg.lane[node]), int(dfg.collective[node])): node for node in self._moves.tolist()}
        return np.array([known[int(dfg.lane[node]), int(dfg.collective[node])] for node in arrivals.tolist()])

    @cached_property
    def _evaluated(self) -> np.ndarray:
        """Nodes that handle gradients, ascending."""
        return np.flatnonzero(self.dfg.named(EVALUATE.__eq__) & (self.dfg.event >= 0))

    @cached_property
    def _is_nccl(self) -> np.ndarray:
        """bool[N], mask of NCCL collectives on streams, matched or not."""
        is_nccl = self.dfg.named(lambda name: "nccl" in name and collective_word(name) is not None)
        mask: np.ndarray = is_nccl & self.dfg.on(LaneKind.STREAM)
        return mask

    @cached_property
    def _moves(self) -> np.ndarray:
        """Communication nodes of all matched collectives."""
        return np.flatnonzero(self._is_nccl & self.dfg.of(Cls.COMMUNICATION) & (self.dfg.collective >= 0))

    @cached_property
    def _launches(self) -> np.ndarray:
        """Edges from threads to launched work, sorted by the node before the launch."""
        dfg = self.dfg
        edges = np.flatnonzero((dfg.pred_kind == Edge.LAUNCH) & dfg.on(LaneKind.STREAM)[dfg.pred_target])
        return edges[np.argsort(dfg.pred_idx[edges], kind="stable")]

    @cached_property
    def _hand_overs(self) -> np.ndarray:
        """Edges by which a thread wakes another."""
        return np.flatnonzero(self.dfg.pred_kind == Edge.THREAD)

    @cached_property
    def _reads(self) -> np.ndarray:
        """Edges from communication to the nodes that wait for it."""
        is_collective_node = np.zeros(self.dfg.nodes, bool)
        is_collective_node[self._moves] = True
        return np.flatnonzero(is_collective_node[self.dfg.pred_idx])
