"""Products with weights of which two of each four neighbours in a row are zero (2:4), as `esprof probe` measured them.

Balanced sparsity (Yao et al., AAAI 2019) has equally many zeros in each block of a row, so that all threads have equal work;
2:4 is its form for the tensor cores of devices of compute capability 8.0 and later.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

import msgspec
import numpy as np

from esprof.core import readable
from esprof.core.types import Rank
from esprof.replay.dfg import Cls, LaneKind
from esprof.replay.whatif.gradients.marked_calls import backward_ranges
from esprof.replay.whatif.graph import edits
from esprof.replay.whatif.graph.nested_operations import launching_operations
from esprof.replay.whatif.graph.thread_ranges import ranges_of_rows, work_share
from esprof.replay.whatif.scenario import Declined, Scenario
from esprof.run.curve import Curve
from esprof.run.probes import Kind, Probes
from esprof.run.raw.module_events import MODULE_PREFIX
from esprof.run.schema import Table

_OPERANDS = {"aten::mm": slice(0, 2), "aten::addmm": slice(1, 3)}
"""Operations that multiply two matrices -> which of their arguments these are."""

_TYPES = {
    "bfloat16": re.compile(r"bf16|bfloat16|nvjet_tst|BBS", re.IGNORECASE),
    "float16": re.compile(r"f16|fp16|half|hgemm|nvjet_hsh|884gemm|16816|HHS|HBS", re.IGNORECASE),
}
"""Type of the numbers that a kernel multiplies -> matches its names. The first match counts."""

_MAX_LISTED = 4


class WeightProduct(NamedTuple):
    """A product of matrices, [rows, inner] by [inner, columns]."""

    dtype: str
    rows: int
    inner: int
    columns: int

    def weights(self) -> Iterator[tuple[str, int]]:
        """(weight as the probe names it, floating-point operations), for a linear layer, whose weight is the right matrix,
        transposed, and for a weight that is the left one."""
        flop = 2 * self.rows * self.inner * self.columns
        yield f"{self.dtype} {self.columns}x{self.inner}", flop
        yield f"{self.dtype} {self.rows}x{self.inner}", flop


class SparseChange(NamedTuple):
    """How a product changes if its weight is 2:4."""

    times_as_fast: float
    sparsify_ns: float
    """Time to choose the zeros of the weight and to pack it, as a training step does."""


@dataclass(frozen=True)
class SparsePairs:
    """Times by floating-point operations of products of a rank, with dense and with 2:4 weights of the same names."""

    dense: dict[str, Curve]
    sparse: dict[str, Curve]
    sparsify: dict[str, Curve]

    @classmethod
    def of(cls, probes: Probes | None, rank: Rank) -> Self:
        """Raises Declined if no pair was measured."""
        if probes is None:
            raise Declined("no product with 2:4 weights was measured (esprof probe)")
        found = cls(*(_curves(probes, kind, rank) for kind in ("dense", "sparse", "sparsify")))
        if not found.dense.keys() & found.sparse.keys():
            reasons = [f"{row.what}: {row.reason}" for row in probes.left_out if row.what.startswith("2:4 ")]
            needs = "it takes a GPU of compute capability 8.0 or later, and linear layers of sizes that it supports"
            raise Declined(f"the probe measured no product with 2:4 weights: {next(iter(reasons), needs)}")
        return found

    def change(self, product: WeightProduct) -> SparseChange | None:
        """None where products with such a weight were not measured."""
        for weight, flop in product.weights():
            dense, sparse, sparsify = (curves.get(weight) for curves in (self.dense, self.sparse, self.sparsify))
            if dense is not None and sparse is not None and dense.holds(flop) and sparse.holds(flop):
                packing_ns = float(sparsify.median_ns[0]) if sparsify is not None else 0.0
                return SparseChange(dense.at(flop) / sparse.at(flop), packing_ns)
        return None


def with_sparse_weights(now: Scenario, modules: re.Pattern[str]) -> Scenario:
    """The scenario in which the weights of modules with such names are 2:4. Raises Declined without evidence."""
    dfg, run = now.dfg, now.run
    calls = {rank: _calls(run.events(rank), modules) for rank in dfg.marks.ranks}
    if not any(map(len, calls.values())):
        raise Declined("no call of a module of that name was recorded (esprof record, esprof ops --by module)")
    events = {rank: run.events(rank) for rank, rows in calls.items()}
    forward = work_share(run, dfg, {rank: ranges_of_rows(events[rank], rows) for rank, rows in calls.items()})
    backward = work_share(run, dfg, {rank: backward_ranges(events[rank], rows) for rank, rows in calls.items()})
    is_kernel = dfg.on(LaneKind.STREAM) & dfg.of(Cls.COMPUTE) & (dfg.event >= 0) & (forward + backward > 0)
    left, dense = dfg.dur_ns.astype(np.float64), dict[str, None]()
    for rank in calls:
        pairs, nodes = SparsePairs.of(run.probes, rank), np.flatnonzero(is_kernel & (dfg.rank == rank))
        for node, product in zip(nodes.tolist(), _products(events[rank], dfg.event[nodes]), strict=True):
            change = pairs.change(product) if product is not None else None
            if change is not None:
                left[node] = left[node] / change.times_as_fast + (change.sparsify_ns if forward[node] else 0)
            elif product is not None and forward[node]:
                dense[next(product.weights())[0]] = None
    changed = np.flatnonzero(left != dfg.dur_ns)
    if not len(changed):
        raise Declined(f"no product of these modules was measured with 2:4 weights{_listed(dense)}")
    now = replace(now, dfg=edits.replace(dfg, changed, np.rint(left[changed]).astype(np.int64)))
    now = now.noted("2:4 weights change the model: check its accuracy")
    return now.noted(f"these weights stay dense{_listed(dense)}") if dense else now


def _curves(probes: Probes, kind: Kind, rank: Rank) -> dict[str, Curve]:
    return {one.name: one.curve() for one in probes.sweeps if one.kind == kind and one.ranks == (rank,) and one.points}


def _calls(events: Table, modules: re.Pattern[str]) -> np.ndarray:
    """Rows of the calls of modules with such names."""

    def is_wanted(name: str) -> bool:
        return name.startswith(MODULE_PREFIX) and bool(modules.search(name.removeprefix(MODULE_PREFIX)))

    return np.flatnonzero(events.is_kind("python") & events.matches("name", is_wanted))


def _products(events: Table, kernels: np.ndarray) -> list[WeightProduct | None]:
    """What each kernel (row) multiplies; None if it multiplies no two matrices of 16 bits, or of unknown shapes."""
    (name, names), (shape, shapes) = events.codes("name"), events.codes("shapes")
    operation = launching_operations(events, kernels)
    found: dict[tuple[int, int, int], WeightProduct | None] = {}
    keys = zip(name[kernels].tolist(), name[operation].tolist(), shape[operation].tolist(), strict=True)
    of_kernels = [key if at >= 0 and key[2] >= 0 else None for key, at in zip(keys, operation.tolist(), strict=True)]
    for key in filter(None, dict.fromkeys(of_kernels)):
        kernel, caller, sizes = key
        found[key] = _product(names[kernel], names[caller], shapes[sizes])
    return [found[key] if key is not None else None for key in of_kernels]


def _product(kernel: str, operation: str, shapes: str) -> WeightProduct | None:
    dtype = next((dtype for dtype, pattern in _TYPES.items() if pattern.search(kernel)), None)
    if dtype is None or operation not in _OPERANDS:
        return None
    try:
        left, right = msgspec.json.decode(shapes, type=list)[_OPERANDS[operation]]
        (rows, inner), (other, columns) = (msgspec.convert(one, tuple[int, int]) for one in (left, right))
    except (msgspec.MsgspecError, ValueError):
        return None
    return WeightProduct(dtype, rows, inner, columns) if inner == other else None


def _listed(weights: dict[str, None]) -> str:
    """The first weights, after a colon; empty without any."""
    return f": {readable.listed(list(weights), _MAX_LISTED)}" if weights else ""
