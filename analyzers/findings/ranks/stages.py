"""ESP207: pipeline stages that compute longer than the others."""

from collections.abc import Iterator

import numpy as np

from esprof.analyzers.evidence import by_rank
from esprof.analyzers.rule import Case, Cause, Page, Rule
from esprof.analyzers.views.bubble import bubble_evidence
from esprof.core import readable
from esprof.replay.whatif.terms.balance import stage_ns

MIN_TIMES_THE_MEAN_STAGE = 1.1
"""Ratio of a stage's compute time to that of the mean stage above which the stage is listed."""

MIN_SHARE_OF_LONGEST = 0.9
"""Share of the longest stage's compute time above which another stage is listed, too."""

_BALANCED = "balance[stages]=fix"


def uneven_stages(case: Case) -> Iterator[Cause]:
    """Pipeline stages that compute longer than the others, which wait for them."""
    blame = case.blame
    if not blame.roles.any():
        return
    saving = case.pricer.saving_ns(_BALANCED)
    took = stage_ns([blame.dfg], blame.roles, blame.steps)
    is_long = took > max(MIN_TIMES_THE_MEAN_STAGE * took.mean(), MIN_SHARE_OF_LONGEST * took.max())
    longest = tuple(np.array(blame.dfg.marks.ranks)[is_long[blame.roles]].tolist())
    if not longest or saving is None or not case.is_worth_reporting(saving):
        return
    most = took.max() / took.mean()
    yield Cause(
        id="ESP207",
        title=f"Pipeline stages are uneven: {readable.ranks(longest)} {readable.verb('compute', longest)} up to "
        f"{most:.1f} times as long as the mean stage",
        ranks=longest,
        scenario=_BALANCED,
        confidence="medium",
        evidence={
            "compute_per_step": by_rank(
                {
                    rank: round(took[role])
                    for rank, role in zip(blame.dfg.marks.ranks, blame.roles.tolist(), strict=True)
                },
                "ns",
            ),
            **bubble_evidence(case.pipeline, case.breakdown),
        },
        advice="Move layers from the stages that compute longest to the others. If those stages have no more layers "
        "than the others, check for slower devices: a trace cannot distinguish the two if only one rank runs each "
        "stage.",
    )


_PAGES = (
    Page(
        "ESP207",
        "Uneven pipeline stages",
        "In a pipeline every micro-batch passes all stages, so the slowest stage limits the throughput and the "
        "others wait for it.",
        "`compute per step` is, for each rank, the median compute time of the ranks of its stage in a mean step. "
        "`bubble` is the share of waiting in waiting and compute, next to the share (p - 1) / (v m + p - 1) of p even "
        "stages, m micro-batches and v chunks a stage, if messages tell them.",
        "`balance[stages]=fix`: replay scales the compute time of each stage to the mean of all stages and replays "
        "the whole job. An upper bound: layers cannot be divided.",
        "Distribute layers by their compute time, not by their number: the embedding and the last layer with its "
        "loss take longer than one block. Give fewer layers to a stage with a slower device.",
    ),
)

RULE = Rule(pages=_PAGES, of_case=uneven_stages)
