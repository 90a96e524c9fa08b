"""ESP306: compute kernels that take longer during communication."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from esprof.analyzers.evidence import Evidence, by_rank
from esprof.analyzers.ops.calls import known
from esprof.analyzers.ops.gpu_calls import GpuCalls
from esprof.analyzers.price import MIN_PCT_OF_STEP
from esprof.analyzers.rule import Case, Cause, Page, Rule
from esprof.analyzers.views.kernel_names import faster, kernel_label
from esprof.core import readable
from esprof.replay.building.lookup import numbered, pairs
from esprof.replay.engine.timeline import covered_ns

MIN_COVERED_SHARE = 0.9
"""Share of a kernel's time that communication covers for it to count as concurrent; alone are those without any."""

MIN_CALLS = 5
"""Least calls on each side of a comparison."""

MAX_P_VALUE = 0.001
"""Most probability of the difference by chance. Some hundred kernels are compared, so few runs show one by chance."""

MAX_KERNELS_NAMED = 5


@dataclass
class _Slowed:
    """Calls of one kernel with one set of shapes on one rank that are slower during communication."""

    label: str
    kernel: str
    ratio: float
    """Mean during communication over the mean alone."""
    excess_ns: float
    """Time of the calls during communication above the mean alone."""


def slowed_compute(case: Case) -> Iterator[Cause]:
    """Kernels that take longer during collectives than alone, with the same name, operation and shapes."""
    if not case.replayed.built.dfg.has_gpu():
        return
    calls = case.gpu_calls
    slowed = {rank: list(slowed_kernels(of_rank)) for rank, of_rank in calls.items()}
    excess = {rank: sum(one.excess_ns for one in found) for rank, found in slowed.items()}
    every = [one for found in slowed.values() for one in found]
    span = sum(of_rank.span_ns for of_rank in calls.values())
    if 100 * sum(excess.values()) < MIN_PCT_OF_STEP * span:
        return
    scenario = _scenario([*calls.values()], every)
    if not case.is_worth_reporting(case.pricer.saving_ns(scenario)):
        return
    steps = sum(of_rank.steps for of_rank in calls.values())
    worst = sorted(every, key=lambda one: -one.excess_ns)
    yield Cause(
        id="ESP306",
        title=f"Communication slows concurrent kernels by {readable.duration(sum(excess.values()) / steps)} a step; "
        f"{worst[0].label} takes {worst[0].ratio:.2f} times as long",
        ranks=tuple(rank for rank, ns in excess.items() if ns),
        scenario=scenario,
        is_bound=True,
        confidence="low",
        evidence={
            "longer_per_step": by_rank({rank: round(ns / calls[rank].steps) for rank, ns in excess.items()}, "ns"),
            "times_as_long": Evidence(
                {one.label: round(one.ratio, 3) for one in reversed(worst[:MAX_KERNELS_NAMED])}, None, "cause"
            ),
        },
        advice="Kernels of NCCL take multiprocessors and memory bandwidth from compute. Give them fewer (NCCL_MAX_CTAS or "
        "NCCL_MAX_NCHANNELS; copy engines or symmetric memory where available), and check that communication does not "
        "become longer than the compute that hides it. The saving is a bound: overlap always costs something.",
    )


def slowed_kernels(calls: GpuCalls) -> Iterator[_Slowed]:
    """The kernels of a rank that are slower during communication."""
    from scipy.stats import mannwhitneyu  # Few runs come here, and importing it takes as long as a diagnosis.

    took = calls.work.dur_ns
    covered_share = during_communication(calls) / np.maximum(took, 1)
    codes, texts = calls.kernel
    by = calls.work.by
    shape, of_shape = calls.events.codes("shapes")
    shapes = np.append(shape[calls.calls.row], -1)[by]
    is_known = np.array([known(text) is not None for text in of_shape] + [False])[shapes]
    key = np.append(calls.calls.key, -1)[by]
    group, _ = numbered(pairs(codes, numbered(pairs(key + 1, shapes + 1))[0]))
    # Without shapes, layers of different sizes would be compared.
    compute = np.flatnonzero(calls.is_kernel & is_known)
    order = compute[np.argsort(group[compute], kind="stable")]
    for work in np.split(order, np.flatnonzero(np.diff(group[order])) + 1):
        with_it, alone = took[work[covered_share[work] >= MIN_COVERED_SHARE]], took[work[covered_share[work] == 0]]
        if min(len(with_it), len(alone)) < MIN_CALLS:
            continue
        usual = float(alone.mean())
        if mannwhitneyu(with_it, alone, alternative="greater").pvalue > MAX_P_VALUE or usual <= 0:
            continue
        name = texts[codes[work[0]]]
        yield _Slowed(
            label=kernel_label(name, calls.name[by[work[0]]]),
            kernel=name,
            ratio=float(with_it.mean()) / usual,
            excess_ns=float(with_it.sum() - usual * len(with_it)),
        )


def during_communication(calls: GpuCalls) -> np.ndarray:
    """Time of each piece of work of a rank in which collectives run on the device, ns, int64[work]."""
    starts, ends = calls.events.ints("start_ns"), calls.events.ints("start_ns") + calls.events.ints("dur_ns")
    rows = np.flatnonzero(calls.events.is_kind("collective") & (calls.events.ints("stream") >= 0))
    until = (covered_ns(starts[rows], ends[rows], moment[calls.work.row]) for moment in (ends, starts))
    time: np.ndarray = np.subtract(*until)
    return time


def _scenario(calls: list[GpuCalls], slowed: list[_Slowed]) -> str:
    """The what-if in which these kernels, wherever they run, take together what they would take alone."""
    names = sorted({one.kernel for one in slowed})
    total = 0.0
    for of_rank in calls:
        is_chosen = of_rank.events.matches("name", names.__contains__)[of_rank.work.row]
        total += float(of_rank.work.dur_ns[is_chosen].sum())
    factor = total / max(total - sum(one.excess_ns for one in slowed), 1.0)
    return faster(names, factor)


_PAGES = (
    Page(
        "ESP306",
        "Communication slows concurrent compute",
        "Kernels take longer while a collective runs on the same device than alone: both share multiprocessors, caches and "
        "memory bandwidth. Overlapped communication is not free.",
        "Calls of one kernel, launched by one operation with the same shapes, are compared on each rank: those that "
        "collectives cover for at least 90 % of their time with those that none touches, at least 5 of each, by a rank "
        "test at p ≤ 0.001. `longer per step` is the time above the mean alone. This needs shapes.",
        "`kernel[…]=`: a bound. These kernels take together what they would take without concurrent communication.",
        "Give NCCL fewer multiprocessors (NCCL_MAX_CTAS), use copy engines or symmetric memory, or communicate less.",
    ),
)

RULE = Rule(pages=_PAGES, of_case=slowed_compute)
