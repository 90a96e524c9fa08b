"""GPU kernels by name: their time, their rates, and what bounds them."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from esprof.analyzers.ops.gpu_calls import GpuCalls
from esprof.analyzers.views.device_peaks import Precision, peak_of, precision_of
from esprof.analyzers.views.kernel_names import kernel_label
from esprof.analyzers.views.operation_counts import element_bytes, least_elements

Bound = Literal["arithmetic", "memory", "launch size", "neither", "unknown"]

BOUND_SHARE = 0.5
"""Share of a peak from which on it bounds a kernel: large multiplications and copies reach at least half of theirs."""

SHORT_NS = 10_000
"""Mean duration below which a kernel far from both peaks is bound by its size: starting and draining a grid takes
some µs of it."""


@dataclass
class KernelWork:
    """The calls of kernels of one label, over the steady-state steps of several ranks."""

    label: str
    took_ns: float = 0.0
    calls: int = 0
    precision: Precision | None = None
    operations: float = 0.0
    operations_at_peak_ns: float = 0.0
    operations_ns: float = 0.0
    """Time of the calls with known operations."""
    bytes: float = 0.0
    """Least traffic of device memory."""
    bytes_at_peak_ns: float = 0.0
    bytes_ns: float = 0.0
    names: Counter[str] = field(default_factory=Counter)
    """Full name -> time, ns."""

    @property
    def arithmetic_share(self) -> float | None:
        """Share of the peak rate of arithmetic; None where unknown.

        More than the peak shows an algorithm with fewer operations (Winograd, FFT), whose number is unknown.
        """
        share = self.operations_at_peak_ns / self.operations_ns if self.operations_at_peak_ns else None
        return None if share is None or share > 1 else share

    @property
    def memory_share(self) -> float | None:
        """Least share of the peak bandwidth of memory; None where unknown."""
        return self.bytes_at_peak_ns / self.bytes_ns if self.bytes_at_peak_ns else None

    @property
    def bound(self) -> Bound:
        """What bounds these kernels."""
        shares: list[tuple[float, Bound]] = []
        if self.arithmetic_share is not None:
            shares.append((self.arithmetic_share, "arithmetic"))
        if self.memory_share is not None:
            shares.append((self.memory_share, "memory"))
        if shares and max(shares)[0] >= BOUND_SHARE:
            return max(shares)[1]
        if self.took_ns < SHORT_NS * self.calls:
            return "launch size"
        return "neither" if shares else "unknown"


def kernel_work(ranks: Sequence[tuple[GpuCalls, str | None]]) -> list[KernelWork]:
    """The kernels of these ranks, each with the name of its device; most time first."""
    found: dict[str, KernelWork] = {}
    for calls, device in ranks:
        for label, name, works, rates in _groups(calls):
            one = found.setdefault(label, KernelWork(label))
            took = float(calls.work.dur_ns[works].sum())
            one.took_ns += took
            one.calls += len(works)
            one.names[name] += int(took)
            _count(one, name, rates, device)
    return sorted(found.values(), key=lambda one: -one.took_ns)


@dataclass(frozen=True)
class _Rates:
    """Operations and elements moved by the work of one name, and the time of the work for which each is known, ns."""

    operations: float
    operations_ns: float
    elements: float
    elements_ns: float


def _groups(calls: GpuCalls) -> Iterator[tuple[str, str, np.ndarray, _Rates]]:
    """(label, kernel name, work, rates) of each kernel name and launching operation of a rank."""
    codes, texts = calls.kernel
    by = calls.work.by
    key_of = np.append(calls.calls.key, -1)[by]
    work = np.flatnonzero(calls.is_kernel)
    order = work[np.lexsort((key_of[work], codes[work]))]
    if not len(order):
        return
    changes = np.flatnonzero(np.diff(codes[order]) | np.diff(key_of[order])) + 1
    counts = _Counts(calls)
    for group in np.split(order, changes):
        name, operation = texts[codes[group[0]]], calls.calls.keys[key_of[group[0]]].name if by[group[0]] >= 0 else None
        yield kernel_label(name, operation), name, group, counts.rates(group)


class _Counts:
    """Operations and elements of each piece of work of a rank. An operation counts for its longest kernel, whose rate is
    over the time of all kernels of the operation."""

    def __init__(self, calls: GpuCalls) -> None:
        counted = ~np.isnan(calls.operations)
        self._operations = self._spread(calls, np.where(counted, calls.operations, 0), calls.within(counted))
        elements = np.array(
            [least_elements(name, dims) or 0.0 for name, dims in zip(calls.name, calls.dims, strict=True)], float
        )
        self._elements = self._spread(calls, elements, calls.work.by)

    @staticmethod
    def _spread(calls: GpuCalls, amount: np.ndarray, call: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(amount, time in ns) of each piece of work."""
        amounts, took = np.zeros(len(call)), np.zeros(len(call))
        inside = np.flatnonzero((call >= 0) & calls.is_kernel)
        inside = inside[amount[call[inside]] > 0]
        total = np.bincount(call[inside], weights=calls.work.dur_ns[inside], minlength=len(amount))
        # The last of the sorted work of a call is its longest.
        order = inside[np.lexsort((calls.work.dur_ns[inside], call[inside]))]
        last = order[np.append(np.flatnonzero(np.diff(call[order])), len(order) - 1)] if len(order) else order
        amounts[last], took[last] = amount[call[last]], total[call[last]]
        return amounts, took

    def rates(self, work: np.ndarray) -> _Rates:
        return _Rates(*(float(values[work].sum()) for values in (*self._operations, *self._elements)))


def _count(one: KernelWork, name: str, rates: _Rates, device: str | None) -> None:
    peak, precision, size = peak_of(device), precision_of(name), element_bytes(name)
    if rates.operations and precision is not None:
        one.precision = precision
        one.operations += rates.operations
        one.operations_ns += rates.operations_ns
        if peak is not None:
            one.operations_at_peak_ns += 1e9 * rates.operations / peak.rate(precision)
    if rates.elements and size is not None:
        one.bytes += rates.elements * size
        one.bytes_ns += rates.elements_ns
        if peak is not None:
            one.bytes_at_peak_ns += rates.elements * size / peak.memory
