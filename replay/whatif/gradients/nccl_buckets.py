"""DDP's gradient buckets between GPUs.

The kernel of an all-reduce waits for work launched earlier to the computing streams, and work after the backward pass waits
for all buckets. Gradients of recorded size can be assigned to any buckets; otherwise recorded buckets can be merged.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from esprof.core.types import Bytes, Rank
from esprof.replay.dfg import Dfg, Edge
from esprof.replay.whatif.communication.links import latencies_ns
from esprof.replay.whatif.gradients.backward import BackwardPass, LaunchCost, NotBuckets, Tie, gradient_elements
from esprof.replay.whatif.gradients.nccl_passes import Pass, Passes
from esprof.run.run import Run

_SHARDED = ("FullyShardedDataParallel.", "FSDP::")
"""Prefixes of the names of FSDP's annotations."""

_ITEMS = (2, 4, 8)
"""Possible sizes of a gradient's element, bytes."""


def backward_passes(run: Run, dfg: Dfg) -> Iterator[BackwardPass]:
    """The backward pass of each rank in each step. Raises NotBuckets if its all-reduces are not its buckets."""
    passes, latency = Passes(dfg), latencies_ns(dfg)
    for rank in dfg.marks.ranks:
        if any(name.startswith(_SHARDED) for name in run.events(rank).codes("name")[1]):
            raise NotBuckets("its gradients are sharded (FSDP)")
        elements = _elements(run, rank)
        for step in dfg.marks.steps:
            one = passes.find(rank, step)
            sent = _SentGradients(dfg, one, latency[dfg.collective[one.all_reduces]])
            launch_costs = sent.launch_costs(passes.handling(one))
            if elements is None:
                pieces, launch_costs = sent.buckets(), [launch_costs[number] for number in one.closing.tolist()]
            else:
                pieces = sent.gradients(elements.get(step, []))
            readers = tuple(_tie(dfg, dfg.pred_target, edge) for edge in passes.readers(one).tolist())
            yield BackwardPass(
                rank=rank,
                step=step,
                are_gradients=elements is not None,
                sizes=pieces.sizes,
                ready=pieces.ready,
                readers=(readers,) * len(pieces.sizes),
                moved_ns=pieces.moved_ns,
                latency_ns=float(np.median(sent.latency_ns)),
                arrivals=tuple(one.arrivals.tolist()),
                all_reduces=tuple(one.all_reduces.tolist()),
                launch_costs=tuple(launch_costs),
            )


def _elements(run: Run, rank: Rank) -> dict[int, list[int]] | None:
    """`gradient_elements`; None if they were not recorded."""
    try:
        return gradient_elements(run, rank)
    except NotBuckets:
        return None


def _tie(dfg: Dfg, nodes: np.ndarray, edge: int) -> Tie:
    """The recorded `edge` as a tie; `nodes` are the sources, or the targets, of all edges."""
    return Tie(int(nodes[edge]), Edge(dfg.pred_kind[edge]), int(dfg.pred_lag[edge]))


@dataclass(frozen=True)
class _Pieces:
    """See `BackwardPass`."""

    sizes: tuple[Bytes, ...]
    ready: tuple[tuple[Tie, ...], ...]
    moved_ns: tuple[float, ...]


@dataclass(frozen=True)
class _SentGradients:
    """Gradients that a backward pass sent, in its buckets."""

    dfg: Dfg
    one: Pass
    latency_ns: np.ndarray
    """Fixed cost of the all-reduce of each bucket, ns."""

    def buckets(self) -> _Pieces:
        """The recorded buckets as pieces."""
        ready = tuple(self.ready[number] for number in self.one.closing.tolist())
        return _Pieces(tuple(self._sizes.tolist()), ready, tuple(self._moved_ns.tolist()))

    def gradients(self, elements: list[int]) -> _Pieces:
        """The gradients as pieces; `elements` is the number of elements of each gradient of the step.

        Raises NotBuckets if the recorded buckets do not hold the gradients in the order in which they became ready.
        """
        one = self.one
        own = np.array(elements[one.skipped : one.skipped + len(one.begin)], np.int64)
        item, rest = divmod(int(self._sizes.sum()), max(int(own.sum()), 1))
        sizes = item * own
        bucket = np.searchsorted(one.closing, np.arange(len(one.begin)))
        if (
            len(elements) != one.of
            or rest
            or item not in _ITEMS
            or bucket[-1] >= len(self._sizes)
            or not np.array_equal(np.bincount(bucket, sizes, len(self._sizes)), self._sizes)
        ):
            raise NotBuckets("its all-reduces do not hold the gradients in order of arrival")
        moved = sizes * (self._moved_ns / self._sizes)[bucket]
        return _Pieces(tuple(sizes.tolist()), tuple(self.ready), tuple(moved.tolist()))

    def launch_costs(self, handling: list[tuple[int, ...]]) -> list[LaunchCost]:
        """CPU time of launching an all-reduce at each gradient; `handling` are the nodes that handle each gradient.

        It is the difference of two medians: handling time with and without a launched all-reduce.
        """
        took = np.array([self.dfg.dur_ns[list(nodes)].sum() for nodes in handling])
        recorded = np.isin(np.arange(len(handling)), self.one.closing)
        more = 0 if recorded.all() else max(0, round(float(np.median(took[recorded]) - np.median(took[~recorded]))))
        return [LaunchCost(nodes, bool(own), more) for nodes, own in zip(handling, recorded, strict=True)]

    @property
    def _sizes(self) -> np.ndarray:
        """Size of each bucket, bytes. Raises NotBuckets if it was not recorded."""
        sizes: np.ndarray = self.dfg.bytes[self.one.all_reduces]
        if (sizes <= 0).any():
            raise NotBuckets("the sizes of its all-reduces were not recorded")
        return sizes

    @property
    def _moved_ns(self) -> np.ndarray:
        """Duration of the all-reduce of each bucket without its fixed cost, ns."""
        moved: np.ndarray = np.maximum(self.dfg.dur_ns[self.one.all_reduces] - self.latency_ns, 0)
        return moved

    @cached_property
    def ready(self) -> list[tuple[Tie, ...]]:
        """Predecessors of an all-reduce completed by each gradient: its launch, and the work launched before it.

        A gradient that launched no all-reduce would launch one when its handling ends, with the least recorded lag.
        """
        dfg, one = self.dfg, self.one
        launched = {int(number): launch for number, launch in zip(one.closing, self._launched, strict=True)}
        lag = min(launch.lag_ns for launch in launched.values())
        streams = [np.flatnonzero(dfg.lane[one.work] == lane) for lane in self._awaited.tolist()]
        found = []
        for number, end in enumerate(one.end.tolist()):
            launch = launched.get(number, Tie(end, Edge.LAUNCH, lag))
            before = [np.searchsorted(one.source[mine], launch.node, side="right") - 1 for mine in streams]
            last = [int(one.work[mine[at]]) for mine, at in zip(streams, before, strict=True) if at >= 0]
            found.append((launch, *(Tie(node, Edge.WAIT) for node in last)))
        return found

    @property
    def _launched(self) -> list[Tie]:
        """The launch of the all-reduce of each bucket."""
        edges = self._edges_to(self.one.arrivals, Edge.LAUNCH)
        return [_tie(self.dfg, self.dfg.pred_idx, edge) for edge in edges]

    @property
    def _awaited(self) -> np.ndarray:
        """Lanes of the streams whose work the all-reduces wait for; if no wait is known, all computing streams."""
        dfg, lanes = self.dfg, np.unique(self.dfg.lane[self.one.work])
        waits = self._edges_to(self.one.arrivals, Edge.WAIT, Edge.LIKELY_WAIT)
        known = np.intersect1d(lanes, dfg.lane[dfg.pred_idx[waits]])
        return known if len(known) else lanes

    def _edges_to(self, nodes: np.ndarray, *kinds: Edge) -> list[int]:
        """Edges of these kinds into `nodes`, sorted by node."""
        dfg = self.dfg
        edges = [edge for node in nodes.tolist() for edge in range(dfg.pred_ptr[node], dfg.pred_ptr[node + 1])]
        return [edge for edge in edges if dfg.pred_kind[edge] in kinds]
