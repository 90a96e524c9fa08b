"""ESP205: ranks take turns at having more to do than the others."""

from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from esprof.analyzers.evidence import Evidence, Value, by_rank
from esprof.analyzers.finding import Confidence
from esprof.analyzers.findings.data.input_data import READY
from esprof.analyzers.findings.ranks.lateness import SlowPlace, place_of_loss
from esprof.analyzers.findings.ranks.stragglers import SCENARIO as MENDED
from esprof.analyzers.rule import Case, Cause, Page, Rule
from esprof.core import readable
from esprof.core.types import Rank
from esprof.replay.dfg import Cls
from esprof.replay.ranks.blame import MIN_STEPS_FOR_TEST

MIN_SHARE_OF_STEPS = 0.5
"""Share of the steps above which some rank must have more to do: fewer are hiccups."""

MIN_SHARE_OF_TURNS = 0.25
"""A rank takes turns with another that delays more than this share of the steps that it delays: less is a hiccup."""

MIN_WAIT_SHARE_OF_STEP = 0.05
"""Share of a step by which the others must wait in the median step, and that evening out must gain, for ranks to be named
though their work does not exceed that of the others by more than it scatters."""

_BALANCED = "balance=fix"


def load_imbalance(case: Case) -> Iterator[Cause]:
    """In most steps one rank has more to do, and not always the same. What stragglers cost is priced as theirs."""
    blame = case.pricer.blame
    # In each step that is delayed, the rank that delays it most, if it had clearly more to do. Input is another finding's.
    delayed = np.flatnonzero(blame.late_ns.any(axis=1))
    worst = blame.late_ns[delayed].argmax(axis=1)
    has_more = blame.has_more(besides=(Cls.DATA,))[delayed, worst]
    longest = blame.late_ns.max(axis=1)
    typical = float(np.median(longest))
    is_sure = has_more.sum() > MIN_SHARE_OF_STEPS * len(blame.steps)
    late = has_more if is_sure else longest[delayed] >= typical / 2
    turns = np.bincount(worst[late], minlength=len(blame.dfg.marks.ranks))
    if np.count_nonzero(turns > MIN_SHARE_OF_TURNS * turns.max(initial=0)) < 2:
        return
    saving = case.pricer.saving_ns(_BALANCED)
    beyond = None if saving is None else saving - max(0.0, case.pricer.saving_ns(MENDED) or 0.0)
    if beyond is None or not case.worth_naming(beyond):
        return
    if not is_sure and (
        min(typical, beyond) < MIN_WAIT_SHARE_OF_STEP * case.pricer.step_ns or _by_input(case) > beyond / 2
    ):
        return
    latest = {rank: int(count) for rank, count in zip(blame.dfg.marks.ranks, turns, strict=True) if count}
    places = _places(case, latest, delayed[late], worst[late])
    yield Cause(
        id="ESP205",
        title=f"{readable.ranks(tuple(latest)).capitalize()} are late by turns",
        ranks=tuple(latest),
        scenario=_BALANCED,
        confidence=_confidence(case) if is_sure else "low",
        evidence={"latest_in_steps": by_rank(latest), "late_in_the_median_step": Evidence(round(typical), "ns")}
        | ({"lost_in": by_rank({rank: place.where for rank, place in places.items()})} if places else {})
        | ({"python_line": by_rank(lines)} if (lines := _lines(places)) else {}),
        advice="No rank is slow: the work of a step is shared out unevenly, and each step waits for whoever has most. Give "
        "all ranks as much in each step: batches of like length (sort or pack sequences, count tokens and not samples), "
        "experts of like load, logging and checkpoints on all ranks in the same step.",
    )


def _confidence(case: Case) -> Confidence:
    return "high" if case.is_explained and len(case.replayed.steps.steady) >= MIN_STEPS_FOR_TEST else "medium"


def _by_input(case: Case) -> float:
    """What a step would gain if nobody waited for input data, ns: that is another finding's."""
    return case.pricer.saving_ns(READY) or 0.0


def _places(case: Case, ranks: Iterable[Rank], steps: np.ndarray, worst: np.ndarray) -> dict[Rank, SlowPlace]:
    """Where each of `ranks` loses most in those of `steps` that it delays most: `worst` is the column of that rank."""
    blame = case.pricer.blame
    found = {}
    for rank in ranks:
        column = blame.dfg.marks.ranks.index(rank)
        its = np.array(blame.steps)[steps[worst == column]]
        lost = np.where(np.isin(blame.dfg.step, its), np.maximum(blame.excess_ns, 0), 0)
        if (place := place_of_loss(case, rank, lost)) is not None:
            found[rank] = place
    return found


def _lines(places: Mapping[Rank, SlowPlace]) -> dict[Rank, Value]:
    return {rank: place.python for rank, place in places.items() if place.python}


_PAGES = (
    Page(
        "ESP205",
        "Ranks are late by turns",
        "In most steps one rank has more to do than the others, which wait for it, and it is not always the same one. No "
        "rank is a straggler, yet each step takes as long as its slowest rank.",
        "`latest_in_steps` counts the steps that each rank delayed most, where its work exceeded that of its counterparts "
        "by more than it scatters. At least two ranks must do so, each more than a quarter as often as any other. Where it "
        "does not exceed it by so much, but the others wait for a twentieth of the median step or more "
        "(`late_in_the_median_step`) and evening out gains as much, that is said with low confidence. `lost_in` and "
        "`python_line` tell where each rank loses most in the steps that it delays.",
        "`balance=fix`: replay gives all work the mean duration that the same work takes on all ranks in that step, and "
        "runs the whole job again. A bound: work can seldom be shared out so evenly.",
        "Even out what ranks get in a step: sequence lengths, tokens of each expert, data-dependent branches, work that "
        "one rank does for all.",
    ),
)

RULE = Rule(pages=_PAGES, of_case=load_imbalance)
