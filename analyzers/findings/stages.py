"""ESP207: stages of a pipeline that compute longer than the others."""

from collections.abc import Iterator

import numpy as np

from esprof import readable
from esprof.analyzers.evidence import by_rank
from esprof.analyzers.rule import Case, Cause, Page, Rule
from esprof.replay.whatif.terms.balance import computed_ns

CLEARLY = 1.1
"""A stage is named when it computes more than this many times as long as the mean stage."""

AS_LONG = 0.9
"""Least share of what the longest stage computes, for another to be named beside it."""

_BALANCED = "balance[stages]=fix"


def uneven_stages(case: Case) -> Iterator[Cause]:
    """Some stages compute longer, and the others wait for them."""
    blame = case.pricer.blame
    if not blame.roles.any():
        return
    saving = case.pricer.saving_ns(_BALANCED)
    took = computed_ns(blame.dfg)[:, np.array(blame.steps) + 1].mean(axis=1)
    is_long = took > max(CLEARLY * took.mean(), AS_LONG * took.max())
    longest = tuple(np.array(blame.dfg.marks.ranks)[is_long].tolist())
    if not longest or saving is None or not case.worth_naming(saving):
        return
    of_all = dict(zip(blame.dfg.marks.ranks, np.rint(took).astype(int).tolist(), strict=True))
    most = took.max() / took.mean()
    yield Cause(
        id="ESP207",
        title=f"The pipeline's stages are uneven: {readable.ranks(longest)} {readable.verb('compute', longest)} up to "
        f"{most:.1f} times as long as the mean stage",
        ranks=longest,
        scenario=_BALANCED,
        confidence="medium",
        evidence={"computing_per_step": by_rank(of_all, "ns")},
        advice="Move layers from the stages that compute longest to the others, or, if they have no more layers, look for "
        "what makes their devices slower: the two look alike in a trace, since no other rank does the same work.",
    )


_PAGES = (
    Page(
        "ESP207",
        "Stages of a pipeline compute unequally long",
        "In a pipeline every micro-batch passes all stages, so that the slowest sets the pace and the others wait for it.",
        "`computing_per_step` is how long the device of each rank computes in a mean step.",
        "`balance[stages]=fix`: replay scales the computing of each rank so that all compute as long in each step, and runs "
        "the whole job again. A bound: layers cannot be cut.",
        "Share the layers out by what they take, not by their number: the embedding and the last layer with its loss weigh "
        "more than one block. A stage whose device is slower needs fewer.",
    ),
)

RULE = Rule(pages=_PAGES, of_case=uneven_stages)
