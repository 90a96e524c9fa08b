"""ESP501: allocator calls that stop the device."""

from collections.abc import Iterator

from esprof.analyzers.evidence import by_rank, by_step
from esprof.analyzers.findings.memory.fragmentation import fragmentation
from esprof.analyzers.rule import Case, Cause, Page, Rule, explains
from esprof.replay.dfg import Cls
from esprof.replay.engine.timeline import replay
from esprof.replay.steps import LeftOutFor
from esprof.replay.whatif.graph import edits

_NONE = "allocator=0"


def allocator(case: Case) -> Iterator[Cause]:
    """Allocator calls in steady steps, and the outlier steps that they make."""
    replayed, dfg = case.replayed, case.replayed.built.dfg
    outliers = [step for step, why in replayed.steps.left_out.items() if why.cause is LeftOutFor.ALLOCATOR]
    saving = case.pricer.saving_ns(_NONE)
    if not outliers and not case.worth_naming(saving):
        return
    # Why the allocator has no block that fits tells more than that it asks; of outliers only this finding tells.
    told = [*fragmentation(case)]
    if not outliers and any(explains(case, cause, saving or 0.0) for cause in told):
        return
    why = f"See {told[0].id}: its memory is fragmented. " if told else ""
    calls = dfg.of(Cls.ALLOCATOR)
    spent = {rank: dfg.dur_ns[calls & (dfg.rank == rank)].sum() for rank in dfg.marks.ranks}
    worst, steps = max(spent.values()), len(dfg.marks.steps)
    several = "an outlier" if len(outliers) == 1 else f"{len(outliers)} outliers"
    # Not a price but evidence: the price is that of a steady step, which an outlier is not.
    mended = dict(zip(dfg.marks.steps, replay(edits.shorten(dfg, calls, 0)).step_ns(), strict=True))
    measured = dict(zip(dfg.marks.steps, replayed.measured_ns, strict=True))
    yield Cause(
        id="ESP501",
        title=f"The memory allocator made {several} of {steps} steps"
        if outliers
        else "The memory allocator stops steps to ask the driver for memory",
        ranks=tuple(rank for rank, total in spent.items() if total >= worst / 2),
        scenario=_NONE,
        confidence="high" if case.is_explained else "medium",
        evidence={
            "allocator_per_step": by_rank({rank: round(total / steps) for rank, total in spent.items()}, "ns"),
            "outliers": by_step({step: int(measured[step]) for step in outliers}, "ns"),
            "outliers_without_allocator": by_step({step: int(mended[step]) for step in outliers}, "ns"),
        },
        advice=f"{why}Lower the memory peak, or set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True; avoid shapes that "
        "change from step to step. The saving is that of a steady step; the outliers stand beside it.",
    )


_PAGES = (
    Page(
        "ESP501",
        "The allocator stops the step",
        "cudaMalloc and cudaFree stop the device. They come when the caching allocator has no block that fits: at the "
        "start, when shapes change, and near the memory limit.",
        "`allocator_per_step` by rank; `outliers` are those that spend more than a quarter of their time so, "
        "with what replay says they would take without.",
        "`allocator=0`: replay drops these calls; the saving is that of a steady step, which the outliers are not.",
        "A lower peak, PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True, shapes that do not change.",
    ),
)

RULE = Rule(pages=_PAGES, of_case=allocator, scenarios=(_NONE,))
