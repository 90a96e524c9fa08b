"""Model FLOP utilisation: the share of a step that its recorded multiplications would take at the device's peak."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from esprof.analyzers.ops.answer import Utilisation
from esprof.analyzers.ops.gpu_calls import GpuCalls
from esprof.analyzers.views.device_peaks import Precision, peak_of, precision_of

MIN_SHARE_COUNTED = 0.05
"""Least share of the time of multiplying kernels for which a figure is given."""


@dataclass(frozen=True)
class RankUtilisation:
    """Sums over the steady-state steps of one rank."""

    operations: dict[Precision, float]
    counted_ns: float
    """Time of the kernels of counted operations."""
    multiplying_ns: float
    """Time of all kernels that multiply, by their names."""
    at_peak_ns: float
    """Time of the counted operations at the device's peak."""
    span_ns: float
    """Duration of the steps."""
    is_device_known: bool
    steps: int


def rank_utilisation(found: GpuCalls, device: str | None) -> RankUtilisation:
    """Count the operations of a rank on a device of this name."""
    peak, counted = peak_of(device), ~np.isnan(found.operations)
    inside = found.within(counted)
    chosen = np.flatnonzero((inside >= 0) & found.is_kernel)
    took = found.work.dur_ns[chosen]
    codes, texts = found.kernel
    precision_by_name = {code: precision_of(texts[code]) for code in np.unique(codes[chosen]).tolist()}
    # The precision of an operation is that of its longest kernel.
    order = np.argsort(took, kind="stable")
    longest = dict(zip(inside[chosen][order].tolist(), codes[chosen][order].tolist(), strict=True))
    operations: dict[Precision, float] = {}
    for call, code in longest.items():
        precision = precision_by_name[code]
        if precision is not None:
            operations[precision] = operations.get(precision, 0.0) + float(found.operations[call])
    is_known = np.array([precision_by_name[code] is not None for code in codes[chosen].tolist()], bool)
    return RankUtilisation(
        operations=operations,
        counted_ns=float(took[is_known].sum()),
        multiplying_ns=float(found.work.dur_ns[found.multiplies | (found.is_kernel & (inside >= 0))].sum()),
        at_peak_ns=sum(1e9 * count / peak.rate(precision) for precision, count in operations.items()) if peak else 0.0,
        span_ns=float(found.span_ns),
        is_device_known=peak is not None,
        steps=found.steps,
    )


def utilisation(ranks: Sequence[RankUtilisation]) -> Utilisation | None:
    """The utilisation of these ranks; None if no kernel multiplies."""
    multiplying = sum(rank.multiplying_ns for rank in ranks)
    if not multiplying:
        return None
    share = sum(rank.counted_ns for rank in ranks) / multiplying
    total = sum(sum(rank.operations.values()) for rank in ranks)
    names = list(dict.fromkeys(name for rank in ranks for name in rank.operations))
    reason = None
    if share < MIN_SHARE_COUNTED:
        reason = (
            "no shapes were recorded"
            if not total
            else f"shapes tell the operations of only {100 * share:.1f} % of the time of multiplications"
        )
    elif not all(rank.is_device_known for rank in ranks):
        reason = "the peak of the device is unknown"
    at_peak, span = (sum(getattr(rank, field) for rank in ranks) for field in ("at_peak_ns", "span_ns"))
    return Utilisation(
        mfu_pct=None if reason else round(100 * at_peak / span, 3),
        reason=reason,
        operations_per_step=total / sum(rank.steps for rank in ranks) if share >= MIN_SHARE_COUNTED else None,
        precisions={
            name: round(sum(rank.operations.get(name, 0.0) for rank in ranks) / total, 4) for name in names if total
        },
        counted_share=round(share, 4),
    )
