"""ESP504: activations are computed twice, in the forward pass and again in the backward pass."""

import re
from collections.abc import Iterator

import numpy as np

from esprof.analyzers.evidence import Evidence, by_rank
from esprof.analyzers.rule import CERTAIN_SHARE, Case, Cause, Page, Rule
from esprof.analyzers.samples.sampled_lines import seen_above
from esprof.core import readable
from esprof.core.text import LONGEST_NAME, printable
from esprof.replay.dfg import LaneKind
from esprof.replay.whatif.graph.recomputation import recompute_share

_SCENARIO = "recompute=0"
_CHECKPOINT = re.compile(r"torch/utils/checkpoint\.py\(\d+\): checkpoint")


def recomputation(case: Case) -> Iterator[Cause]:
    """Activation checkpointing that makes steps longer."""
    dfg, steps = case.replayed.built.dfg, case.replayed.steps.steady
    if not case.is_worth_reporting(case.pricer.saving_ns(_SCENARIO)):
        return
    took = recompute_share(case.run, dfg) * dfg.dur_ns / len(steps)
    on_cpu = dfg.on(LaneKind.CPU) & np.isin(dfg.step, steps)
    spent = {rank: float(took[on_cpu & (dfg.rank == rank)].sum()) for rank in dfg.marks.ranks}
    worst = max(spent, key=lambda rank: spent[rank])
    line = seen_above(case.job.samples, worst, _CHECKPOINT)
    where = {} if line is None else {"source_line": Evidence(printable(line, LONGEST_NAME))}
    yield Cause(
        id="ESP504",
        title=f"Activations are computed again for {'up to ' if len(spent) > 1 else ''}{readable.duration(spent[worst])} "
        "of the backward pass" + (f", at {printable(line, LONGEST_NAME)}" if line else ""),
        ranks=tuple(rank for rank, one in spent.items() if one >= spent[worst] / 2),
        scenario=_SCENARIO,
        certain_share=CERTAIN_SHARE,
        confidence="high" if case.is_explained else "medium",
        evidence={"recomputing_per_step": by_rank({rank: round(one) for rank, one in spent.items()}, "ns"), **where},
        advice="Checkpoint fewer layers, those with the most memory for the least computation first, as long as memory "
        "suffices; or keep the results of costly operations (selective checkpointing: `context_fn` of "
        "torch.utils.checkpoint).",
    )


_PAGES = (
    Page(
        "ESP504",
        "Activations are computed twice",
        "Activation checkpointing saves memory: the forward pass keeps the inputs of a layer alone, and the backward pass "
        "computes the rest again. Every layer for which memory would suffice costs a second forward pass.",
        "`recomputing per step` is the time of the CPU threads in forward operations inside the backward pass, by rank. "
        "`source line` is the sampled line of the job that calls `torch.utils.checkpoint`.",
        "`recompute=0`: replay removes these operations and the GPU work that they launch. The memory that this takes is "
        "not known: the saving is an upper bound if only a part of the activations fits.",
        "Checkpoint fewer layers, or keep the results of costly operations.",
    ),
)

RULE = Rule(pages=_PAGES, of_case=recomputation)
