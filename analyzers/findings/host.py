"""ESP401: a host that cannot keep its GPU busy."""

from collections.abc import Iterator

import numpy as np

from esprof.analyzers.evidence import Evidence, by_rank
from esprof.analyzers.rule import Case, Cause, Page, Rule
from esprof.replay.dfg import Cls

_FASTER = "host=2x"


def host_bound(case: Case) -> Iterator[Cause]:
    """GPUs that are idle because their CPU has not launched the next kernel."""
    dfg = case.replayed.built.dfg
    if not dfg.has_gpu() or not case.worth_naming(case.pricer.saving_ns(_FASTER)):
        return
    idle = {part.rank: part.host / part.step_us for part in case.parts if part.step_us}
    most = max(idle.values(), default=0)
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
            "priced_as": Evidence("a host twice as fast, gaps above 1 ms apart"),
        },
        advice="Launch less: torch.compile, CUDA graphs, fused optimizers, larger batches; take Python work and "
        "synchronisation (.item(), .cpu()) out of the step. The saving shown is that of a host twice as fast.",
    )


_PAGES = (
    Page(
        "ESP401",
        "The host limits the step",
        "The GPU finishes its work and waits for the CPU to launch more.",
        "`host_share` is the share of the step in which the CPU works and its GPU has nothing to do.",
        "`host=2x`: replay makes CPU work, launches and gaps of up to 1 ms twice as fast; longer gaps are sleeps or I/O.",
        "torch.compile, CUDA graphs, fused optimizers, larger batches, no synchronisation within the step.",
    ),
)

RULE = Rule(pages=_PAGES, of_case=host_bound)
