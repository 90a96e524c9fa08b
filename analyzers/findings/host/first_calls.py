"""ESP407: first calls of kernels in the recorded steps."""

from collections.abc import Iterator

import numpy as np

from esprof.analyzers.evidence import Evidence, by_rank
from esprof.analyzers.rule import Case, Cause, Page, Rule
from esprof.core import readable
from esprof.core.text import LONGEST_NAME, printable
from esprof.replay.whatif.host.first_calls import MIN_FIRST_CALL_RATIO, first_calls

MIN_SHARE_OF_STEP = 0.05
"""Least share of a step: about the error of any what-if on steps that contain such calls."""


def first_calls_of_kernels(case: Case) -> Iterator[Cause]:
    """Launches that load CUDA, a library or a kernel, in steps that count as steady."""
    dfg, steps = case.replayed.built.dfg, case.replayed.steps.steady
    calls = np.flatnonzero(first_calls(dfg) & np.isin(dfg.step, steps))
    took = {rank: int(dfg.dur_ns[calls[dfg.rank[calls] == rank]].sum()) for rank in dfg.marks.ranks}
    most = max(took.values(), default=0)
    if most < MIN_SHARE_OF_STEP * case.pricer.step_ns * len(steps):
        return
    longest = int(calls[dfg.dur_ns[calls].argmax()])
    ranks = tuple(rank for rank, ns in took.items() if ns)
    yield Cause(
        id="ESP407",
        title=f"First calls of kernels take {readable.duration(most)} in step {int(dfg.step[longest])}; later steps do "
        "not have this time",
        ranks=ranks,
        confidence="medium",
        evidence={
            "first_calls": Evidence(len(calls)),
            "in_the_step": by_rank({rank: took[rank] for rank in ranks}, "ns"),
            "longest": Evidence(printable(dfg.label(longest), LONGEST_NAME)),
        },
        advice="CUDA, libraries and kernels are loaded when they are first called. Record later steps (`--skip`, or `wait` "
        "and `warmup` of torch.profiler's schedule), so that figures are those of a usual step.",
    )


_PAGES = (
    Page(
        "ESP407",
        "The recorded steps contain first calls of kernels",
        "The first call of a kernel loads it, and the first call of all starts CUDA and its libraries. That takes up to "
        "seconds, once. Steps with such calls are not usual ones.",
        f"`in the step` is the duration of launches, in the first recorded step, that take at least {MIN_FIRST_CALL_RATIO} "
        "times as long as the same kernel's other launches, or as all launches if it has no other, and at least 1 ms; "
        "`longest` is the longest of them. Reported from 5 % of a step on.",
        "No saving: later steps do not have this time. `host=` leaves these launches as they are.",
        "Record later steps.",
    ),
)

RULE = Rule(pages=_PAGES, of_case=first_calls_of_kernels)
