"""ESP205: different ranks have more work than the others in different steps."""

from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from esprof.analyzers.evidence import Evidence, Value, by_rank
from esprof.analyzers.finding import Confidence
from esprof.analyzers.findings.data.input_data import READY
from esprof.analyzers.findings.ranks.lateness import SlowLocation, location_of_loss
from esprof.analyzers.findings.ranks.stragglers import SCENARIO as STRAGGLERS_FIXED
from esprof.analyzers.rule import CERTAIN_SHARE, Case, Cause, Page, Rule
from esprof.analyzers.views.amounts import amounts
from esprof.core import readable
from esprof.core.types import Rank
from esprof.replay.dfg import Cls
from esprof.replay.ranks.blame import MIN_STEPS_FOR_TEST

MIN_SHARE_OF_STEPS = 0.5
"""Share of the steps above which some rank must have significantly more work: fewer are noise."""

MIN_SHARE_OF_DELAYS = 0.25
"""A second rank must delay more than this share of the steps that the most frequent one delays: fewer are noise."""

MIN_WAIT_SHARE_OF_STEP = 0.05
"""If the extra work of ranks is not statistically significant, the others must wait for this share of the median step, and
balancing must save as much."""

MIN_TIMES_THE_MEAN = 1.1
"""Least ratio of the late ranks' amount of work to that of the mean rank for the title to name it."""

_BALANCED = "balance=fix"


def load_imbalance(case: Case) -> Iterator[Cause]:
    """Ranks that have more work than the others in different steps. The cost of stragglers is not included."""
    blame = case.blame
    # The rank that delays each delayed step most, if it had significantly more work. ESP101 to ESP110 cover input data.
    delayed = np.flatnonzero(blame.late_ns.any(axis=1))
    worst = blame.late_ns[delayed].argmax(axis=1)
    has_more = blame.has_more(besides=(Cls.DATA,))[delayed, worst]
    longest = blame.late_ns.max(axis=1)
    median_ns = float(np.median(longest))
    is_significant = has_more.sum() > MIN_SHARE_OF_STEPS * len(blame.steps)
    late = has_more if is_significant else longest[delayed] >= median_ns / 2
    delays = np.bincount(worst[late], minlength=len(blame.dfg.marks.ranks))
    if np.count_nonzero(delays > MIN_SHARE_OF_DELAYS * delays.max(initial=0)) < 2:
        return
    saving = case.pricer.saving_ns(_BALANCED)
    if saving is None:
        return
    additional = saving - max(0.0, case.pricer.saving_ns(STRAGGLERS_FIXED) or 0.0)
    if not case.is_worth_reporting(additional):
        return
    if not is_significant and (
        min(median_ns, additional) < MIN_WAIT_SHARE_OF_STEP * case.pricer.step_ns
        or _input_saving_ns(case) > additional / 2
    ):
        return
    latest = {rank: int(count) for rank, count in zip(blame.dfg.marks.ranks, delays, strict=True) if count}
    locations = _locations(case, latest, delayed[late], worst[late])
    more = _amount_of_latest(case, delayed[late], worst[late])
    which_has_more = _with_more(more)
    yield Cause(
        id="ESP205",
        title=f"{readable.ranks(tuple(latest)).capitalize()} are late in different steps, and each step waits for "
        f"one of them{which_has_more}",
        ranks=tuple(latest),
        scenario=_BALANCED,
        certain_share=CERTAIN_SHARE * additional / saving if is_significant and which_has_more else 0.0,
        confidence=_confidence(case) if is_significant else "low",
        evidence={"latest_in_steps": by_rank(latest), "lateness_in_median_step": Evidence(round(median_ns), "ns")}
        | ({"latest_over_mean_rank": Evidence(dict(more), None, "cause")} if more else {})
        | ({"lost_in": by_rank({rank: one.where for rank, one in locations.items()})} if locations else {})
        | ({"python_line": by_rank(lines)} if (lines := _lines(locations)) else {}),
        advice="No single rank is slow; the work of each step is distributed unevenly. Give all ranks the same "
        "amount of work in each step: batches of similar length (sort or pack sequences, count tokens instead of "
        "samples), balanced experts, logging and checkpoints on all ranks in the same step.",
    )


def _amount_of_latest(case: Case, steps: np.ndarray, worst: np.ndarray) -> dict[str, Value]:
    """Unit -> mean ratio of the amount of work of the rank that delays a step to that of the mean rank.

    `steps` are indices of steps, `worst` the index of the rank that delays each of them.
    """
    blame = case.blame
    found = amounts(case.job, blame.dfg.marks.ranks, np.array(blame.steps)[steps].tolist())
    rows = np.arange(len(worst))
    return {unit: round(float((amount[rows, worst] / amount.mean(axis=1)).mean()), 3) for unit, amount in found.items()}


def _with_more(more: Mapping[str, Value]) -> str:
    """The first amount that the late ranks have clearly more of, for the title."""
    for unit, ratio in more.items():
        if isinstance(ratio, float) and ratio >= MIN_TIMES_THE_MEAN:
            return f", which has {ratio:.1f} times the {unit} of the mean rank"
    return ""


def _confidence(case: Case) -> Confidence:
    return "high" if case.is_explained and len(case.replayed.steps.steady) >= MIN_STEPS_FOR_TEST else "medium"


def _input_saving_ns(case: Case) -> float:
    """Saving if no rank waited for input data, ns, which ESP101 to ESP110 report."""
    return case.pricer.saving_ns(READY) or 0.0


def _locations(case: Case, ranks: Iterable[Rank], steps: np.ndarray, worst: np.ndarray) -> dict[Rank, SlowLocation]:
    """Where each of `ranks` loses most time in the steps that it delays most.

    `steps` are indices of steps, `worst` the index of the rank that delays each of them.
    """
    blame = case.blame
    found = {}
    for rank in ranks:
        column = blame.dfg.marks.ranks.index(rank)
        delayed = np.array(blame.steps)[steps[worst == column]]
        lost = np.where(np.isin(blame.dfg.step, delayed), np.maximum(blame.excess_ns, 0), 0)
        if (location := location_of_loss(case, rank, lost)) is not None:
            found[rank] = location
    return found


def _lines(locations: Mapping[Rank, SlowLocation]) -> dict[Rank, Value]:
    return {rank: one.python for rank, one in locations.items() if one.python}


_PAGES = (
    Page(
        "ESP205",
        "Different ranks are late in different steps",
        "In most steps one rank has more work than the others, which wait for it, but it is not always the same "
        "rank. No rank is a straggler, yet each step takes as long as its slowest rank.",
        "`latest in steps` counts the steps that each rank delayed most, if its extra work over its counterparts was "
        "statistically significant. At least two ranks must do so, each more than a quarter as often as any other. "
        "If the extra work is not significant, the finding has low confidence: the others then wait at least a "
        "twentieth of the median step (`lateness in median step`), and balancing saves as much. `latest over mean rank` "
        "compares tokens, samples, bytes received in all-to-alls (of experts), and sizes of tensors, if known. `lost in` "
        "and `python line` are where each rank loses most time in the steps that it delays.",
        "`balance=fix`: replay gives all work the mean duration that the same work takes on all ranks in that step, "
        "and replays the whole job. An upper bound: work can seldom be balanced perfectly. Half of what it saves beyond "
        "late ranks (`straggler=fix`) is certain if the extra work is statistically significant and the ranks that are late "
        "have more of one of these amounts.",
        "Balance the work of ranks within a step: sequence lengths, tokens of each expert, data-dependent branches, "
        "work that one rank does for all.",
    ),
)

RULE = Rule(pages=_PAGES, of_case=load_imbalance)
