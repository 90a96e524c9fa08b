"""Times of the layers of a model on one rank, from the calls of its steady-state steps."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from esprof.analyzers.advisors.parallel.recorded.chain import ModuleCall
from esprof.analyzers.ops.backward import made_by
from esprof.analyzers.ops.calls import SteadyTime, calls_of, launched_by
from esprof.analyzers.ops.nesting import nearest, with_inner
from esprof.replay.building.lookup import entries
from esprof.replay.whatif.gradients.backward import AUTOGRAD_NODE
from esprof.replay.whatif.gradients.weights import weights_ns
from esprof.run.schema import Table


@dataclass(frozen=True)
class LayerTimes:
    """Times of L layers in M microbatches: forward passes of the model that are followed by a backward pass."""

    forward_ns: np.ndarray
    """float64[M, L]."""
    backward_ns: np.ndarray
    """float64[M, L]."""
    weights_ns: np.ndarray | None
    """float64[M, L], the part of the backward for weights; None if it is not known of all nodes."""
    bounds_ns: np.ndarray
    """int64[M, L + 1], begin of each forward pass, and end of each layer in it, ns since the Unix epoch."""
    covered_share: float
    """Share of these times in the time of all modules with parameters and all autograd nodes, from 0 to 1."""


class RankModules:
    """The calls of one rank, of which some are of modules. Times are of the GPU if the rank launched work on one, without
    collectives: data parallelism has others in a pipeline."""

    def __init__(self, events: Table, steady: SteadyTime, *, is_window: bool) -> None:
        self._events, self._steady = events, steady
        self._calls = calls = calls_of(events, steady, by_shape=False)
        work = launched_by(events, calls, steady, is_window=is_window)
        mine = (work.by >= 0) & ~events.is_kind("collective")[work.row]
        self._gpu_ns = np.zeros(len(calls.row), np.int64)
        np.add.at(self._gpu_ns, work.by[mine], work.dur_ns[mine])
        self._is_module = calls.of(lambda key: key.kind == "module")
        is_node = calls.of(lambda key: key.name.startswith(AUTOGRAD_NODE))
        self._start, self._tid = events.ints("start_ns")[calls.row], events.ints("tid")[calls.row]
        self._end = self._start + events.ints("dur_ns")[calls.row]
        self._module_around = self._around(self._is_module)
        node_around = self._around(is_node)
        self._nodes = np.flatnonzero(is_node & (node_around < 0))
        """Autograd nodes, of those in each other the outermost."""
        self._outermost_node = np.where(is_node & (node_around < 0), np.arange(len(is_node)), node_around)
        # Modules in a node are called again there, because their activations were not kept.
        self._roots = np.flatnonzero(self._is_module & (self._module_around < 0) & (node_around < 0))
        self.on_gpu = bool(self._gpu_ns.any())

    def _around(self, wanted: np.ndarray) -> np.ndarray:
        """Index of the innermost wanted call that encloses each call; -1 if there is none."""
        return entries(nearest(self._calls.enclosing, wanted), self._calls.enclosing, -1)

    @cached_property
    def _times_ns(self) -> np.ndarray:
        """Time of each call, on the GPU if there is one."""
        return with_inner(self._calls.enclosing, self._gpu_ns) if self.on_gpu else self._calls.total_ns

    def exchange(self) -> str | None:
        """Name of an operation by which ranks exchange data in a module, other than copies of buffers; None if none do."""
        inside = self._calls.key[self._module_around >= 0]
        names = {self._calls.keys[key].name for key in np.unique(inside).tolist()}
        return min((name for name in names if "c10d" in name and "broadcast" not in name), default=None)

    def root(self) -> ModuleCall | None:
        """A call of the model: of the modules that are called from outside of all modules, that with the most time. None if
        no module was recorded."""
        if not len(self._roots):
            return None
        key = self._calls.key[self._roots]
        total = np.bincount(key, weights=self._times_ns[self._roots] + 1e-9)
        inner: dict[int, list[int]] = {}
        for call in np.flatnonzero(self._is_module).tolist():
            inner.setdefault(int(self._module_around[call]), []).append(call)
        return self._call(int(self._roots[key == np.argmax(total)][0]), inner)

    def _call(self, at: int, inner: dict[int, list[int]]) -> ModuleCall:
        name = self._calls.keys[self._calls.key[at]].name
        calls = tuple(self._call(call, inner) for call in inner.get(at, ()))
        return ModuleCall(name, int(self._start[at]), int(self._end[at]), calls)

    def times(self, root: str, lasts: Sequence[str], ignored: frozenset[str]) -> LayerTimes | None:
        """Times of the layers of the model `root`; None if no forward pass has all of them and a backward pass.

        Each layer lasts from the end of the one before to the end of its module in `lasts`; the last, to the begin of the
        backward pass. `ignored` are modules without parameters, such as losses.
        """
        calls = self._roots_named({root})
        calls = calls[self._tid[calls] == self._tid[calls[:1]]]
        bounds, ends = self._bounds(calls, lasts)
        if not len(bounds):
            return None
        layers = len(lasts)
        slot = np.searchsorted(bounds.ravel(), self._start, side="right") - 1
        inside = (slot >= 0) & (slot % (layers + 1) < layers) & (self._tid == self._tid[calls[0]])
        slot = np.where(inside, slot - slot // (layers + 1), -1)  # One number for each layer of each microbatch.
        node, of_node = self._nodes_in(slot)
        times, (weights, is_known) = self._times_ns[node], self._weights_ns(node, of_node, layers)
        forward, known = self._forward(slot, bounds, ends), of_node >= 0
        backward, for_weights = (
            np.bincount(of_node[known], weights=one[known], minlength=len(bounds) * layers).reshape(-1, layers)
            for one in (times, weights)
        )
        others, has_backward = int(times[~known].sum()), backward.any(axis=1)
        if not has_backward.any():
            return None
        forward, backward, for_weights = (one[has_backward] for one in (forward, backward, for_weights))
        covered = float(forward.sum() + backward.sum())
        names = {key.name for key in self._calls.keys if key.kind == "module"}
        others += int(self._times_ns[self._roots_named(names - ignored - {root})].sum())
        share = covered / max(covered + others, 1.0)
        return LayerTimes(forward, backward, for_weights if is_known else None, bounds[has_backward], share)

    def _roots_named(self, names: set[str]) -> np.ndarray:
        is_named = self._calls.of(lambda key: key.kind == "module" and key.name in names)
        found: np.ndarray = self._roots[(is_named & self._calls.starts_inside)[self._roots]]
        return found

    def _bounds(self, roots: np.ndarray, lasts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """(bounds of the layers as in `LayerTimes`, end of the model's call in each) for the calls `roots` that have all
        layers in order."""
        place = {name: at for at, name in enumerate(lasts)}
        layer = np.array([place.get(key.name, -1) if key.kind == "module" else -1 for key in self._calls.keys] + [-1])
        number = np.full(len(self._calls.row), -1, np.int64)
        number[roots] = np.arange(len(roots))
        # A model of one module is its own last layer.
        root = entries(number, nearest(self._calls.enclosing, number >= 0), -1)
        bounds = np.full((len(roots), len(lasts) + 1), -1, np.int64)
        bounds[:, 0] = self._start[roots]
        found = np.flatnonzero((layer[self._calls.key] >= 0) & (root >= 0))
        bounds[root[found], layer[self._calls.key[found]] + 1] = self._end[found]
        ends = self._end[roots]
        nodes, nexts = np.sort(self._start[self._nodes]), np.append(self._start[roots][1:], np.iinfo(np.int64).max)
        begins = np.append(nodes, -1)[np.searchsorted(nodes, ends)]
        whole = (bounds >= 0).all(axis=1) & (np.diff(bounds, axis=1) >= 0).all(axis=1)
        bounds[:, -1] = np.where((begins >= 0) & (begins <= nexts), begins, ends)
        return bounds[whole], ends[whole]

    def _forward(self, slot: np.ndarray, bounds: np.ndarray, ends: np.ndarray) -> np.ndarray:
        """Time of each layer in each microbatch, ns, float64[M, L]."""
        layers = bounds.shape[1] - 1
        size = len(bounds) * layers
        mine = slot >= 0
        if self.on_gpu:
            return np.bincount(slot[mine], weights=self._gpu_ns[mine], minlength=size).reshape(-1, layers)
        # A call of the model covers all that the thread does in it; behind it, only the time of operations counts.
        until = np.minimum(bounds, ends[:, None])
        forward = np.diff(self._steady.at(until), axis=1).astype(float)
        mine &= self._start >= ends[np.maximum(slot, 0) // layers]
        after = np.bincount(slot[mine], weights=self._calls.own_ns[mine], minlength=size)
        return forward + after.reshape(-1, layers)

    def _nodes_in(self, slot: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(autograd nodes by thread and time; the slot of the call that made each, -1 for none).

        A node without a known maker accumulates a gradient, and runs after the node that computed it.
        """
        node, maker = made_by(self._events, self._calls)
        outer = self._outermost_node[node]
        made = np.full(len(slot), -1, np.int64)
        made[outer[outer >= 0]] = maker[outer >= 0]
        order = self._nodes[np.lexsort((self._start[self._nodes], self._tid[self._nodes]))]
        latest = np.maximum.accumulate(np.where(made[order] >= 0, np.arange(len(order)), -1)) if len(order) else order
        return order, entries(slot, entries(made[order], latest, -1), -1)

    def _weights_ns(self, node: np.ndarray, slot: np.ndarray, layers: int) -> tuple[np.ndarray, bool]:
        """(time for weights of each of these nodes, ns; whether it is known of all)."""
        names = [self._calls.keys[key].name for key in self._calls.key.tolist()]
        needs = np.zeros(len(names), bool)
        needs[node] = slot % layers > 0  # The data need no gradient.
        found, is_known = weights_ns(names, self._outermost_node, self._times_ns, needs)
        return found[node], is_known
