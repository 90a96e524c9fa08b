"""ESP207: stages of a pipeline that compute longer than the others."""

from collections.abc import Iterator

import numpy as np

from esprof.analyzers.evidence import by_rank
from esprof.analyzers.rule import Case, Cause, Page, Rule
from esprof.core import readable
from esprof.replay.whatif.terms.balance import stage_ns

MIN_TIMES_THE_MEAN_STAGE = 1.1
"""A stage is named when it computes more than this many times as long as the mean stage."""

MIN_SHARE_OF_LONGEST = 0.9
"""Least share of what the longest stage computes, for another to be named beside it."""

_BALANCED = "balance[stages]=fix"


def uneven_stages(case: Case) -> Iterator[Cause]:
    """Some stages compute longer, and the others wait for them."""
    blame = case.pricer.blame
    if not blame.roles.any():
        return
    saving = case.pricer.saving_ns(_BALANCED)
    took = stage_ns(blame.dfg, blame.roles, blame.steps)
    is_long = took > max(MIN_TIMES_THE_MEAN_STAGE * took.mean(), MIN_SHARE_OF_LONGEST * took.max())
    longest = tuple(np.array(blame.dfg.marks.ranks)[is_long[blame.roles]].tolist())
    if not longest or saving is None or not case.worth_naming(saving):
        return
    most = took.max() / took.mean()
    yield Cause(
        id="ESP207",
        title=f"The pipeline's stages are uneven: {readable.ranks(longest)} {readable.verb('compute', longest)} up to "
        f"{most:.1f} times as long as the mean stage",
        ranks=longest,
        scenario=_BALANCED,
        confidence="medium",
        evidence={
            "computing_per_step": by_rank(
                {
                    rank: round(took[role])
                    for rank, role in zip(blame.dfg.marks.ranks, blame.roles.tolist(), strict=True)
                },
                "ns",
            )
        },
        advice="Move layers from the stages that compute longest to the others. If they have no more layers, look for what "
        "makes their devices slower: the two look alike in a trace where no other rank does the work of a stage.",
    )


_PAGES = (
    Page(
        "ESP207",
        "Stages of a pipeline compute unequally long",
        "In a pipeline every micro-batch passes all stages, so that the slowest sets the pace and the others wait for it.",
        "`computing_per_step` is how long a rank of each rank's stage computes in a mean step, by their median.",
        "`balance[stages]=fix`: replay scales the computing of each stage so that all compute as long in a mean step, and "
        "runs the whole job again. A bound: layers cannot be cut.",
        "Share the layers out by what they take, not by their number: the embedding and the last layer with its loss weigh "
        "more than one block. A stage whose device is slower needs fewer.",
    ),
)

RULE = Rule(pages=_PAGES, of_case=uneven_stages)
