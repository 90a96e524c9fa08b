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

AUTOGRAD_NODE = "autograd::engine::evaluate_function: "
"""Prefix of the names of autograd nodes."""

GRADIENT = "torch::autograd::AccumulateGrad"
EVALUATE = f"{AUTOGRAD_NODE}{GRADIENT}"


class NotBuckets(Exception):
    """The run's collectives are not DDP's buckets, or its gradients are unknown; the text is the reason."""


class Tie(NamedTuple):
    """An edge to be added: the node at one end, its kind, and its lag."""

    node: int
    kind: Edge
    lag_ns: Ns = 0


@dataclass(frozen=True)
class BackwardPass:
    """One rank's backward pass in one step, as indivisible pieces of buckets.

    Pieces are the gradients in the order in which they become ready, or the recorded buckets if gradient sizes are unknown.
    """

    rank: Rank
    step: int
    are_gradients: bool
    """Whether the pieces are gradients; else they are recorded buckets."""
    sizes: tuple[Bytes, ...]
    """Size of each piece, bytes."""
    ready: tuple[tuple[Tie, ...], ...]
    """Per piece: predecessors, on this rank, of an all-reduce whose bucket the piece completes."""
    readers: tuple[tuple[Tie, ...], ...]
    """Per piece: nodes that wait until it is reduced."""
    moved_ns: tuple[float, ...]
    """Per piece: its contribution to the duration of its all-reduce, ns."""
    latency_ns: float
    """Fixed cost of an all-reduce, ns."""
    arrivals: tuple[int, ...]
    """Node of the rank's arrival at the all-reduce of each bucket, in the order in which the buckets are filled."""
    all_reduces: tuple[int, ...]
    """Communication node of each bucket, in the order in which the buckets are filled."""
    curve: Curve | None = None
    """Measured duration of an all-reduce by size; if present, it replaces `moved_ns` and `latency_ns`."""
    launch_costs: tuple["LaunchCost", ...] = ()
    """CPU time of launching all-reduces at each piece; empty where it stays as recorded."""

    def communication_ns(self, first: int, behind: int) -> Ns:
        """Duration of an all-reduce of the pieces `first` to `behind - 1`, ns. Raises NotBuckets if it is unknown."""
        if self.curve is None:
            return round(self.latency_ns + sum(self.moved_ns[first:behind]))
        try:
            return round(self.curve.at(sum(self.sizes[first:behind])))
        except BeyondCurveError as beyond:
            raise NotBuckets(f"a bucket of {beyond.in_bytes}") from beyond


class LaunchCost(NamedTuple):
    """CPU time of launching an all-reduce when a piece completes a bucket."""

    nodes: tuple[int, ...]
    """Nodes of the thread while it handles the piece, ascending."""
    recorded: bool
    """Whether the recorded pass launched an all-reduce there."""
    took_ns: Ns
    """CPU time of the launch, ns."""


def gradient_elements(run: Run, rank: Rank) -> dict[int, list[int]]:
    """Step -> number of elements of each gradient, in the order in which gradients were accumulated.

    Raises NotBuckets if they were not recorded.
    """
    events = run.events(rank)
    rows = events.where(events.matches("name", GRADIENT.__eq__))
    if not len(rows):
        raise NotBuckets("its backward pass has no recorded gradient")
    order = np.argsort(rows.ints("start_ns"), kind="stable")
    steps, shapes = rows.ints("step"), rows.texts("shapes")
    found: dict[int, list[int]] = defaultdict(list)
    for row in order.tolist():
        found[int(steps[row])].append(math.prod(first_shape(shapes[row])))
    return found


def first_shape(shapes: str | None) -> list[int]:
    """Shape of an operation's first input; `shapes` is the trace's JSON list of the shapes of all inputs.

    Raises NotBuckets if the first entry is not a shape.
    """
    try:
        first, *_ = msgspec.json.decode(shapes or "", type=list[msgspec.Raw])
        return msgspec.json.decode(first, type=list[int])
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise NotBuckets(
            "the sizes of its gradients were not recorded (record with --shapes, or record_shapes=True)"
        ) from error
