"""ESP208: micro-batches of a pipeline that take different times."""

from collections.abc import Iterator

import numpy as np

from esprof.analyzers.evidence import Evidence
from esprof.analyzers.rule import Case, Cause, Page, Rule
from esprof.analyzers.views.bubble import bubble_evidence
from esprof.core.readable import decimal
from esprof.replay.dfg import Dfg
from esprof.replay.ranks.pipeline import MicroBatchWork, micro_batch_work

MIN_TIMES_THE_MEAN = 1.1
"""Least ratio of the longest micro-batch of a rank's median step to the mean one, as of pipeline stages in ESP207."""

_EVEN = "balance[microbatches]=fix"


def uneven_micro_batches(case: Case) -> Iterator[Cause]:
    """Micro-batches that take longer than others: while a stage computes one, the stages around it wait."""
    pipeline, dfg = case.pipeline, case.replayed.built.dfg
    if pipeline is None or pipeline.micro_batches < 2:
        return
    work = micro_batch_work(dfg, pipeline)
    if not len(work.node) or (longest := _longest(dfg, work, pipeline.micro_batches)) < MIN_TIMES_THE_MEAN:
        return
    if not case.is_worth_reporting(case.pricer.saving_ns(_EVEN)):
        return
    yield Cause(
        id="ESP208",
        title=f"Micro-batches are uneven: the longest of a step takes {decimal(longest)} times as long as the mean, and the "
        "pipeline waits for it",
        ranks=tuple(sorted(rank for chain in pipeline.chains for rank in chain)),
        scenario=_EVEN,
        confidence="medium",
        evidence={
            "longest_over_mean": Evidence(round(longest, 3)),
            **bubble_evidence(pipeline, case.breakdown),
        },
        advice="Give all micro-batches of a step, on all ranks, the same amount of work: pack or sort sequences by length, "
        "and count tokens (with attention, also the squares of lengths) instead of samples.",
    )


def _longest(dfg: Dfg, work: MicroBatchWork, micro_batches: int) -> float:
    """Ratio of the longest micro-batch to the mean one on a rank in a step, the median over ranks and steps."""
    step = dfg.step[work.node].astype(np.int64)
    visit = dfg.rank[work.node] * (int(step.max()) + 1) + step
    found, visit = np.unique(visit, return_inverse=True)
    took = np.bincount(visit * micro_batches + work.number, dfg.dur_ns[work.node], len(found) * micro_batches)
    by_visit = took.reshape(len(found), micro_batches)
    return float(np.median(by_visit.max(axis=1) / np.maximum(by_visit.mean(axis=1), 1)))


_PAGES = (
    Page(
        "ESP208",
        "Uneven micro-batches",
        "In a pipeline every stage waits for the micro-batch that the stage before it computes. If micro-batches take "
        "different times, as with sequences of different lengths, each long one makes all stages wait once more. The sum of "
        "the work of a rank may be the same in every step.",
        "`longest over mean` compares the micro-batches of a rank in a step: by the compute that occurs once, or as many "
        "times, for each of them. Their number follows from the messages between stages. `bubble` is the share of waiting "
        "in waiting and compute, next to the share (p - 1) / (m + p - 1) of p even stages and m even micro-batches.",
        "`balance[microbatches]=fix`: replay gives the same work the mean duration over all micro-batches of a step and all "
        "ranks of a stage. An upper bound: lengths can seldom be evened out perfectly.",
        "Pack or sort sequences by length; count tokens instead of samples.",
    ),
)

RULE = Rule(pages=_PAGES, of_case=uneven_micro_batches)
