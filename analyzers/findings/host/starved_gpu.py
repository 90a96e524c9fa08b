"""ESP401: a CPU that cannot keep its GPU busy."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from esprof.analyzers.evidence import Evidence, by_rank
from esprof.analyzers.rule import Case, Cause, Page, Rule
from esprof.analyzers.views.launching import Launching
from esprof.replay.dfg import Cls, Dfg, LaneKind

MIN_SHARE_IN_TINY_KERNELS = 0.5
"""Least share of kernels shorter than the median launch for which launches are the bottleneck."""

MIN_IDLE_SHARE_LIMITING = 0.2
"""Least share of the step for which a GPU waits for launches at which the CPU is said to limit the step."""

MIN_LAUNCHES_IN_WINDOW = 10
"""Least number of launches, on each rank, of a window without steps: a GPU idles before the first launch in any case."""

_SCENARIO = "host=2x"


def host_bound(case: Case) -> Iterator[Cause]:
    """GPUs that are idle because their CPU has not launched the next kernel."""
    dfg = case.replayed.built.dfg
    saving = case.pricer.saving_ns(_SCENARIO) if dfg.has_gpu() else None
    if saving is None or not case.is_worth_reporting(saving):
        return
    idle = {one.rank: one.host / one.step_us for one in case.breakdown if one.step_us}
    most = max(idle.values(), default=0)
    kernels, optimized = _kernels(dfg, case.replayed.steps.steady), case.launching
    launches = dfg.of(Cls.LAUNCH) & np.isin(dfg.step, case.replayed.steps.steady)
    rank_steps = len(case.replayed.steps.steady) * len(dfg.marks.ranks)
    if case.run.unit == "window" and launches.sum() < MIN_LAUNCHES_IN_WINDOW * rank_steps:
        return
    yield Cause(
        id="ESP401",
        title=_title(most),
        ranks=dfg.marks.ranks,
        scenario=_SCENARIO,
        is_bound=True,
        confidence="medium",
        evidence={
            "host_share": by_rank({rank: round(share, 4) for rank, share in idle.items()}, "share"),
            "launches_per_step_and_rank": Evidence(round(float(launches.sum()) / rank_steps, 1)),
            **kernels.evidence(),
            **optimized.evidence(),
            "priced_as": Evidence("a CPU twice as fast; gaps above 1 ms stay"),
        },
        advice=_advice(kernels, optimized),
    )


@dataclass(frozen=True)
class _Kernels:
    """Median durations of kernels and of launches, ns."""

    median_ns: float
    launch_ns: float
    short: float
    """Share of the kernels that take less than the median launch."""

    @property
    def are_tiny(self) -> bool:
        return self.short >= MIN_SHARE_IN_TINY_KERNELS

    def evidence(self) -> dict[str, Evidence]:
        return {
            "median_kernel": Evidence(round(self.median_ns), "ns"),
            "median_launch": Evidence(round(self.launch_ns), "ns"),
            "kernels_shorter_than_a_launch": Evidence(round(self.short, 3), "share"),
        }


def _kernels(dfg: Dfg, steps: tuple[int, ...]) -> _Kernels:
    steady = np.isin(dfg.step, steps)
    took = dfg.dur_ns[steady & dfg.on(LaneKind.STREAM) & dfg.of(Cls.COMPUTE)]
    launches = dfg.dur_ns[steady & dfg.of(Cls.LAUNCH)]
    launch = float(np.median(launches)) if len(launches) else 0.0
    return (
        _Kernels(float(np.median(took)), launch, float((took < launch).mean())) if len(took) else _Kernels(0, launch, 0)
    )


def _title(idle: float) -> str:
    """`idle` is the largest share of the step for which a GPU waits for launches."""
    if idle >= MIN_IDLE_SHARE_LIMITING:
        return f"The CPU limits the step: a GPU waits for kernel launches for up to {100 * idle:.0f} % of it"
    return f"A GPU waits for kernel launches for up to {100 * idle:.0f} % of the step"


def _advice(kernels: _Kernels, optimized: Launching) -> str:
    what = (
        "Most kernels take less time than their launch, so the CPU cannot get ahead of the GPU. "
        if kernels.are_tiny
        else "Launches are not the bottleneck: most kernels take longer than their launch. The CPU is busy between "
        "launches: look for Python code, hooks and logging. "
    )
    return f"{what}{_remedy(kernels, optimized)} The saving is a bound: it assumes a CPU twice as fast."


def _remedy(kernels: _Kernels, optimized: Launching) -> str:
    """What is left to do: nothing that the job does already."""
    if optimized.is_graphed:
        return (
            f"CUDA graphs launch {100 * optimized.by_graphs:.0f} % of the kernels already. What is left is the CPU's work "
            "between graphs and the kernels outside of them: capture more of the step in fewer graphs, and prepare the "
            "next step's inputs while the GPU works."
        )
    if optimized.is_compiled:
        return (
            f"torch.compile is used already and made {100 * (optimized.fused or 0):.0f} % of the kernels: look for graph "
            "breaks and for what it leaves out (the optimizer), launch its kernels together "
            '(`mode="reduce-overhead"`, which uses CUDA graphs), or give each kernel more work (larger batches).'
        )
    if kernels.are_tiny:
        return (
            "Fuse kernels (torch.compile, foreach or fused optimizers), launch them together (CUDA graphs), or give each "
            "more work (larger batches)."
        )
    return "torch.compile and CUDA graphs remove that time, too."


_PAGES = (
    Page(
        "ESP401",
        "The CPU limits the step",
        "The GPU finishes its work and waits for the CPU to launch more. If it waits for less than a fifth of the step, the "
        "title says only that.",
        "`host share` is the share of the step in which the CPU works while its GPU idles. "
        "`kernels shorter than a launch` shows whether launches themselves are the bottleneck: if half of all "
        "kernels or more are that short, no CPU that launches them one by one gets ahead. `launched by graphs` is the "
        "share of kernels that CUDA graphs launch, and `made by compile` the share that torch.compile made. `graph breaks "
        "per step` counts calls of compiled code from within another (ESP409).",
        "`host=2x`: replay makes CPU work, launches and gaps of up to 1 ms twice as fast; longer gaps are sleeps or "
        "I/O, and first calls of kernels (ESP407) do not recur. What other findings save of it is counted for them.",
        "Use torch.compile, CUDA graphs, fused optimizers or larger batches; avoid synchronisation within the step.",
    ),
)

RULE = Rule(pages=_PAGES, of_case=host_bound)
