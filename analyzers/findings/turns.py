"""ESP205: ranks take turns at having more to do than the others."""

from collections.abc import Iterator

import numpy as np

from esprof import readable
from esprof.analyzers.evidence import by_rank
from esprof.analyzers.findings.stragglers import SCENARIO as MENDED
from esprof.analyzers.rule import Case, Cause, Page, Rule
from esprof.replay.blame import FEW_STEPS
from esprof.replay.dfg import Cls

MOST = 0.5
"""Share of the steps above which some rank must have more to do: fewer are hiccups."""

A_SHARE = 0.25
"""A rank takes turns with another that delays more than this share of the steps that it delays: less is a hiccup."""

_BALANCED = "balance=fix"


def late_by_turns(case: Case) -> Iterator[Cause]:
    """In most steps one rank has more to do, and not always the same. What stragglers cost is priced as theirs."""
    blame = case.pricer.blame
    # In each step that is delayed, the rank that delays it most, if it had clearly more to do. Input is another finding's.
    delayed = np.flatnonzero(blame.late_ns.any(axis=1))
    worst = blame.late_ns[delayed].argmax(axis=1)
    late = blame.has_more(besides=(Cls.DATA,))[delayed, worst]
    turns = np.bincount(worst[late], minlength=len(blame.dfg.marks.ranks))
    if np.count_nonzero(turns > A_SHARE * turns.max(initial=0)) < 2 or late.mean() <= MOST:
        return
    saving = case.pricer.saving_ns(_BALANCED)
    if saving is None or not case.worth_naming(saving - max(0.0, case.pricer.saving_ns(MENDED) or 0.0)):
        return
    latest = {rank: int(count) for rank, count in zip(blame.dfg.marks.ranks, turns, strict=True) if count}
    yield Cause(
        id="ESP205",
        title=f"{readable.ranks(tuple(latest)).capitalize()} are late by turns",
        ranks=tuple(latest),
        scenario=_BALANCED,
        confidence="high" if case.is_explained and len(blame.steps) >= FEW_STEPS else "medium",
        evidence={"latest_in_steps": by_rank(latest)},
        advice="No rank is slow: the work of a step is shared out unevenly, and each step waits for whoever has most. Give "
        "all ranks as much in each step: batches of like length (sort or pack sequences, count tokens and not samples), "
        "experts of like load, logging and checkpoints on all ranks in the same step.",
    )


_PAGES = (
    Page(
        "ESP205",
        "Ranks are late by turns",
        "In most steps one rank has more to do than the others, which wait for it, and it is not always the same one. No "
        "rank is a straggler, yet each step takes as long as its slowest rank.",
        "`latest_in_steps` counts the steps that each rank delayed most, where its work exceeded that of its counterparts "
        "by more than it scatters. At least two ranks must do so, each more than a quarter as often as any other.",
        "`balance=fix`: replay gives all work the mean duration that the same work takes on all ranks in that step, and "
        "runs the whole job again. A bound: work can seldom be shared out so evenly.",
        "Even out what ranks get in a step: sequence lengths, tokens of each expert, data-dependent branches, work that "
        "one rank does for all.",
    ),
)

RULE = Rule(pages=_PAGES, of_case=late_by_turns)
