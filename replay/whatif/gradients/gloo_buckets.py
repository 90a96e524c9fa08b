"""DDP's gradient buckets between CPUs: gloo all-reduces launched by gradients."""

from collections.abc import Iterator
from itertools import accumulate

import numpy as np

from esprof.core.types import Bytes, Ns
from esprof.replay.dfg import Cls, Dfg, Edge, LaneKind
from esprof.replay.whatif.communication.links import stretches
from esprof.replay.whatif.communication.probed import ProbedCollectives
from esprof.replay.whatif.gradients.backward import EVALUATE, BackwardPass, NotBuckets, Tie, gradient_elements
from esprof.run.run import Run

_COPY = "torch.distributed.ddp.reducer::copy_bucket_to_grad"
_ITEM: Bytes = 4
"""Bytes per element: fp32. In another precision a hook may have compressed the gradients, which hides a bucket's size."""


def backward_passes(run: Run, dfg: Dfg) -> Iterator[BackwardPass]:
    """The backward pass of each rank in each step. Raises NotBuckets if its all-reduces are not its buckets."""
    labels = {name: number for number, name in enumerate(dfg.names)}
    evaluated = (dfg.name == labels.get(EVALUATE, -1)) & (dfg.event >= 0)
    copied = dfg.name == labels.get(_COPY, -1)
    launched, link, probed = _launched_by(dfg, evaluated), stretches(dfg), ProbedCollectives.of(run)
    curve = None if probed is None else probed.curve("all_reduce", dfg.marks.ranks)
    for rank in dfg.marks.ranks:
        elements = gradient_elements(run, rank)
        for step in dfg.marks.steps:
            mine = (dfg.rank == rank) & (dfg.step == step)
            nodes, sizes = np.flatnonzero(evaluated & mine), [_ITEM * count for count in elements[step]]
            # An operation that launches an all-reduce continues as a second node of the same event; the gradient was ready
            # at the end of the first node.
            gradients = np.sort(nodes[np.unique(dfg.event[nodes], return_index=True)[1]])
            arrivals = [node for node in launched if mine[node]]
            if not arrivals or len(gradients) != len(sizes):
                raise NotBuckets("no all-reduce is launched by gradients whose sizes were recorded")
            arrivals = _as_filled(dfg, arrivals, sizes)
            copies, latency = np.flatnonzero(copied & mine), _latency(dfg, arrivals)
            readers = copies.tolist() if len(copies) == len(gradients) else _after(dfg, gradients)
            assert link is not None, "all-reduces without communication"
            yield BackwardPass(
                rank=rank,
                step=step,
                are_gradients=True,
                sizes=tuple(sizes),
                ready=tuple((Tie(node, Edge.LAUNCH, latency),) for node in gradients.tolist()),
                readers=tuple((Tie(node, Edge.BY_TIME),) for node in readers),
                moved_ns=tuple(link.all_reduce_ns(size, len(dfg.marks.ranks)) for size in sizes),
                latency_ns=0.0,
                curve=curve,
                arrivals=tuple(arrivals),
                all_reduces=tuple(_all_reduce_of(dfg, node) for node in arrivals),
            )


def launched_by_gradients(dfg: Dfg) -> list[int]:
    """Arrivals on communication threads whose collective was launched while the backward pass handled a gradient."""
    return _launched_by(dfg, dfg.named(EVALUATE.__eq__) & (dfg.event >= 0))


def _launched_by(dfg: Dfg, callers: np.ndarray) -> list[int]:
    """Arrivals on communication threads whose collective was launched by one of the `callers`, in launch order."""
    arrivals = dfg.on(LaneKind.COMM) & dfg.of(Cls.WAIT) & (dfg.collective >= 0)
    target = dfg.pred_target
    edges = np.flatnonzero((dfg.pred_kind == Edge.LAUNCH) & callers[dfg.pred_idx] & arrivals[target])
    launched: list[int] = target[edges[np.argsort(dfg.pred_idx[edges], kind="stable")]].tolist()
    return launched


def _all_reduce_of(dfg: Dfg, arrival: int) -> int:
    """Communication node, on the same rank, of the collective to which this arrival belongs."""
    own = (dfg.collective == dfg.collective[arrival]) & (dfg.rank == dfg.rank[arrival]) & dfg.of(Cls.COMMUNICATION)
    return int(np.flatnonzero(own)[0])


def _as_filled(dfg: Dfg, arrivals: list[int], sizes: list[Bytes]) -> list[int]:
    """The all-reduces (`arrivals`) in the order in which gradients of these sizes (bytes) fill them.

    Each all-reduce holds exactly the gradients since the previous one. `arrivals` are sorted by recorded begin, which may
    differ from launch order if several threads were woken at once. Raises NotBuckets if no order fits.
    """
    ends, held, order = set(accumulate(sizes)), 0, list[int]()
    waiting = {node: int(dfg.bytes[_all_reduce_of(dfg, node)]) for node in arrivals}
    while (node := next((node for node, size in waiting.items() if held + size in ends), None)) is not None:
        held += waiting.pop(node)
        order.append(node)
    if waiting or held != sum(sizes):
        raise NotBuckets("its all-reduces do not hold the gradients in order of arrival, in single precision")
    return order


def _after(dfg: Dfg, gradients: np.ndarray) -> tuple[int, ...]:
    """The reader of each gradient if gradients are not copied out of their buckets: the first node after the last gradient
    on its thread.

    Raises NotBuckets if nothing follows.
    """
    on_lane = np.flatnonzero(dfg.lane == dfg.lane[gradients[0]])
    follower = on_lane[on_lane > gradients.max()]
    if not len(follower):
        raise NotBuckets("no work follows its backward pass")
    return (int(follower[0]),) * len(gradients)


def _latency(dfg: Dfg, arrivals: list[int]) -> Ns:
    """Least latency from the launch of an all-reduce to the arrival at it, ns."""
    edges = [edge for node in arrivals for edge in range(dfg.pred_ptr[node], dfg.pred_ptr[node + 1])]
    return min(int(dfg.pred_lag[edge]) for edge in edges if dfg.pred_kind[edge] == Edge.LAUNCH)
