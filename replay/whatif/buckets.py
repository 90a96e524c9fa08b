"""DDP's gradient buckets: which gradients travelled together, and the graph with other buckets.

DDP fills a bucket with gradients in the order in which they come, and closes it once it holds `bucket_cap_mb` (torch
`Reducer::rebuild_buckets`; Li et al., VLDB 2020, §4.2). A trace with shapes tells each gradient's size at its
`AccumulateGrad`, so the buckets of the run are checked against the rule before others are predicted.
"""

import math
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate

import msgspec
import numpy as np

from esprof.replay.dfg import Cls, Dfg, Edge, LaneKind
from esprof.replay.whatif.links import Stretches, stretches
from esprof.replay.whatif.overlay import Overlay
from esprof.trace.run import Run
from esprof.types import Bytes, Ns, Rank

MIB = 1 << 20
_GRADIENT = "torch::autograd::AccumulateGrad"
_EVALUATE = f"autograd::engine::evaluate_function: {_GRADIENT}"
_COPY = "torch.distributed.ddp.reducer::copy_bucket_to_grad"
_ITEM: Bytes = 4
"""Gradients travel in single precision; others may have been compressed by a hook, which hides how much a bucket holds."""


class NotBuckets(Exception):
    """The run's collectives are not DDP's buckets, or its gradients cannot be told; the text says why."""


@dataclass(frozen=True)
class Backward:
    """One rank's backward pass in one step. Gradients stand in the order in which they came."""

    rank: Rank
    step: int
    gradients: tuple[int, ...]
    """Node at whose end each gradient is in its bucket."""
    sizes: tuple[Bytes, ...]
    """Size of each gradient, bytes in single precision."""
    readers: tuple[int, ...]
    """Node that first reads each reduced gradient."""
    arrivals: tuple[int, ...]
    """Nodes at which the rank comes to the all-reduce of each bucket, in the order in which the buckets are filled."""
    transfers: tuple[int, ...]
    """Nodes of the transfer of each bucket, in the order in which the buckets are filled."""


def rebucket(run: Run, dfg: Dfg, bucket_mb: float) -> Dfg:
    """The graph as `bucket_cap_mb=bucket_mb` would make it. Raises NotBuckets where that cannot be told."""
    # Backward passes of different ranks belong together if they share their all-reduces.
    meeting: dict[tuple[int, ...], list[Backward]] = defaultdict(list)
    for one in backward_passes(run, dfg):
        meeting[tuple(sorted(dfg.collective[list(one.arrivals)].tolist()))].append(one)
    overlay, link = Overlay(dfg), stretches(dfg)
    assert link is not None, "backward passes without transfers"
    for together in meeting.values():
        if len({one.sizes for one in together}) > 1:
            raise NotBuckets("the ranks' gradients differ in size or order")
        _exchange(overlay, together, fill(together[0].sizes, bucket_mb * MIB), link)
    return overlay.compile()


def fill(sizes: tuple[Bytes, ...], cap: float) -> list[int]:
    """How many gradients each bucket takes: a bucket is closed once it holds `cap` bytes or more."""
    counts, held, number = [], 0, 0
    for size in sizes:
        held, number = held + size, number + 1
        if held >= cap:
            counts.append(number)
            held = number = 0
    return counts + [number] * (number > 0)


def backward_passes(run: Run, dfg: Dfg) -> Iterator[Backward]:
    """The backward pass of each rank in each step. Raises NotBuckets where its all-reduces are no buckets of it."""
    labels = {name: number for number, name in enumerate(dfg.names)}
    evaluated = (dfg.name == labels.get(_EVALUATE, -1)) & (dfg.event >= 0)
    copied = dfg.name == labels.get(_COPY, -1)
    issued = _issued_by(dfg, evaluated)
    for rank in dfg.marks.ranks:
        sizes = _gradient_sizes(run, rank)
        for step in dfg.marks.steps:
            mine = (dfg.rank == rank) & (dfg.step == step)
            nodes = np.flatnonzero(evaluated & mine)
            # An operation that issues an all-reduce goes on behind it, as a second node of the same event: the gradient was
            # there at the end of the first.
            gradients = nodes[np.unique(dfg.event[nodes], return_index=True)[1]]
            arrivals = [node for node in issued if mine[node]]
            if not arrivals or len(gradients) != len(sizes[step]):
                raise NotBuckets("no all-reduce of theirs is issued by the gradients whose sizes were recorded")
            arrivals = _as_filled(dfg, arrivals, sizes[step])
            copies = np.flatnonzero(copied & mine)
            yield Backward(
                rank=rank,
                step=step,
                gradients=tuple(np.sort(gradients).tolist()),
                sizes=tuple(sizes[step]),
                readers=tuple(copies.tolist()) if len(copies) == len(gradients) else _after(dfg, gradients),
                arrivals=tuple(arrivals),
                transfers=tuple(_transfer_of(dfg, node) for node in arrivals),
            )


def _gradient_sizes(run: Run, rank: Rank) -> dict[int, list[Bytes]]:
    """Step -> bytes of each gradient, in the order in which gradients were accumulated. Raises NotBuckets."""
    events = run.events(rank)
    codes, names = events.codes("name")
    if _GRADIENT not in names:
        raise NotBuckets("its backward pass accumulates no gradient that was recorded")
    rows = events.where(np.flatnonzero(codes == names.index(_GRADIENT)))
    order = np.argsort(rows.ints("start_ns"), kind="stable")
    steps, shapes = rows.ints("step"), rows.texts("shapes")
    sizes: dict[int, list[Bytes]] = defaultdict(list)
    for row in order.tolist():
        sizes[int(steps[row])].append(math.prod(_first_shape(shapes[row])) * _ITEM)
    return sizes


def _first_shape(shapes: str | None) -> list[int]:
    """The shape of an operation's first input; `shapes` are those of all inputs, in JSON, as the trace has them.

    Raises NotBuckets where that is no shape.
    """
    try:
        first, *_ = msgspec.json.decode(shapes or "", type=list[msgspec.Raw])
        return msgspec.json.decode(first, type=list[int])
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise NotBuckets("the sizes of its gradients were not recorded (record_shapes)") from error


def _issued_by(dfg: Dfg, callers: np.ndarray) -> list[int]:
    """The arrivals on communication threads whose all-reduce was issued by one of these nodes, in order of issue."""
    arrivals = dfg.on(LaneKind.COMM) & dfg.of(Cls.WAIT) & (dfg.collective >= 0)
    target = dfg.pred_target
    edges = np.flatnonzero((dfg.pred_kind == Edge.LAUNCH) & callers[dfg.pred_idx] & arrivals[target])
    issued: list[int] = target[edges[np.argsort(dfg.pred_idx[edges], kind="stable")]].tolist()
    return issued


def _transfer_of(dfg: Dfg, arrival: int) -> int:
    """The transfer, on the same rank, of the collective to which this arrival belongs."""
    own = (dfg.collective == dfg.collective[arrival]) & (dfg.rank == dfg.rank[arrival]) & dfg.of(Cls.COMMUNICATION)
    return int(np.flatnonzero(own)[0])


def _as_filled(dfg: Dfg, arrivals: list[int], sizes: list[Bytes]) -> list[int]:
    """The all-reduces (`arrivals`) in the order in which gradients of these sizes (bytes) fill them.

    Each holds exactly the gradients since the one before it. They are given in the order in which they seem to be issued,
    by when they began, but threads woken at once begin in any order. Raises NotBuckets where no order fits.
    """
    ends, held, order = set(accumulate(sizes)), 0, list[int]()
    waiting = {node: int(dfg.bytes[_transfer_of(dfg, node)]) for node in arrivals}
    while (node := next((node for node, size in waiting.items() if held + size in ends), None)) is not None:
        held += waiting.pop(node)
        order.append(node)
    if waiting or held != sum(sizes):
        raise NotBuckets(
            "its all-reduces do not hold the gradients in the order in which they came, in single precision"
        )
    return order


def _after(dfg: Dfg, gradients: np.ndarray) -> tuple[int, ...]:
    """The reader of each gradient, where gradients stay in their buckets: for all what follows the last on its thread.

    Raises NotBuckets where nothing follows.
    """
    on_lane = np.flatnonzero(dfg.lane == dfg.lane[gradients[0]])
    follower = on_lane[on_lane > gradients.max()]
    if not len(follower):
        raise NotBuckets("nothing follows its backward pass")
    return (int(follower[0]),) * len(gradients)


def _exchange(overlay: Overlay, together: list[Backward], counts: list[int], link: Stretches) -> None:
    """Take the buckets of one step out on all ranks that share them, and put others in."""
    dfg = overlay.dfg
    old = np.concatenate([dfg.collective[list(one.arrivals)] for one in together])
    overlay.dropped |= np.isin(dfg.collective, old)
    last = list(accumulate(counts))
    for first, behind in zip([0, *last], last, strict=False):
        size = sum(together[0].sizes[first:behind])
        number, join = overlay.add_collective(), None
        for one in together:
            gradient = one.gradients[behind - 1]
            thread, step = int(dfg.lane[one.arrivals[0]]), one.step
            name = dfg.label(one.transfers[0])
            ready = int(dfg.recorded_ns[gradient] + dfg.dur_ns[gradient])
            arrive = overlay.add(thread, f"{name} (arrive)", Cls.WAIT, 0, ready, step=step, collective=number)
            if join is None:
                join = overlay.add(-1, f"{name} (join)", Cls.WAIT, 0, ready, step=step, collective=number)
            transfer = overlay.add(
                int(dfg.lane[one.transfers[0]]),
                name,
                Cls.COMMUNICATION,
                link.transfer_ns(size),
                ready,
                step=step,
                collective=number,
                nbytes=size,
            )
            overlay.link(gradient, arrive, Edge.LAUNCH, _latency(dfg, one))
            overlay.link(arrive, join, Edge.RENDEZVOUS)
            overlay.link(join, transfer, Edge.RENDEZVOUS)
            overlay.link(transfer, one.readers[first], Edge.BY_TIME)


def _latency(dfg: Dfg, one: Backward) -> Ns:
    """Latency from the issue of an all-reduce to the arrival at it, ns: the least that this rank shows in this step."""
    edges = [edge for node in one.arrivals for edge in range(dfg.pred_ptr[node], dfg.pred_ptr[node + 1])]
    return min(int(dfg.pred_lag[edge]) for edge in edges if dfg.pred_kind[edge] == Edge.LAUNCH)
