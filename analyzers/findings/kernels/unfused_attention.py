"""ESP705: attention computed by separate kernels."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import isnan, nan, prod

import numpy as np

from esprof.analyzers.evidence import Evidence, by_rank
from esprof.analyzers.ops.gpu_calls import GpuCalls
from esprof.analyzers.price import MIN_PCT_OF_STEP
from esprof.analyzers.rule import Case, Cause, Page, Rule
from esprof.analyzers.views.device_peaks import peak_of, precision_of
from esprof.analyzers.views.kernel_names import faster
from esprof.analyzers.views.operation_counts import FIRST_MATRIX, Dims, product_sizes
from esprof.core import readable
from esprof.core.types import Rank

MIN_SHARE_OWN = 0.9
"""Least share of a kernel's time inside attention for which the scenario may make it faster: a what-if selects by name."""

_BATCHED = ("aten::bmm", "aten::baddbmm")
_SOFTMAX = re.compile(r"softmax(?!.*backward)", re.IGNORECASE)
_MATH = "aten::_scaled_dot_product_attention_math"


@dataclass(frozen=True)
class _Attention:
    """One attention: calls from a product of queries and keys through softmax to a product with the values."""

    first: int
    last: int
    """Numbers of the calls of both products."""
    rows: int
    columns: int
    """Sizes of the scores."""
    operations: float
    elements: float
    """Elements of queries, keys, values and output."""


@dataclass(frozen=True)
class _RankAttention:
    """Attention of one rank in its steady-state steps."""

    calls: GpuCalls
    found: list[_Attention]
    work: np.ndarray
    """Mask of the GPU work launched between the first and the last call of an attention."""
    fused_ns: float
    """Time of fused attention at the device's peaks; NaN if they are unknown."""

    @property
    def took_ns(self) -> float:
        return float(self.calls.work.dur_ns[self.work].sum())


def unfused_attention(case: Case) -> Iterator[Cause]:
    """Attention as products and softmax, with the time of a fused kernel at the peaks of the device."""
    if not case.replayed.built.dfg.has_gpu():
        return
    ranks = {rank: _of_rank(calls, case.run.rank(rank).device) for rank, calls in case.gpu_calls.items()}
    span = sum(one.calls.span_ns for one in ranks.values())
    took = sum(one.took_ns for one in ranks.values())
    if 100 * took < MIN_PCT_OF_STEP * span:
        return
    fused = sum(one.fused_ns for one in ranks.values())
    scenario = _scenario([*ranks.values()], took - fused)
    if scenario is not None and not case.is_worth_reporting(case.pricer.saving_ns(scenario)):
        return
    steps = sum(one.calls.steps for one in ranks.values())
    yield Cause(
        id="ESP705",
        title=f"Attention runs as separate kernels for {readable.duration(took / steps)} a step, "
        f"{100 * took / span:.0f} % of it",
        ranks=tuple(rank for rank, one in ranks.items() if one.found),
        scenario=scenario,
        is_bound=True,
        confidence="low",
        severity=None if scenario else "info",
        evidence=_evidence(ranks, fused / steps, scenario is not None),
        advice=_advice([*ranks.values()]),
    )


def _of_rank(calls: GpuCalls, device: str | None) -> _RankAttention:
    found = list(_attentions(calls))
    inside = np.zeros(len(calls.calls.row) + 1, bool)  # The last entry is that of work without a call, -1.
    for one in found:
        inside[:-1] |= _between(calls, one)
    work = inside[calls.work.by] & calls.is_kernel
    return _RankAttention(calls, found, work, _fused_ns(calls, found, work, device))


def _between(calls: GpuCalls, one: _Attention) -> np.ndarray:
    # Calls of a thread are sorted by start, so those of an attention are next to each other.
    at = np.arange(len(calls.calls.row))
    mask: np.ndarray = (
        (at >= one.first) & (calls.start_ns < calls.end_ns[one.last]) & (calls.tid == calls.tid[one.first])
    )
    return mask


def _attentions(calls: GpuCalls) -> Iterator[_Attention]:
    """Batched product, softmax, batched product: next to each other among those of a thread, with shapes that fit."""
    names = calls.name
    is_product = calls.are({*FIRST_MATRIX})
    is_softmax = calls.are({key.name for key in calls.calls.keys if _SOFTMAX.search(key.name)})
    at = np.flatnonzero((is_product | is_softmax) & calls.calls.starts_inside).tolist()
    scores: int | None = None
    has_softmax = False
    for call in at:
        if scores is not None and calls.tid[call] != calls.tid[scores]:
            scores = None
        if is_softmax[call]:
            has_softmax = scores is not None
            continue
        if names[call] not in _BATCHED:
            scores = None
            continue
        one = _attention(calls, scores, call) if scores is not None and has_softmax else None
        if one is not None:
            yield one
        scores, has_softmax = (call if one is None else None), False


def _attention(calls: GpuCalls, scores: int, values: int) -> _Attention | None:
    first, second = (_sizes(calls.name[call], calls.dims[call]) for call in (scores, values))
    if first is None or second is None:
        return None
    batch, rows, columns, size = first
    if (batch, rows, columns) != (second[0], second[1], second[3]):
        return None
    operations = 2.0 * prod(first) + 2.0 * prod(second)
    elements = float(batch) * (rows * size + columns * size + columns * second[2] + rows * second[2])
    return _Attention(scores, values, rows, columns, operations, elements)


def _sizes(name: str, dims: Dims) -> tuple[int, int, int, int] | None:
    first = FIRST_MATRIX[name]
    return product_sizes(dims[first : first + 2])


def _fused_ns(calls: GpuCalls, found: Sequence[_Attention], work: np.ndarray, device: str | None) -> float:
    """Least time of fused kernels, ns: operations at the peak rate or traffic at the peak bandwidth, the longer of them.

    A fused kernel reads queries, keys and values and writes its output; scores stay on the chip (Dao et al., FlashAttention,
    2022).
    """
    peak, (codes, texts) = peak_of(device), calls.kernel
    products = {precision_of(texts[code]) for code in np.unique(codes[work & calls.multiplies]).tolist()}
    if not found:
        return 0.0
    if peak is None or len(products) != 1 or (precision := products.pop()) is None:
        return nan
    size = 2 if precision == "16 bits" else 4
    return sum(max(1e9 * one.operations / peak.rate(precision), size * one.elements / peak.memory) for one in found)


def _scenario(ranks: Sequence[_RankAttention], saved_ns: float) -> str | None:
    """Kernels that only attention launches become faster, so that `saved_ns` is saved, or they take hardly any time."""
    if not saved_ns > 0:  # NaN if the peaks are unknown.
        return None
    inside, total = dict[str, float](), dict[str, float]()
    for one in ranks:
        codes, texts = one.calls.kernel
        for code in np.unique(codes[one.work]).tolist():
            mine, took = codes == code, one.calls.work.dur_ns
            inside[texts[code]] = inside.get(texts[code], 0.0) + float(took[mine & one.work].sum())
            total[texts[code]] = total.get(texts[code], 0.0) + float(took[mine].sum())
    own = [name for name, took in inside.items() if took >= MIN_SHARE_OWN * total[name]]
    own_ns = sum(total[name] for name in own)
    if not own:
        return None
    factor = own_ns / max(own_ns - saved_ns, 0.001 * own_ns)
    return faster(own, factor)


def _evidence(ranks: dict[Rank, _RankAttention], fused_ns: float, is_priced: bool) -> dict[str, Evidence]:
    most = max(ranks.values(), key=lambda one: len(one.found))
    largest = max(most.found, key=lambda one: one.operations)
    return {
        "attention_per_step": by_rank(
            {rank: round(one.took_ns / max(one.calls.steps, 1)) for rank, one in ranks.items()}, "ns"
        ),
        "attentions_per_step_and_rank": Evidence(round(len(most.found) / max(most.calls.steps, 1), 1)),
        "largest_scores": Evidence(f"{largest.rows} × {largest.columns}"),
        "fused_at_peak_per_step": Evidence(round(fused_ns), "ns")
        if not isnan(fused_ns)
        else Evidence("unknown: the device's peak, or the precision of the products"),
        "priced": Evidence(is_priced),
    }


def _advice(ranks: Sequence[_RankAttention]) -> str:
    if any(_MATH in one.calls.name for one in ranks):
        return (
            "scaled_dot_product_attention fell back to its math backend. `with torch.nn.attention.sdpa_kernel("
            "SDPBackend.FLASH_ATTENTION)` raises an error with the reason: data type, size of a head, or the mask."
        )
    return (
        "Use torch.nn.functional.scaled_dot_product_attention (attn_implementation='sdpa' in Hugging Face models): one "
        "kernel that never writes the scores to memory. The saving is a bound: a fused kernel at the device's peak."
    )


_PAGES = (
    Page(
        "ESP705",
        "Attention as separate kernels",
        "Attention is computed as a batched product, a softmax and another product, with kernels for mask, scale and "
        "dropout between. Each writes the scores, which grow with the square of the sequence, to memory and reads them.",
        "`attention per step` is the time of all kernels from the product of queries and keys to that with the values, in "
        "the forward pass; `largest scores` the size of one matrix of scores. `fused at peak per step` is the least time "
        "of a fused kernel: its operations at the device's peak, or reading queries, keys and values and writing the "
        "output at the memory's peak, whichever takes longer. This needs shapes.",
        "`kernel[…]=`: an upper bound. Kernels that only attention launches become faster by what a fused kernel at the "
        "peak would save. None if the device's peak or the precision is unknown, or if no kernel is attention's alone.",
        "Use torch.nn.functional.scaled_dot_product_attention.",
    ),
)

RULE = Rule(pages=_PAGES, of_case=unfused_attention)
