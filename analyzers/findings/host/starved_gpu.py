"""ESP401: a host that cannot keep its GPU busy."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from esprof.analyzers.evidence import Evidence, by_rank
from esprof.analyzers.findings.host.sync import blocking_sync
from esprof.analyzers.rule import Case, Cause, Page, Rule, explains
from esprof.replay.dfg import Cls, Dfg, LaneKind

MIN_SHARE_IN_TINY_KERNELS = 0.5
"""Share of kernels shorter than their launch from which on launches themselves are the limit."""

_FASTER = "host=2x"


def host_bound(case: Case) -> Iterator[Cause]:
    """GPUs that are idle because their CPU has not launched the next kernel."""
    dfg = case.replayed.built.dfg
    saving = case.pricer.saving_ns(_FASTER) if dfg.has_gpu() else None
    if saving is None or not case.worth_naming(saving):
        return
    # A GPU that waits for the CPU to come back from waiting for it is told by that rule.
    told = [*blocking_sync(case)]
    if any(explains(case, cause, saving) for cause in told):
        return
    idle = {part.rank: part.host / part.step_us for part in case.parts if part.step_us}
    most = max(idle.values(), default=0)
    kernels = _kernels(dfg, case.replayed.steps.steady)
    launches = dfg.of(Cls.LAUNCH) & np.isin(dfg.step, case.replayed.steps.steady)
    shares = len(case.replayed.steps.steady) * len(dfg.marks.ranks)
    yield Cause(
        id="ESP401",
        title=f"The host limits the step: a GPU has nothing to do for up to {100 * most:.0f} % of it",
        ranks=dfg.marks.ranks,
        scenario=_FASTER,
        confidence="medium",
        evidence={
            "host_share": by_rank({rank: round(share, 4) for rank, share in idle.items()}, "share"),
            "launches_per_step_and_rank": Evidence(round(float(launches.sum()) / shares, 1)),
            **kernels.evidence(),
            "priced_as": Evidence("a CPU twice as fast; gaps above 1 ms stay"),
        },
        advice=_advice(kernels, told),
    )


@dataclass(frozen=True)
class _Kernels:
    """How long the kernels of a job take, ns, against what launching one takes."""

    median_ns: float
    launch_ns: float
    short: float
    """Share of the kernels that take less than their launch."""

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


def _advice(kernels: _Kernels, told: list[Cause]) -> str:
    what = (
        "Most kernels take less than their launch, so that the CPU can never get ahead: fuse them (torch.compile, "
        "foreach or fused optimizers), launch them as one (CUDA graphs), or give each more to do (larger batches)"
        if kernels.are_tiny
        else "The kernels take longer than their launches, so look at what the CPU does between them: Python work, "
        "hooks, logging; torch.compile and CUDA graphs take that away, too"
    )
    first = f"See {told[0].id} first: that is part of it. " if told else ""
    return f"{first}{what}. The saving shown is that of a host twice as fast."


_PAGES = (
    Page(
        "ESP401",
        "The host limits the step",
        "The GPU finishes its work and waits for the CPU to launch more.",
        "`host_share` is the share of the step in which the CPU works and its GPU has nothing to do. "
        "`kernels_shorter_than_a_launch` tells whether launches themselves are the limit: from half of all kernels on, "
        "no CPU that launches them one by one gets ahead.",
        "`host=2x`: replay makes CPU work, launches and gaps of up to 1 ms twice as fast; longer gaps are sleeps or I/O. "
        "Where ESP405 gains half of that or more, it is named instead.",
        "torch.compile, CUDA graphs, fused optimizers, larger batches, no synchronisation within the step.",
    ),
)

RULE = Rule(pages=_PAGES, of_case=host_bound)
