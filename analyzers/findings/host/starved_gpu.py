"""ESP401: a CPU that cannot keep its GPU busy."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from esprof.analyzers.evidence import Evidence, by_rank
from esprof.analyzers.findings.host.sync import blocking_sync
from esprof.analyzers.rule import Case, Cause, Page, Rule, explains
from esprof.replay.dfg import Cls, Dfg, LaneKind

MIN_SHARE_IN_TINY_KERNELS = 0.5
"""Least share of kernels shorter than the median launch for which launches are the bottleneck."""

_SCENARIO = "host=2x"


def host_bound(case: Case) -> Iterator[Cause]:
    """GPUs that are idle because their CPU has not launched the next kernel."""
    dfg = case.replayed.built.dfg
    saving = case.pricer.saving_ns(_SCENARIO) if dfg.has_gpu() else None
    if saving is None or not case.is_worth_reporting(saving):
        return
    # ESP405 reports a GPU that idles because the CPU waited for it before.
    specific = [*blocking_sync(case)]
    if any(explains(case, cause, saving) for cause in specific):
        return
    idle = {one.rank: one.host / one.step_us for one in case.breakdown if one.step_us}
    most = max(idle.values(), default=0)
    kernels = _kernels(dfg, case.replayed.steps.steady)
    launches = dfg.of(Cls.LAUNCH) & np.isin(dfg.step, case.replayed.steps.steady)
    rank_steps = len(case.replayed.steps.steady) * len(dfg.marks.ranks)
    yield Cause(
        id="ESP401",
        title=f"The CPU limits the step: a GPU waits for kernel launches for up to {100 * most:.0f} % of it",
        ranks=dfg.marks.ranks,
        scenario=_SCENARIO,
        confidence="medium",
        evidence={
            "host_share": by_rank({rank: round(share, 4) for rank, share in idle.items()}, "share"),
            "launches_per_step_and_rank": Evidence(round(float(launches.sum()) / rank_steps, 1)),
            **kernels.evidence(),
            "priced_as": Evidence("a CPU twice as fast; gaps above 1 ms stay"),
        },
        advice=_advice(kernels, specific),
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


def _advice(kernels: _Kernels, specific: list[Cause]) -> str:
    what = (
        "Most kernels take less time than their launch, so the CPU cannot get ahead of the GPU. Fuse kernels "
        "(torch.compile, foreach or fused optimizers), launch them together (CUDA graphs), or give each more work "
        "(larger batches)"
        if kernels.are_tiny
        else "Launches are not the bottleneck: most kernels take longer than their launch. The CPU is busy between "
        "launches: look for Python code, hooks and logging. torch.compile and CUDA graphs remove that time, too"
    )
    first = f"See {specific[0].id} first: it explains some of this. " if specific else ""
    return f"{first}{what}. The saving assumes a CPU twice as fast."


_PAGES = (
    Page(
        "ESP401",
        "The CPU limits the step",
        "The GPU finishes its work and waits for the CPU to launch more.",
        "`host share` is the share of the step in which the CPU works while its GPU idles. "
        "`kernels shorter than a launch` shows whether launches themselves are the bottleneck: if half of all "
        "kernels or more are that short, no CPU that launches them one by one gets ahead.",
        "`host=2x`: replay makes CPU work, launches and gaps of up to 1 ms twice as fast; longer gaps are sleeps or "
        "I/O. Where ESP405 saves at least half as much, it replaces this finding.",
        "Use torch.compile, CUDA graphs, fused optimizers or larger batches; avoid synchronisation within the step.",
    ),
)

RULE = Rule(pages=_PAGES, of_case=host_bound)
