"""ESP704: devices that compute for nearly all of the step."""

from collections.abc import Iterator, Mapping, Sequence

from esprof.analyzers.evidence import Evidence, Unit, Value, by_rank
from esprof.analyzers.finding import GPU_BOUND, RankBreakdown
from esprof.analyzers.ops.answer import Utilisation
from esprof.analyzers.ops.gpu_calls import GpuCalls
from esprof.analyzers.ops.kernel_work import KernelWork, kernel_work
from esprof.analyzers.ops.utilisation import rank_utilisation, utilisation
from esprof.analyzers.rule import Case, Cause, Page, Rule
from esprof.analyzers.views.device_peaks import peak_of
from esprof.core import readable
from esprof.core.types import NS_PER_S, Rank
from esprof.run.run import Run

MIN_COMPUTE_SHARE = 0.9
"""Least share of the mean step in which devices compute: less than a tenth is left for any change outside of kernels."""

SHARE_OF_KERNELS_NAMED = 0.8
"""Share of kernel time that the named kernels cover together, unless they would be more than MAX_KERNELS_NAMED."""

MAX_KERNELS_NAMED = 5


MIN_SHARE_RECORDED = 0.5
"""Least share of the step that recorded kernels take together for the longest to be named as what makes the step."""

_UNRECORDED = "most of its kernels were not recorded"
_RECORD_KERNELS = (
    "Only faster or fewer kernels shorten the step, but which they are is unknown: the profiler recorded few of them. "
    "Record without CUDA graphs, or with a newer version of the driver's profiler (CUPTI, rocprofiler)."
)


def gpu_bound(case: Case) -> Iterator[Cause]:
    """Steps in which the devices compute nearly all the time, with their longest kernels."""
    if case.replayed.built.dfg.has_gpu():
        yield from bound_by_gpu(case.breakdown, case.gpu_calls, case.run)


def bound_by_gpu(breakdowns: Sequence[RankBreakdown], gpu_calls: Mapping[Rank, GpuCalls], run: Run) -> Iterator[Cause]:
    """The same, from the breakdown and the GPU work of each rank."""
    shares = {one.rank: one.compute / one.step_us for one in breakdowns if one.step_us}
    if sum(shares.values()) < MIN_COMPUTE_SHARE * max(len(shares), 1):
        return
    found = [(calls, run.rank(rank).device) for rank, calls in gpu_calls.items()]
    kernels = kernel_work(found)
    if not kernels:
        return
    used = utilisation([rank_utilisation(calls, device) for calls, device in found])
    rank_steps, span_ns = sum(calls.steps for calls, _ in found), sum(calls.span_ns for calls, _ in found)
    named = _most(kernels)
    first = named[0]
    mean = 100 * sum(shares.values()) / len(shares)
    is_recorded = sum(one.took_ns for one in kernels) >= MIN_SHARE_RECORDED * span_ns
    what = f"{first.label} takes {100 * first.took_ns / span_ns:.0f} %, {_bound(first)}" if is_recorded else _UNRECORDED
    yield Cause(
        id=GPU_BOUND,
        title=f"The GPU computes for {mean:.0f} % of the step; {what}",
        ranks=tuple(shares),
        confidence="high",
        severity="info",
        evidence={
            "compute_share": by_rank({rank: round(share, 3) for rank, share in shares.items()}, "share"),
            "share_of_step": _by_kernel({one.label: round(one.took_ns / span_ns, 4) for one in named}, "share"),
            "calls_per_step_and_rank": _by_kernel({one.label: round(one.calls / rank_steps, 1) for one in named}),
            "bound_by": _by_kernel({one.label: _bound(one) for one in named}),
            **_use(used),
        },
        advice=_advice(first, found) if is_recorded else _RECORD_KERNELS,
    )


def _most(kernels: Sequence[KernelWork]) -> list[KernelWork]:
    total, covered, named = sum(one.took_ns for one in kernels), 0.0, []
    for one in kernels[:MAX_KERNELS_NAMED]:
        named.append(one)
        covered += one.took_ns
        if covered >= SHARE_OF_KERNELS_NAMED * total:
            break
    return named


def _by_kernel(values: dict[str, Value], unit: Unit | None = None) -> Evidence:
    return Evidence(values, unit, "cause")


def _use(used: Utilisation | None) -> dict[str, Evidence]:
    if used is None:
        return {}
    if used.mfu_pct is None:
        return {"model_flop_utilisation": Evidence(f"unknown: {used.reason}")}
    return {
        "model_flop_utilisation": Evidence(round(used.mfu_pct / 100, 4), "share"),
        "multiplications_counted": Evidence(used.counted_share, "share"),
    }


def _bound(kernel: KernelWork) -> str:
    """What bounds a kernel, with its rates."""
    rates = []
    if kernel.operations_ns:
        rate = f"{readable.decimal(kernel.operations / kernel.operations_ns / 1e3)} TFLOP/s"
        share = kernel.arithmetic_share
        rates.append(rate if share is None else f"{rate}, {100 * share:.0f} % of the peak at {kernel.precision}")
    if kernel.bytes_ns:
        rate = f"at least {readable.size(kernel.bytes / kernel.bytes_ns * NS_PER_S)}/s"
        share = kernel.memory_share
        rates.append(rate if share is None else f"{rate}, {100 * share:.0f} % of the memory's peak")
    what = {
        "arithmetic": "bound by arithmetic" if kernel.precision == "float32" else "bound by tensor cores",
        "memory": "bound by memory",
        "launch size": f"bound by its size ({readable.duration(kernel.took_ns / kernel.calls)} a launch)",
        "neither": "near no peak",
        "unknown": "bound unknown",
    }[kernel.bound]
    return f"{what} ({'; '.join(rates)})" if rates else what


def _advice(first: KernelWork, found: Sequence[tuple[GpuCalls, str | None]]) -> str:
    missing = "" if first.bound != "unknown" else _missing(found)
    how = {
        "arithmetic": "The longest kernel is near what the device can compute: a shorter step needs fewer operations (less "
        "recomputation, a smaller model), a narrower number format, or more devices.",
        "memory": "The longest kernel moves data as fast as the device can: fuse it with its neighbours, or use a narrower "
        "number format, so that less is moved.",
        "launch size": "The longest kernel does little in each launch: larger batches or fused kernels fill the device.",
        "neither": "The longest kernel is near no peak of the device: look at its shapes, memory layout and data type.",
        "unknown": "What bounds the longest kernel is unknown.",
    }[first.bound]
    return (
        f"Input, host and communication cost little here; only faster or fewer kernels shorten the step. {how}{missing}"
    )


def _missing(found: Sequence[tuple[GpuCalls, str | None]]) -> str:
    if any(peak_of(device) is None for _, device in found):
        return " The peaks of this device are not known to esprof."
    if not any(calls.events.codes("shapes")[1] for calls, _ in found):
        return " Record shapes (`--shapes`, or `record_shapes=True` of torch.profiler)."
    return " Its operation is none of those whose traffic shapes tell."


_PAGES = (
    Page(
        "ESP704",
        "Devices compute nearly all the time",
        "The devices compute for at least 90 % of the step. No change of input, host or communication can save more than "
        "the rest; kernels have to become faster or fewer.",
        "`share of step` lists the kernels that take most time, summed over streams. `bound by` names what limits each: "
        "arithmetic or memory if it reaches half of the data sheet's peak; its size if it is far from both and takes "
        "less than 10 µs a call; neither; or unknown. Operations and traffic follow from shapes (`--shapes`, or "
        "`record_shapes=True` of torch.profiler); traffic is a lower bound: each input is read and each output written "
        "once. `model flop utilisation` is that of `esprof ops`.",
        "None: the run does not show how fast other kernels would be. ESP701 to ESP703 price some changes.",
        "Fuse kernels that memory bounds, use narrower formats, larger batches, or more devices.",
    ),
)

RULE = Rule(pages=_PAGES, of_case=gpu_bound)
