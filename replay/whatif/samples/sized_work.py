"""The work of a thread that grows with the samples of a batch, and the part that is the same for any number of them.

Fixed are the host's time between operations, updates of parameters and what adds up and exchanges gradients, operations that
only describe a tensor anew (views), and of each other operation as much as such a view takes: the cost of a call. The rest
grows with the samples, or less: a product or convolution must read its parameters, or write their gradients, for however few
samples. What of it surely grows is what its multiplications take at the rate of the fastest one of the thread (roofline
model; Williams et al., CACM 2009).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Self

import msgspec
import numpy as np

from esprof.replay.whatif.gradients.backward import AUTOGRAD_NODE, EVALUATE, GRADIENT
from esprof.replay.whatif.graph.nested_operations import innermost_around, nested_rows
from esprof.replay.whatif.scenario import Declined
from esprof.run.kineto.steps.trace_steps import OPTIMIZER
from esprof.run.schema import Table

Shape = tuple[int, ...]

_VIEWS = tuple(
    f"aten::{name}"
    for name in (
        *("alias", "as_strided", "detach", "expand", "narrow", "permute", "select", "slice", "split", "squeeze", "t"),
        *("transpose", "unsqueeze", "view"),
    )
)
"""Operations that describe a tensor anew, and touch none of its elements."""

_ON_PARAMETERS = (OPTIMIZER, EVALUATE, GRADIENT, "c10d::", "fsdp::", "FSDP::", "torch.distributed.")
"""How names begin of what works on parameters and gradients, with all that it calls."""

_PRODUCTS = ("aten::mm", "aten::addmm")
"""Products of two matrices, which are their last operands."""

_CONVOLUTIONS = ("aten::mkldnn_convolution", "aten::_slow_conv2d_forward")
"""Convolutions on CPUs without operations in them; the first operands are input and weight."""

_CONVOLUTION_BACKWARD = "aten::convolution_backward"
"""Its first operands are the gradient of the output, the input and the weight."""


@dataclass(frozen=True)
class SizedWork:
    """The work of one thread that grows with the samples: at most, and at least."""

    _since_ns: int
    _at_ns: np.ndarray
    """Times after `_since_ns`, ascending, float64[K], ns."""
    _most_ns: np.ndarray
    """Work before each of them that grows, float64[K], ns."""
    _least_ns: np.ndarray

    @classmethod
    def of(cls, events: Table, tid: int) -> Self:
        """Raises Declined if shapes were not recorded."""
        ops = _ThreadOps(events, tid)
        most = np.where(ops.is_sized(), np.maximum(ops.own_ns - ops.call_ns(), 0), 0)
        least = np.minimum(most, ops.multiplying_ns())
        at = np.concatenate([ops.start, ops.start + ops.took_ns])
        since, order = int(at.min(initial=np.iinfo(np.int64).max)), np.argsort(at, kind="stable")
        # Times since the epoch are too large for floats with the precision of nanoseconds.
        at_ns = (at[order] - since).astype(np.float64)
        return cls(since, at_ns, *(ops.until(one, order, at_ns) for one in (most, least)))

    def within(self, begin_ns: np.ndarray, end_ns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(most, least) work that grows in each of these ranges on the rank's clock, float64, ns."""
        begin, end = (np.asarray(one - self._since_ns, np.float64) for one in (begin_ns, end_ns))
        if not len(self._at_ns):
            return np.zeros(begin.shape), np.zeros(begin.shape)
        most, least = (
            np.interp(end, self._at_ns, until) - np.interp(begin, self._at_ns, until)
            for until in (self._most_ns, self._least_ns)
        )
        return most, least


class _ThreadOps:
    """The operations and annotations of a thread, by start, those around others first. N rows."""

    def __init__(self, events: Table, tid: int) -> None:
        is_mine = (events.is_kind("op") | events.is_kind("annotation")) & (events.ints("tid") == tid)
        self._events = events
        self._rows, self._tid, self.start, self._end = nested_rows(events, is_mine)
        self.took_ns = self._end - self.start
        self._around = self._innermost(np.ones(len(self._rows), bool))
        inside = self._around >= 0
        self.own_ns = self.took_ns - np.bincount(self._around[inside], self.took_ns[inside], len(self._rows))
        self._shape, texts = events.codes("shapes")
        self._shapes = [_shapes(text) for text in texts]
        gradients = self._shape[events.matches("name", GRADIENT.__eq__)]
        self._parameters = {
            one for code in np.unique(gradients).tolist() if code >= 0 for one in self._shapes[code][:1]
        }
        if not any(one for shapes in self._shapes for one in shapes):
            raise Declined("what grows with the samples is not known without shapes (esprof record --shapes)")
        if not self._parameters:
            raise Declined("what grows with the samples is not known without the shapes of gradients")

    def is_sized(self) -> np.ndarray:
        """Mask of the operations on samples, bool[N]."""
        on_parameters = self._is_named(lambda name: name.startswith(_ON_PARAMETERS))
        is_node = self._is_named(lambda name: name.startswith(AUTOGRAD_NODE))
        in_pass = self._within(is_node | (self._events.ints("autograd_seq", -1)[self._rows] >= 0))
        has_samples = self._of_shapes(lambda shapes: any(one and one not in self._parameters for one in shapes))
        has_size = self._of_shapes(bool)
        is_op = self._events.is_kind("op")[self._rows]
        found: np.ndarray = (
            is_op & ~self._within(on_parameters) & ~self._is_view() & (has_samples | (in_pass & has_size))
        )
        return found

    def call_ns(self) -> float:
        """What an operation takes that touches no element."""
        views = self.own_ns[self._is_view()]
        return float(views.mean()) if len(views) else 0.0

    def multiplying_ns(self) -> np.ndarray:
        """What each product or convolution with parameters, or that makes their gradients, takes at the rate of the fastest
        of its kind, float64[N]; infinite for all other operations."""
        found, shape = np.full(len(self.start), np.inf), self._shape[self._rows]
        for flop, has_parameters in (self._products(), self._convolutions()):
            counted = (flop > 0) & (self.own_ns > 0)
            if not counted.any():
                continue
            rates = flop[counted] / self.own_ns[counted]
            fastest = max(float(np.median(rates[shape[counted] == one])) for one in np.unique(shape[counted]))
            found = np.where(counted & has_parameters, flop / fastest, found)
        return found

    def _products(self) -> tuple[np.ndarray, np.ndarray]:
        """(multiplications and additions of each product of two matrices, 0 for other operations; mask of those with a
        parameter or its gradient), float64[N] and bool[N]."""
        fixed = self._parameters | {one[::-1] for one in self._parameters}
        sides = [_sides(shapes) for shapes in self._shapes]
        flop = self._of_each([2.0 * prod(one) for one in sides], self._is_named(_PRODUCTS.__contains__))
        return flop, self._of_each([bool({(m, k), (k, n), (m, n)} & fixed) for m, k, n in sides], flop > 0) > 0

    def _convolutions(self) -> tuple[np.ndarray, np.ndarray]:
        """The same of convolutions, all of which have a parameter. How large the output is, the backward pass tells."""
        is_backward = self._is_named(_CONVOLUTION_BACKWARD.__eq__)
        outputs = dict[tuple[Shape, Shape], Shape]()
        for code in np.unique(self._shape[self._rows[is_backward]]).tolist():
            if code >= 0 and len(self._shapes[code]) >= 3:
                gradient, given, weight = self._shapes[code][:3]
                outputs[given, weight] = gradient
        forward = [_filtered(outputs.get((one[0], one[1])), one[1]) if len(one) > 1 else 0.0 for one in self._shapes]
        back = [2 * _filtered(one[0], one[2]) if len(one) > 2 else 0.0 for one in self._shapes]
        flop = self._of_each(forward, self._is_named(_CONVOLUTIONS.__contains__)) + self._of_each(back, is_backward)
        return flop, flop > 0

    def _of_each(self, of_shapes: Sequence[float], wanted: np.ndarray) -> np.ndarray:
        """The value of each wanted operation by its shapes, 0 for all others, float64[N]."""
        return np.where(wanted, np.array([*of_shapes, 0.0])[self._shape[self._rows]], 0.0)

    def until(self, grows_ns: np.ndarray, order: np.ndarray, at_ns: np.ndarray) -> np.ndarray:
        """How much of `grows_ns`, of each operation's own time, lies before each begin and end of one (`at_ns`, ns), which
        are all begins and then all ends in this `order`. It is spread evenly over the operation's own time."""
        rate = grows_ns / np.maximum(self.own_ns, 1)
        # Where an operation begins, its rate takes the place of that of the one around it.
        change = rate - np.where(self._around >= 0, np.append(rate, 0)[self._around], 0)
        slope = np.cumsum(np.concatenate([change, -change])[order])
        return np.append(0.0, np.cumsum(slope[:-1] * np.diff(at_ns)))[: len(at_ns)]

    def _innermost(self, wanted: np.ndarray) -> np.ndarray:
        return innermost_around(self._tid, self.start, self._end, wanted)

    def _within(self, wanted: np.ndarray) -> np.ndarray:
        """Mask of those that are wanted, or in one that is."""
        mask: np.ndarray = wanted | (self._innermost(wanted) >= 0)
        return mask

    def _is_view(self) -> np.ndarray:
        return self._is_named(_VIEWS.__contains__)

    def _is_named(self, wanted: Callable[[str], bool]) -> np.ndarray:
        mask: np.ndarray = self._events.matches("name", wanted)[self._rows]
        return mask

    def _of_shapes(self, wanted: Callable[[list[Shape]], bool]) -> np.ndarray:
        mask: np.ndarray = np.array([*(wanted(shapes) for shapes in self._shapes), False])[self._shape[self._rows]]
        return mask


def _shapes(text: str | None) -> list[Shape]:
    """The shapes of the tensors among an operation's inputs, also of those in lists; `text` is the trace's JSON list."""
    found = list[Shape]()

    def collect(one: object) -> None:
        if isinstance(one, list):
            if one and all(isinstance(size, int) for size in one):
                found.append(tuple(one))
            else:
                for inner in one:
                    collect(inner)

    collect(msgspec.json.decode(text) if text else None)
    return found


def _sides(shapes: list[Shape]) -> tuple[int, int, int]:
    """(m, k, n) of the product of an m × k matrix, and a k × n matrix, the last two of these; zeros if they are something
    else."""
    if len(shapes) >= 2 and all(len(one) == 2 for one in shapes[-2:]) and shapes[-2][1] == shapes[-1][0]:
        (m, k), (_, n) = shapes[-2:]
        return m, k, n
    return 0, 0, 0


def _filtered(output: Shape | None, weight: Shape) -> float:
    """Multiplications and additions of a convolution with this weight; 0 if its output is unknown."""
    return 2.0 * prod(output) * prod(weight[1:]) if output and len(output) == len(weight) else 0.0
