"""DDP's gradient buckets between GPUs.

The kernel of an all-reduce waits for what was launched to the streams that compute by then, and what follows the backward
pass waits for all buckets. Gradients whose sizes were recorded can be put into any buckets; else recorded buckets can be put
together.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from esprof.replay.dfg import Dfg, Edge
from esprof.replay.whatif.backward import Backward, Issue, NotBuckets, Tie, gradient_elements
from esprof.replay.whatif.links import latencies_ns
from esprof.replay.whatif.nccl_passes import Pass, Passes
from esprof.trace.run import Run
from esprof.types import Bytes, Rank

_SHARDED = ("FullyShardedDataParallel.", "FSDP::")
"""What the names of FSDP's annotations begin with."""

_ITEMS = (2, 4, 8)
"""Bytes that an element of a gradient may have."""


def backward_passes(run: Run, dfg: Dfg) -> Iterator[Backward]:
    """The backward pass of each rank in each step. Raises NotBuckets where its all-reduces are no buckets of it."""
    passes, latency = Passes(dfg), latencies_ns(dfg)
    for rank in dfg.marks.ranks:
        if any(name.startswith(_SHARDED) for name in run.events(rank).codes("name")[1]):
            raise NotBuckets("its gradients are sharded (FSDP)")
        elements = _elements(run, rank)
        for step in dfg.marks.steps:
            one = passes.find(rank, step)
            sent = _Sent(dfg, one, latency[dfg.collective[one.transfers]])
            issues = sent.issues(passes.handling(one))
            if elements is None:
                pieces, issues = sent.buckets(), [issues[number] for number in one.closing.tolist()]
            else:
                pieces = sent.gradients(elements.get(step, []))
            ends = passes.readers(one)
            readers = tuple(Tie(int(dfg.pred_target[e]), Edge(dfg.pred_kind[e]), int(dfg.pred_lag[e])) for e in ends)
            yield Backward(
                rank=rank,
                step=step,
                are_gradients=elements is not None,
                sizes=pieces.sizes,
                ready=pieces.ready,
                readers=(readers,) * len(pieces.sizes),
                moved_ns=pieces.moved_ns,
                latency_ns=float(np.median(sent.latency_ns)),
                arrivals=tuple(one.arrivals.tolist()),
                transfers=tuple(one.transfers.tolist()),
                issues=tuple(issues),
            )


def _elements(run: Run, rank: Rank) -> dict[int, list[int]] | None:
    """`gradient_elements`; None where they were not recorded."""
    try:
        return gradient_elements(run, rank)
    except NotBuckets:
        return None


@dataclass(frozen=True)
class _Pieces:
    """See `Backward`."""

    sizes: tuple[Bytes, ...]
    ready: tuple[tuple[Tie, ...], ...]
    moved_ns: tuple[float, ...]


@dataclass(frozen=True)
class _Sent:
    """What a backward pass sent."""

    dfg: Dfg
    one: Pass
    latency_ns: np.ndarray
    """What the all-reduce of each bucket takes beside its bytes, ns."""

    def buckets(self) -> _Pieces:
        """The recorded buckets, each a piece."""
        return _Pieces(tuple(self._sizes.tolist()), tuple(self._recorded), tuple(self._moved_ns.tolist()))

    def gradients(self, elements: list[int]) -> _Pieces:
        """The gradients, each a piece; `elements` are those of all of the step. Raises NotBuckets where the recorded buckets
        do not hold them in the order in which they came."""
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
            raise NotBuckets("its all-reduces do not hold the gradients in the order in which they came")
        moved = sizes * (self._moved_ns / self._sizes)[bucket]
        return _Pieces(tuple(sizes.tolist()), tuple(self._ready()), tuple(moved.tolist()))

    def issues(self, handling: list[tuple[int, ...]]) -> list[Issue]:
        """What issuing an all-reduce takes at each gradient, given the nodes of its `handling`: by how much longer the
        handling of those that issued one took than that of the others, by their medians."""
        took = np.array([self.dfg.dur_ns[list(nodes)].sum() for nodes in handling])
        recorded = np.isin(np.arange(len(handling)), self.one.closing)
        more = 0 if recorded.all() else max(0, round(float(np.median(took[recorded]) - np.median(took[~recorded]))))
        return [Issue(nodes, bool(own), more) for nodes, own in zip(handling, recorded, strict=True)]

    @property
    def _sizes(self) -> np.ndarray:
        """Bytes of each bucket. Raises NotBuckets where they were not recorded."""
        sizes: np.ndarray = self.dfg.bytes[self.one.transfers]
        if (sizes <= 0).any():
            raise NotBuckets("the sizes of its all-reduces were not recorded")
        return sizes

    @property
    def _moved_ns(self) -> np.ndarray:
        """What the bytes of each bucket took, ns."""
        return np.maximum(self.dfg.dur_ns[self.one.transfers] - self.latency_ns, 0)

    @property
    def _recorded(self) -> list[tuple[Tie, ...]]:
        """What the all-reduce of each bucket waited for on its rank, but for its turn."""
        dfg = self.dfg
        found = []
        for node in self.one.arrivals.tolist():
            edges = range(dfg.pred_ptr[node], dfg.pred_ptr[node + 1])
            ties = [Tie(int(dfg.pred_idx[e]), Edge(dfg.pred_kind[e]), int(dfg.pred_lag[e])) for e in edges]
            found.append(tuple(tie for tie in ties if tie.kind != Edge.LANE))
        return found

    def _ready(self) -> Iterator[tuple[Tie, ...]]:
        """What an all-reduce that each gradient completes waits for.

        Where it did complete one, that is what was recorded. Else it is the gradient's own end, and the last work that was
        launched to each stream by then.
        """
        dfg, one = self.dfg, self.one
        recorded = dict(zip(one.closing.tolist(), self._recorded, strict=True))
        lag = min(tie.lag_ns for ties in recorded.values() for tie in ties if tie.kind == Edge.LAUNCH)
        streams = [np.flatnonzero(dfg.lane[one.work] == lane) for lane in np.unique(dfg.lane[one.work]).tolist()]
        for number, end in enumerate(one.end.tolist()):
            if number in recorded:
                yield recorded[number]
                continue
            before = [np.searchsorted(one.source[launches], end, side="right") - 1 for launches in streams]
            last = [int(one.work[launches[at]]) for launches, at in zip(streams, before, strict=True) if at >= 0]
            yield (Tie(end, Edge.LAUNCH, lag), *(Tie(node, Edge.WAIT) for node in last))
