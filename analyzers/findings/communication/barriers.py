"""ESP307: barriers in every step."""

import re
from collections.abc import Iterator

from esprof.analyzers.evidence import Evidence, by_rank
from esprof.analyzers.rule import CERTAIN_SHARE, Case, Cause, Page, Rule
from esprof.analyzers.samples.sampled_lines import seen_calling
from esprof.analyzers.views.collectives import steady_collectives
from esprof.core.text import LONGEST_NAME, printable

MIN_PER_STEP = 2
"""Least number of barriers per step and rank: a job may have one for a save, or at the end of a step."""

_SCENARIO = "barriers=0"
_BARRIER_FRAME = re.compile(r"torch/distributed/distributed_c10d\.py\(\d+\): (monitored_)?barrier(\n|$)")


def barriers(case: Case) -> Iterator[Cause]:
    """Barriers within a step, at which ranks wait for each other although no data is exchanged."""
    sent = steady_collectives(case.replayed)
    chosen = sent.is_kind("barrier")
    count = sent.a_step(chosen)
    if count < MIN_PER_STEP:
        return
    saving = case.pricer.saving_ns(_SCENARIO)
    if saving is None or not case.is_worth_reporting(saving):
        return
    exposed = sent.exposed_ns(chosen)
    lines = [seen for rank in case.ranks if (seen := seen_calling(case.job.samples, rank, _BARRIER_FRAME))]
    line = printable(max(lines, key=lambda seen: seen[1])[0].location.frame, LONGEST_NAME) if lines else None
    yield Cause(
        id="ESP307",
        title=f"{count:.0f} barriers a step make ranks wait for each other"
        + (f", most of them at {line}" if line else ""),
        ranks=case.replayed.built.dfg.marks.ranks,
        scenario=_SCENARIO,
        certain_share=CERTAIN_SHARE * min(1.0, min(exposed.values()) / saving),
        confidence="medium",
        evidence={
            "barriers_per_step_and_rank": Evidence(round(count, 1)),
            "exposed": by_rank({rank: round(ns) for rank, ns in exposed.items()}, "ns"),
            "took_per_barrier": Evidence(round(float(sent.took_ns[chosen].mean())), "ns"),
            **({"source_line": Evidence(line)} if line else {}),
        },
        advice="Remove them: collectives and backward passes order the ranks' work by themselves. A barrier is needed only "
        "where a rank reads what another has written elsewhere, such as a file.",
    )


_PAGES = (
    Page(
        "ESP307",
        "Barriers in every step",
        "At a barrier each rank waits until all others have come, although nothing is exchanged. Several in a step cost the "
        "barrier's own time, and let each of them wait for the slowest rank of that moment.",
        "`exposed` is the time per step in which only barriers run, by rank, without waiting for peers; `took per barrier` "
        "is the time of one after the last rank has come. `source line` is the line of the job that calls them, if samples "
        "show it. Fewer than two barriers a step are not reported.",
        "`barriers=0`: in replay barriers take no time, and nobody waits there for another rank. Half of `exposed` counts "
        "as certain.",
        "Remove barriers, which are often left from the search for an error.",
    ),
)

RULE = Rule(pages=_PAGES, of_case=barriers)
