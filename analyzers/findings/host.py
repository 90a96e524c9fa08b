"""ESP4xx and ESP5xx: a host that cannot keep its GPU busy, and allocator calls that stop it."""

import numpy as np

from esprof.analyzers.finding import Finding, RankBreakdown
from esprof.analyzers.findings.quality import ENOUGH_EXPLAINED
from esprof.analyzers.pricing import finding, ms, worth_naming
from esprof.replay.answering import Replayed
from esprof.replay.dfg import Cls
from esprof.replay.engine.timeline import replay
from esprof.replay.whatif import edits
from esprof.types import NS_PER_MS

LONG_GAP = NS_PER_MS
"""A gap without any recorded operation that is longer is not the host's speed."""


def host_bound(replayed: Replayed, parts: tuple[RankBreakdown, ...]) -> list[Finding]:
    """ESP401: GPUs that are idle because their CPU has not launched the next kernel."""
    dfg, oracle = replayed.built.dfg, replayed.oracle
    if not dfg.has_gpu():
        return []
    # A long gap is a sleep or I/O, which no faster host shortens.
    work = dfg.on("cpu") & dfg.of(Cls.CPU, Cls.LAUNCH, Cls.HOST_GAP) & ~(dfg.of(Cls.HOST_GAP) & (dfg.dur_ns > LONG_GAP))
    saving = oracle.saving_ns(edits.scale(dfg, work, 2.0))
    if not worth_naming(replayed, saving):
        return []
    idle = {part.rank: part.host / part.step_us for part in parts if part.step_us}
    launches = dfg.of(Cls.LAUNCH) & np.isin(dfg.step, replayed.steady.kept)
    return [
        finding(
            replayed,
            "ESP401",
            f"The host limits the step: a GPU has nothing to do for up to {100 * max(idle.values(), default=0):.0f} % of it",
            ranks=dfg.marks.ranks,
            saving_ns=saving,
            confidence="medium",
            evidence={
                "host_share": {str(rank): round(share, 4) for rank, share in idle.items()},
                "launches_per_step_and_rank": round(
                    float(launches.sum()) / len(replayed.steady.kept) / len(dfg.marks.ranks), 1
                ),
                "priced_as": "a host twice as fast, gaps above 1 ms apart",
            },
            advice="Launch less: torch.compile, CUDA graphs, fused optimizers, larger batches; take Python work and "
            "synchronisation (.item(), .cpu()) out of the step. The saving shown is that of a host twice as fast.",
            command="esprof replay RUN --what-if cpu=2x",
        )
    ]


def allocator(replayed: Replayed) -> list[Finding]:
    """ESP501: allocator calls in steady steps, and the outlier steps that they make."""
    dfg, oracle = replayed.built.dfg, replayed.oracle
    calls = dfg.of(Cls.ALLOCATOR)
    without = edits.shorten(dfg, calls, 0)
    saving = oracle.saving_ns(without)
    outliers = [step for step, reason in replayed.steady.left_out.items() if "allocator" in reason]
    if not outliers and not worth_naming(replayed, saving):
        return []
    spent = {rank: dfg.dur_ns[calls & (dfg.rank == rank)].sum() for rank in dfg.marks.ranks}
    worst, steps = max(spent.values()), len(dfg.marks.steps)
    several = "an outlier" if len(outliers) == 1 else f"{len(outliers)} outliers"
    mended = dict(zip(dfg.marks.steps, replay(without).step_ns(), strict=True))
    measured = dict(zip(dfg.marks.steps, replayed.measured_ns, strict=True))
    return [
        finding(
            replayed,
            "ESP501",
            f"The memory allocator made {several} of {steps} steps"
            if outliers
            else "The memory allocator stops steps to ask the driver for memory",
            ranks=tuple(rank for rank, total in spent.items() if total >= worst / 2),
            saving_ns=saving,
            confidence="high" if replayed.explained_pct >= ENOUGH_EXPLAINED else "medium",
            evidence={
                "allocator_ms_per_step": {str(rank): ms(total / steps) for rank, total in spent.items()},
                "outlier_steps": {
                    str(step): {"ms": ms(measured[step]), "ms_without_allocator": ms(mended[step])} for step in outliers
                },
            },
            advice="Lower the memory peak, or set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True; avoid shapes that "
            "change from step to step. The saving is that of a steady step; the outliers stand beside it.",
        )
    ]
