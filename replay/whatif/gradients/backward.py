"""A backward pass as DDP's reducer sees it: order of gradients, when each can be sent, and who reads it."""

import math
from collections import defaultdict
from dataclasses import dataclass
from typing import NamedTuple

import msgspec
import numpy as np

from esprof.core.types import Bytes, Ns, Rank
from esprof.replay.dfg import Edge
from esprof.run.curve import BeyondCurveError, Curve
from esprof.run.run import Run

GRADIENT = "torch::autograd::AccumulateGrad"
EVALUATE = f"autograd::engine::evaluate_function: {GRADIENT}"


class NotBuckets(Exception):
    """The run's collectives are not DDP's buckets, or its gradients are unknown; the text is the reason."""


class Tie(NamedTuple):
    """A node at one end of an edge to come, and what the edge is to be."""

    node: int
    kind: Edge
    lag_ns: Ns = 0


@dataclass(frozen=True)
class BackwardPass:
    """One rank's backward pass in one step, as pieces that stay together in whatever bucket: its gradients, in the order in
    which they came, or the buckets that were recorded, where gradients have no sizes."""

    rank: Rank
    step: int
    are_gradients: bool
    """Whether the pieces are gradients; else they are recorded buckets."""
    sizes: tuple[Bytes, ...]
    """Size of each piece, bytes."""
    ready: tuple[tuple[Tie, ...], ...]
    """What an all-reduce that a piece completes waits for, on this rank."""
    readers: tuple[tuple[Tie, ...], ...]
    """What waits until each piece is reduced."""
    moved_ns: tuple[float, ...]
    """What each piece adds to the time of the all-reduce that it is part of, ns."""
    latency_ns: float
    """Fixed cost of an all-reduce, ns."""
    arrivals: tuple[int, ...]
    """Nodes at which the rank comes to the all-reduce of each bucket, in the order in which the buckets are filled."""
    all_reduces: tuple[int, ...]
    """Nodes of the transfer of each bucket, in the order in which the buckets are filled."""
    curve: Curve | None = None
    """What an all-reduce takes by size, where that was measured; then `moved_ns` and `latency_ns` do not count."""
    launch_costs: tuple["LaunchCost", ...] = ()
    """CPU time of launching all-reduces at each piece; empty where it stays as recorded."""

    def communication_ns(self, first: int, behind: int) -> Ns:
        """What an all-reduce of the pieces `first` to `behind - 1` takes, ns. Raises NotBuckets where that is not known."""
        if self.curve is None:
            return round(self.latency_ns + sum(self.moved_ns[first:behind]))
        try:
            return round(self.curve.at(sum(self.sizes[first:behind])))
        except BeyondCurveError as beyond:
            raise NotBuckets(f"a bucket of {beyond}") from beyond


class LaunchCost(NamedTuple):
    """CPU time of launching an all-reduce when a piece completes a bucket."""

    nodes: tuple[int, ...]
    """Nodes of the thread while it handles the piece, ascending."""
    recorded: bool
    """Whether it launched one there."""
    took_ns: Ns


def gradient_elements(run: Run, rank: Rank) -> dict[int, list[int]]:
    """Step -> number of elements of each gradient, in the order in which gradients were accumulated.

    Raises NotBuckets where they were not recorded.
    """
    events = run.events(rank)
    codes, names = events.codes("name")
    if GRADIENT not in names:
        raise NotBuckets("its backward pass has no recorded gradient")
    rows = events.where(np.flatnonzero(codes == names.index(GRADIENT)))
    order = np.argsort(rows.ints("start_ns"), kind="stable")
    steps, shapes = rows.ints("step"), rows.texts("shapes")
    found: dict[int, list[int]] = defaultdict(list)
    for row in order.tolist():
        found[int(steps[row])].append(math.prod(_first_shape(shapes[row])))
    return found


def _first_shape(shapes: str | None) -> list[int]:
    """The shape of an operation's first input; `shapes` are those of all inputs, in JSON, as the trace has them.

    Raises NotBuckets where that is no shape.
    """
    try:
        first, *_ = msgspec.json.decode(shapes or "", type=list[msgspec.Raw])
        return msgspec.json.decode(first, type=list[int])
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise NotBuckets(
            "the sizes of its gradients were not recorded (record with --shapes, or record_shapes=True)"
        ) from error
