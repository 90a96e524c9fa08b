"""ESP702: matrix multiplications far below the peak of their device."""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np

from esprof.analyzers.evidence import Evidence, Value, by_rank
from esprof.analyzers.findings.kernels.native_rates import Limit, NativeRates, Product
from esprof.analyzers.rule import Case, Cause, Page, Rule
from esprof.analyzers.views.device_peaks import Precision, peak_of, precision_of
from esprof.analyzers.views.kernel_names import faster
from esprof.analyzers.views.operation_counts import FIRST_MATRIX, dims_of, product_sizes
from esprof.core.types import Rank
from esprof.replay.building.lookup import entries, position
from esprof.replay.dfg import LaneKind
from esprof.replay.whatif.graph.selections import gpu_work

SLOW_SHARE_OF_PEAK = 0.25
"""Share of the device's peak below which a kernel counts as slow. Large multiplications reach at least half of it."""

GOOD_SHARE_OF_PEAK = 0.5
"""Share of the data sheet's peak that the price assumes at most, where no probe has shown what the device reaches."""

NEAR_NATIVE_SHARE = 0.8
"""Share of what memory and the native rate allow from which on a kernel has little to gain."""

MIN_SHARE_OF_STEP = 0.1
"""Least share of a GPU's time in these kernels for which they are reported."""

MAX_KERNELS_REPORTED = 5
"""Number of kernels that a finding covers, longest first: its scenario names each of them."""

_TILE_SIZE = 8
"""Sizes of 16-bit matrices should be multiples of this for tensor cores (NVIDIA, Deep Learning Performance Guide, "Tensor
Core Requirements")."""


@dataclass
class _Kernel:
    """All calls of one kernel, over the steady-state steps of all ranks."""

    precision: Precision
    took_ns: float = 0.0
    operations: float = 0.0
    """Floating-point operations of these calls."""
    peak_operations: float = 0.0
    """Floating-point operations at the devices' peak in the same time."""
    by_rank: dict[Rank, float] = field(default_factory=lambda: defaultdict(float))
    """Time, ns, by rank."""
    attainable_operations: float = 0.0
    """Floating-point operations at the attainable rates in the same time (`NativeRates.attainable`)."""
    is_probed: bool = True
    """Whether a probe has measured the native rate on all devices."""
    products: dict[Product, float] = field(default_factory=lambda: defaultdict(float))
    """Multiplication -> time, ns."""
    limits: dict[Product, Limit] = field(default_factory=dict)
    """Multiplication -> what keeps it from the native rate."""
    full: dict[Product, dict[Limit, float]] = field(default_factory=dict)
    """Multiplication -> shares of tiles and waves that are full."""

    @property
    def share(self) -> float:
        """Share of the peak that was reached."""
        return self.operations / self.peak_operations

    @property
    def native_share(self) -> float:
        """Share of the attainable rate that was reached."""
        return self.operations / self.attainable_operations

    @property
    def product(self) -> Product:
        """The multiplication that takes the kernel longest."""
        return max(self.products, key=lambda product: self.products[product])


def slow_multiplications(case: Case) -> Iterator[Cause]:
    """Matrix multiplications that take much GPU time and reach a small share of the peak."""
    dfg, steps = case.replayed.built.dfg, case.replayed.steps.steady
    below = {
        name: kernel
        for name, kernel in _kernels(case).items()
        if kernel.attainable_operations > 0
        and kernel.share < SLOW_SHARE_OF_PEAK
        and kernel.native_share < NEAR_NATIVE_SHARE
    }
    slow = {name: below[name] for name in sorted(below, key=lambda name: -below[name].took_ns)[:MAX_KERNELS_REPORTED]}
    if not slow:
        return
    work = gpu_work(dfg) & np.isin(dfg.step, steps)
    of_rank = {rank: float(dfg.dur_ns[work & (dfg.rank == rank)].sum()) for rank in dfg.marks.ranks}
    shares = {
        rank: sum(kernel.by_rank.get(rank, 0.0) for kernel in slow.values()) / max(total, 1.0)
        for rank, total in of_rank.items()
    }
    ranks = tuple(rank for rank, share in shares.items() if share >= MIN_SHARE_OF_STEP)
    reached = sum(one.operations for one in slow.values()) / sum(one.peak_operations for one in slow.values())
    native = sum(one.operations for one in slow.values()) / sum(one.attainable_operations for one in slow.values())
    is_probed = all(one.is_probed for one in slow.values())
    scenario = _scenario(slow, reached, native, is_probed=is_probed)
    if not ranks or not case.is_worth_reporting(case.pricer.saving_ns(scenario)):
        return
    worst = max(slow.values(), key=lambda kernel: kernel.took_ns)
    yield Cause(
        id="ESP702",
        title=f"{100 * max(shares.values()):.0f} % of GPU time is matrix multiplication at {100 * reached:.0f} % of "
        "the device's peak",
        ranks=ranks,
        scenario=scenario,
        confidence="low",
        evidence=_evidence(slow, shares, reached, len(steps) * len(dfg.marks.ranks))
        | {
            "native_share": Evidence(round(native, 4), "share"),
            "native_rate_from": Evidence("probe" if is_probed else "data sheet"),
        },
        advice=_advice(worst),
    )


def _kernels(case: Case) -> dict[str, _Kernel]:
    """Name of a kernel -> its calls from operations with known shapes, on devices with a known peak."""
    found: dict[str, _Kernel] = {}
    for rank in case.replayed.built.dfg.marks.ranks:
        peak = peak_of(case.run.rank(rank).device)
        if peak is None:
            continue
        native = NativeRates.of(peak, case.run.probes, rank)
        for name, took_ns, shape in multiplications(case, rank):
            product = Product(*shape)
            precision = precision_of(name)
            if precision is None or not product.operations:
                continue
            kernel = found.setdefault(name, _Kernel(precision))
            kernel.took_ns += took_ns
            kernel.by_rank[rank] += took_ns
            kernel.operations += product.operations
            kernel.peak_operations += took_ns * peak.rate(precision) / 1e9
            kernel.attainable_operations += took_ns * native.attainable(product, precision) / 1e9
            kernel.is_probed &= precision in native.probed
            kernel.products[product] += took_ns
            if product not in kernel.limits:
                kernel.limits[product] = native.limit(product, precision, name)
                kernel.full[product] = native.full(product, name)
    return found


def multiplications(case: Case, rank: Rank) -> Iterator[tuple[str, float, tuple[int, int, int, int]]]:
    """(kernel name, ns, (batch, rows, columns, inner size)) of each multiplication of a rank in its steady-state steps.

    An operation that launches several kernels counts under its longest kernel, with the time of all.
    """
    dfg, events = case.replayed.built.dfg, case.run.events(rank)
    names, texts = events.codes("name")
    shapes, shape_texts = events.codes("shapes")
    is_multiplying = events.matches("name", FIRST_MATRIX.__contains__)
    rows = np.flatnonzero(is_multiplying & (shapes >= 0) & events.is_kind("op"))
    if not len(rows):
        return
    nodes = dfg.nodes_of(rank)
    work = nodes[dfg.on(LaneKind.STREAM)[nodes] & np.isin(dfg.step[nodes], case.replayed.steps.steady)]
    work = work[dfg.event[work] >= 0]
    # The launch itself and not the operation at the top of its thread: `aten::linear` encloses the multiplication.
    correlation, calls = events.ints("correlation"), np.flatnonzero(events.is_kind("runtime"))
    call = entries(calls, position(correlation[calls], correlation[dfg.event[work]]), -1)
    work, call = work[call >= 0], call[call >= 0]
    # Multiplications do not nest, so the one that encloses a launch is the last that its thread started before.
    tid, start = events.ints("tid"), events.ints("start_ns")
    end = start + events.ints("dur_ns")
    order = rows[np.lexsort((start[rows], tid[rows]))]
    latest = _last_before(tid[order], start[order], tid[call], start[call])
    inside = (latest >= 0) & (start[call] < end[order[np.maximum(latest, 0)]])
    kernels: dict[int, list[int]] = defaultdict(list)
    for operation, node in zip(order[latest[inside]].tolist(), work[inside].tolist(), strict=True):
        kernels[operation].append(node)
    for operation, launched in kernels.items():
        first = FIRST_MATRIX[texts[names[operation]]]
        shape = product_sizes(dims_of(shape_texts[shapes[operation]])[first : first + 2])
        if shape is not None:
            longest = max(launched, key=lambda node: int(dfg.dur_ns[node]))
            yield dfg.label(longest), float(dfg.dur_ns[launched].sum()), shape


def _last_before(groups: np.ndarray, moments: np.ndarray, group: np.ndarray, moment: np.ndarray) -> np.ndarray:
    """Index of the last of `moments` at or before each `moment` of the same group, int64[len(moment)]; -1 for none.

    `moments` ascend within each of the sorted `groups`.
    """
    position = np.full(len(moment), -1)
    for one in np.unique(group).tolist():
        first, last = np.searchsorted(groups, [one, one + 1])
        mine = group == one
        at = np.searchsorted(moments[first:last], moment[mine], side="right") - 1
        position[mine] = np.where(at >= 0, first + at, -1)
    return position


def _scenario(names: Iterable[str], reached: float, native: float, *, is_probed: bool) -> str:
    """The what-if that speeds these kernels up from the share `native` of the attainable rate to all of it; without a probe,
    from the share `reached` of the peak to no more than `GOOD_SHARE_OF_PEAK`."""
    most = math.inf if is_probed else GOOD_SHARE_OF_PEAK / max(reached, 1e-3)
    return faster(names, max(min(most, 1 / native), 1.0))


def _evidence(
    slow: dict[str, _Kernel], shares: dict[Rank, float], reached: float, rank_steps: int
) -> dict[str, Evidence]:
    name, worst = max(slow.items(), key=lambda one: one[1].took_ns)
    product = worst.product
    found = {
        "share_of_gpu_work": by_rank({rank: round(share, 3) for rank, share in shares.items()}, "share"),
        "share_of_peak": Evidence(round(reached, 4), "share"),
        "kernels": Evidence(len(slow)),
        "longest": Evidence(name),
        "longest_per_step_and_rank": Evidence(round(worst.took_ns / rank_steps), "ns"),
        "longest_multiplies": Evidence(_text(product)),
        "longest_share_of_peak": Evidence(round(worst.share, 4), "share"),
        "longest_native_share": Evidence(round(worst.native_share, 4), "share"),
        "longest_computes_in": Evidence(worst.precision),
        "longest_is_limited_by": Evidence(worst.limits[product]),
    }
    if worst.full[product]:
        full: dict[str, Value] = {limit: round(share, 3) for limit, share in worst.full[product].items()}
        found["longest_is_full"] = Evidence(full, "share", "cause")
    return found


def _text(product: Product) -> str:
    return f"{product.rows} × {product.inner} by {product.inner} × {product.columns}"


def _advice(kernel: _Kernel) -> str:
    product = kernel.product
    rows, columns, common, limit = product.rows, product.columns, product.inner, kernel.limits[product]
    what = f"The longest kernel multiplies {_text(product)}"
    if kernel.precision != "float32" and any(size % _TILE_SIZE for size in (rows, columns, common)):
        padded = tuple(_TILE_SIZE * math.ceil(size / _TILE_SIZE) for size in (rows, columns, common))
        return (
            f"{what}. Tensor cores need multiples of {_TILE_SIZE}: pad the vocabulary, the width or the batch, "
            f"here to {padded[0]}, {padded[1]} and {padded[2]}."
        )
    if limit in ("tile", "wave"):
        share = f"{100 * kernel.full[product][limit]:.0f} %"
        fills = f"fills {share} of its tiles" if limit == "tile" else f"fills {share} of the device's waves"
        return (
            f"{what}, which {fills}. Choose sizes that fill them, such as a smaller vocabulary, width or batch, or let "
            "torch.compile(mode='max-autotune') choose other tiles."
        )
    if limit == "memory" or min(rows, columns, common) < 128:
        return (
            f"{what}. Matrices this narrow cannot fill the device: use larger batches or longer sequences, or fuse "
            "several multiplications (one weight for query, key and value)."
        )
    return (
        f"{what}, which is large enough to be fast. Check the device's clocks and temperature, concurrent kernels, "
        "and the memory layout of the matrices (transposed, or not contiguous)."
    )


_PAGES = (
    Page(
        "ESP702",
        "Matrix multiplications far below the device's peak",
        "Matrix multiplication kernels reach less than a quarter of the device's peak: the matrices are too narrow "
        "to fill it, their sizes do not suit its tensor cores, or the device runs below its usual speed.",
        "`share of peak` compares the operations per second with the data sheet, at the precision that the kernel "
        "names indicate. `native share` compares them with what is attainable: the rate of the fastest square matrices of a "
        "probe (`esprof probe`), else that of the data sheet, or less where memory cannot feed it (roofline model). "
        "`share of gpu work` is the share of each GPU's time in these kernels; `longest multiplies` has the sizes of the "
        "longest one. `longest is limited by` is what keeps it slow: `memory`; `alignment`, if inner size or columns are "
        "no multiples of 8 with 16 bits, or of 4 with TF32; `tile` or `wave`, if tiles, or rounds of a tile on each "
        "processor, are not full, by the tile in the kernel's name; or `unknown`. `aten::mm`, `addmm`, `bmm` and `baddbmm` "
        "are counted. This needs shapes (`--shapes`, or `record_shapes=True` of torch.profiler) and a known device.",
        "`kernel[…]=`: replay speeds these kernels up to the attainable rate; without a probe to no more than half of the "
        "peak, which large multiplications reach. An upper bound.",
        "Use wider matrices (larger batches, fused projections), sizes that are multiples of 8, and 16-bit "
        "precision if the model allows it (ESP703).",
    ),
)

RULE = Rule(pages=_PAGES, of_case=slow_multiplications)
