"""ESP408: long runs of kernels that take less time than to launch them; on CPUs, of small operations."""

from collections import Counter
from collections.abc import Iterator

import numpy as np

from esprof.analyzers.evidence import Evidence, by_rank
from esprof.analyzers.findings.host.loops_over_time import MIN_CALLS, loops_over_time
from esprof.analyzers.findings.host.repeated_operations import repeated_operations
from esprof.analyzers.findings.host.small_operations import MIN_SHARE_OF_STEP, small_operations
from esprof.analyzers.ops.gpu_calls import GpuCalls
from esprof.analyzers.ops.nesting import nearest
from esprof.analyzers.rule import Case, Cause, Page, Rule
from esprof.core.types import NS_PER_US
from esprof.replay.building.lookup import position
from esprof.replay.whatif.gradients.backward import AUTOGRAD_NODE
from esprof.replay.whatif.host.operation_loops import MAX_OPERATIONS, MIN_ITERATIONS
from esprof.replay.whatif.host.small_kernels import MIN_LAUNCHES, Storms, storms
from esprof.replay.whatif.terms.small_operations import MAX_OPERATION_NS
from esprof.run.kineto.steps.trace_steps import OPTIMIZER

MAX_PLACES = 3
"""Most places that are listed."""

_SCENARIO = "launches=graph"


def small_kernels(case: Case) -> Iterator[Cause]:
    """Storms of small kernels in steps without CUDA graphs and torch.compile; on CPUs, of small operations."""
    dfg, steps = case.replayed.built.dfg, case.replayed.steps.steady
    if not dfg.has_gpu():
        # One loop is named once, by the rule that knows most of it.
        yield from list(loops_over_time(case)) or list(repeated_operations(case)) or small_operations(case)
        return
    if case.launching.is_graphed or case.launching.is_compiled:
        return
    if not case.is_worth_reporting(case.pricer.saving_ns(_SCENARIO)):
        return
    found = storms(dfg)
    steady = np.isin(dfg.step[found.launch], steps)
    small = steady & found.is_small
    rank_steps = len(steps) * len(dfg.marks.ranks)
    places = _places(case, found, small)
    place = max(places, key=lambda one: places[one], default=None)
    yield Cause(
        id="ESP408",
        title=f"{small.sum() / rank_steps:,.0f} of {steady.sum() / rank_steps:,.0f} kernels a step take less time than "
        "their launch" + (f", {places[place] / rank_steps:,.0f} of them in {place}" if place else ""),
        ranks=tuple(rank for rank in dfg.marks.ranks if (dfg.rank[found.launch[small]] == rank).any()),
        scenario=_SCENARIO,
        is_bound=True,
        confidence="medium",
        evidence={
            "small_kernels_by_place": Evidence(
                {one: round(n / rank_steps, 1) for one, n in places.most_common(MAX_PLACES)}, None, "cause"
            ),
            "median_small_kernel": Evidence(round(float(np.median(found.kernel_ns[small]))), "ns"),
            "median_time_to_launch_one": Evidence(round(float(np.median(found.host_ns[small]))), "ns"),
            "launching_per_step": _per_step(case, found, small, found.host_ns),
            "gpu_time_of_small_kernels": _per_step(case, found, small, found.kernel_ns),
        },
        advice=_advice(place),
    )


def _per_step(case: Case, found: Storms, chosen: np.ndarray, took_ns: np.ndarray) -> Evidence:
    """Sum over the `chosen` launches of each rank in a mean step."""
    dfg, steps = case.replayed.built.dfg, len(case.replayed.steps.steady)
    rank = dfg.rank[found.launch[chosen]]
    return by_rank({one: round(float(took_ns[chosen][rank == one].sum()) / steps) for one in dfg.marks.ranks}, "ns")


def _places(case: Case, found: Storms, chosen: np.ndarray) -> Counter[str]:
    """Number of the `chosen` launches in each place, over all steady-state steps and ranks."""
    dfg, places = case.replayed.built.dfg, Counter[str]()
    for rank, calls in case.gpu_calls.items():
        mine = found.kernel[chosen & (dfg.rank[found.launch] == rank)]
        at = position(calls.work.row, dfg.event[mine].astype(np.int64))
        of_call = Counter(calls.work.by[at[at >= 0]].tolist())
        names = _place_of_calls(calls, list(of_call))
        for call, name in names.items():
            places[name] += of_call[call]
    return places


def _place_of_calls(calls: GpuCalls, of: list[int]) -> dict[int, str]:
    """The innermost range that the job or torch marked around each call, else the backward pass or the outermost
    operation."""
    enclosing = calls.calls.enclosing
    is_range = calls.calls.of(lambda key: key.kind == "annotation")
    marked, top = nearest(enclosing, is_range), nearest(enclosing, enclosing < 0)
    found = {}
    for call in of:
        if call >= 0:
            name = calls.name[marked[call] if marked[call] >= 0 else top[call]]
            found[call] = "the backward pass" if name.startswith(AUTOGRAD_NODE) else name
    return found


def _advice(place: str | None) -> str:
    how = (
        "`fused=True` (or `foreach=True`) makes an optimizer update all parameters in a few kernels. For the rest, launch"
        if place is not None and place.startswith(OPTIMIZER)
        else "Launch"
    )
    return (
        f"The CPU cannot get ahead of the GPU here, however fast it is. {how} kernels together (CUDA graphs: "
        '`torch.cuda.graph`, `torch.compile(mode="reduce-overhead")`), fuse them (torch.compile), or give each more work '
        "(larger batches). The saving is that of CUDA graphs at best; fused kernels also save some of the GPU's time."
    )


_PAGES = (
    Page(
        "ESP408",
        "Storms of small kernels or operations",
        "In long runs of launches most kernels take less time than the CPU needs to launch them one by one. The GPU is done "
        "with each before the next arrives. On CPUs, calling an operation takes longer than its arithmetic.",
        f"A run has at least {MIN_LAUNCHES} launches, and at least half of its kernels take less time than the CPU's "
        "operations from one launch to the next. Waits for the device, input data, allocations, collectives and gaps of "
        "more than 1 ms end it. `small kernels by place` counts them by the range around them (`record_function`, "
        "optimizer), else by the backward pass or the outermost operation. `launching per step` is the CPU's time for "
        "them, `gpu time of small kernels` the GPU's. Not reported for steps with CUDA graphs or torch.compile (ESP401). "
        f"On CPUs an operation is small if it takes at most {MAX_OPERATION_NS // NS_PER_US} µs. They are reported if a step "
        f"without them, and without gaps as short, is at least {100 * MIN_SHARE_OF_STEP:.0f} % shorter; in a pipeline also "
        "if half as many micro-batches, with half as many calls, would save more than the longer bubble costs. `in small "
        "operations per step` is their time with these gaps, and `source line` the line of the job that most samples in "
        f"them show. A recurrent layer that is called at least {MIN_CALLS} times in a row is reported before them: `in "
        "loops per step` lies between its first and last call in the forward pass. So are loops of Python: at least "
        f"{MIN_ITERATIONS} times in a row the same operations, at most {MAX_OPERATIONS} in each iteration, outside of "
        "optimizers. Loops over the layers of a model are known by the modules that they call.",
        "`launches=graph`: an upper bound. Between the first and the last launch of a run the CPU takes no time. Kernels "
        "keep theirs, but follow each other without pauses. On CPUs `loops=0`: replay removes the small operations of loops "
        "of Python with their backward passes. Otherwise `small_operations=0`: all small operations take no time, which is "
        "an upper bound. If there are too many micro-batches, half of that counts, less what the bubble grows by. Half of "
        "the saving counts as certain. What recurrent layers in loops would save is unknown.",
        "Use CUDA graphs, torch.compile, fused optimizers, larger batches, or fewer micro-batches.",
    ),
)

RULE = Rule(pages=_PAGES, of_case=small_kernels)
