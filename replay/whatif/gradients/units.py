"""The units that FSDP2 would shard: the entries of the model's largest list of modules, and the rest of the model as one."""

import math
from dataclasses import dataclass

import numpy as np

from esprof.core.types import Bytes, Ns, Rank
from esprof.replay.whatif.gradients.backward import AUTOGRAD_NODE, GRADIENT, NotBuckets, first_shape
from esprof.replay.whatif.memory.layers import LayerCalls, layers_of
from esprof.replay.whatif.memory.passes import BackwardPasses, backward_passes
from esprof.replay.whatif.scenario import Declined
from esprof.run.run import Run
from esprof.run.schema import Table

_ITEM: Bytes = 4
"""Bytes per element: single precision."""


@dataclass(frozen=True)
class UnitPass:
    """One forward and backward pass of a unit. Times are on the rank's own clock."""

    forward_ns: Ns
    """Begin of its forward pass, for which its parameters must be there."""
    forward_end_ns: Ns
    backward_ns: Ns
    """Begin of its backward pass, for which they must be there again."""
    reduced_ns: Ns
    """When all its gradients have been added up, and can be reduced."""
    size: Bytes
    """Bytes of its gradients, which are as many as those of its parameters."""


@dataclass(frozen=True)
class StepUnits:
    """The units of one rank in one step."""

    listed: tuple[UnitPass, ...]
    """The entries of the list, in order of their forward passes."""
    rest: UnitPass
    """What the model has beside them: its parameters are kept for the backward pass."""

    @property
    def all(self) -> tuple[UnitPass, ...]:
        return self.rest, *self.listed

    @property
    def sizes(self) -> tuple[Bytes, ...]:
        return tuple(one.size for one in self.all)

    @property
    def gathered_again_ns(self) -> tuple[Ns, ...]:
        """When FSDP2 gathers the parameters of each listed unit for its backward pass: once that of the unit after it
        begins, and those of the last one when its own begins."""
        begins = [unit.backward_ns for unit in self.listed]
        return *begins[1:], *begins[-1:]


def units_of(run: Run, rank: Rank) -> tuple[str, dict[int, StepUnits]]:
    """(name of the list, the units of a rank by step). Raises Declined where no list of modules or no sizes of gradients
    were recorded, or where a step has several backward passes."""
    events = run.events(rank)
    passes = backward_passes(events)
    layers = layers_of(events, passes)
    nodes = _Nodes.of(events, passes, layers)
    found = dict[int, StepUnits]()
    for number in range(len(passes.begin_ns)):
        mine = nodes.of_pass(number)
        step = int(events.ints("step")[passes.node_row[mine][0]])
        if step < 0:
            continue
        if step in found:
            raise Declined("gradients are added up over several backward passes of a step")
        calls = np.unique(nodes.call[mine & (nodes.call >= 0)]).tolist()
        if not calls:
            raise Declined("a backward pass has no entry of a list of modules")
        span = int(layers.begin_ns[calls[0]]), int(layers.begin_ns[calls[0]])
        rest = nodes.unit(*span, mine, size=int(nodes.size[mine & (nodes.call < 0)].sum()))
        listed = (
            nodes.unit(int(layers.begin_ns[call]), int(layers.end_ns[call]), mine & (nodes.call == call))
            for call in calls
        )
        found[step] = StepUnits(tuple(listed), rest)
    return layers.name, found


@dataclass(frozen=True)
class _Nodes:
    """The autograd nodes of a rank by start. N nodes."""

    start: np.ndarray
    end: np.ndarray
    call: np.ndarray
    """int64[N], the call of a layer whose operations made the node; -1 for none."""
    size: np.ndarray
    """int64[N], bytes of the gradients that the node adds up."""
    number: np.ndarray
    """int64[N], the backward pass."""

    @classmethod
    def of(cls, events: Table, passes: BackwardPasses, layers: LayerCalls) -> "_Nodes":
        row = passes.node_row
        start = events.ints("start_ns")[row]
        return cls(
            start=start,
            end=start + events.ints("dur_ns")[row],
            call=_calls(events, row, layers),
            size=_sizes(events, start),
            number=passes.of(start),
        )

    def of_pass(self, number: int) -> np.ndarray:
        mask: np.ndarray = self.number == number
        return mask

    def unit(self, forward_ns: Ns, forward_end_ns: Ns, own: np.ndarray, size: Bytes | None = None) -> UnitPass:
        begin, end = int(self.start[own].min()), int(self.end[own].max())
        return UnitPass(forward_ns, forward_end_ns, begin, end, int(self.size[own].sum()) if size is None else size)


def _calls(events: Table, row: np.ndarray, layers: LayerCalls) -> np.ndarray:
    """The call of a layer that made each node (row), int64[N]: by the number of its operation. A node without one adds up a
    gradient, right after the node that computed it."""
    sequence, start = events.ints("autograd_seq", -1), events.ints("start_ns")
    is_node = events.matches("name", lambda name: name.startswith(AUTOGRAD_NODE))
    forward = np.flatnonzero(events.is_kind("op") & ~is_node & (sequence >= 0) & (events.ints("fwd_tid") <= 0))
    # Operations before the one that makes a node have its number, too.
    forward = forward[np.lexsort((start[forward], sequence[forward]))]
    of_call = layers.of(start[forward])
    at = np.searchsorted(sequence[forward], sequence[row], side="right") - 1
    has_number = sequence[row] >= 0
    known = has_number & (np.append(sequence[forward], -1)[at] == sequence[row])
    found = np.where(known, np.append(of_call, -1)[at], -1)
    latest = np.maximum.accumulate(np.where(has_number, np.arange(len(row)), 0)) if len(row) else row
    return found[latest]


def _sizes(events: Table, start: np.ndarray) -> np.ndarray:
    """Bytes of the gradients that each node adds up; `start` are those of the nodes, ascending. Raises Declined."""
    rows = np.flatnonzero(events.matches("name", GRADIENT.__eq__))
    texts = events.where(rows).texts("shapes")
    try:
        sizes = [_ITEM * math.prod(first_shape(text)) for text in texts]
    except NotBuckets as reason:
        raise Declined(str(reason)) from reason
    node = np.maximum(np.searchsorted(start, events.ints("start_ns")[rows], side="right") - 1, 0)
    found = np.zeros(len(start), np.int64)
    if len(start):
        np.add.at(found, node, np.array(sizes, np.int64))
    return found
