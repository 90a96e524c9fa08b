"""`balance=fix`: the same work takes all ranks as long; `balance[stages]=fix`: all stages of a pipeline compute as long."""

from dataclasses import replace

import numpy as np

from esprof.errors import UsageError
from esprof.replay.dfg import Cls, Dfg
from esprof.replay.whatif.scenario import Declined, Scenario
from esprof.replay.whatif.term import Edit, Kind, Phase, Term, word

STAGES = "stages"


def _argument(text: str) -> str:
    if text != STAGES:
        raise UsageError(
            f"{text!r} is nothing that can be balanced", remedy=f"Write balance=fix or balance[{STAGES}]=fix."
        )
    return text


def _balanced(now: Scenario, terms: tuple[Term, ...]) -> Scenario:
    # Stages first: what ranks of the same role then differ by is evened out after it.
    for argument in sorted({term.argument for term in terms}, key=lambda argument: argument is None):
        now = _alike(now) if argument is None else _even_stages(now)
    return now


def _alike(now: Scenario) -> Scenario:
    """`now` with the mean over ranks of its counterparts for each node, on ranks that share their role with another.

    Raises Declined where there are no such ranks.
    """
    dfg = now.dfg
    blame = now.blame_now
    mean = blame.peers.mean
    known = ~np.isnan(mean) & blame.shares_role
    if not known.any():
        raise Declined("no two ranks do the same work")
    dur = blame.work_ns.copy()
    dur[known] = np.rint(mean[known]).astype(np.int64)
    return replace(now, dfg=replace(dfg, dur_ns=dur)).noted("a bound: no rank is ever late for work of its own")


def _even_stages(now: Scenario) -> Scenario:
    """`now` with the computing of each rank scaled so that all ranks compute as long in each step.

    Raises Declined where the ranks are no stages of a pipeline.
    """
    dfg = now.dfg
    if not now.blame.roles.any():
        raise Declined("the ranks are no stages of a pipeline: all do the same work, or none passes messages on")
    computing = np.flatnonzero(dfg.of(Cls.COMPUTE, Cls.CONTENTION) & (dfg.rank >= 0))
    visit = np.searchsorted(dfg.marks.ranks, dfg.rank[computing]), dfg.step[computing] + 1
    took = computed_ns(dfg)
    share = took.mean(axis=0) / np.maximum(took, 1)
    dur = dfg.dur_ns.copy()
    dur[computing] = np.rint(dur[computing] * share[visit]).astype(np.int64)
    return replace(now, dfg=replace(dfg, dur_ns=dur)).noted("a bound: layers cannot be shared out so evenly")


def computed_ns(dfg: Dfg) -> np.ndarray:
    """How long each rank computes, ns, float64[ranks, steps + 1]: what was launched before the first step, then by step."""
    nodes = np.flatnonzero(dfg.of(Cls.COMPUTE, Cls.CONTENTION) & (dfg.rank >= 0))
    took = np.zeros((len(dfg.marks.ranks), int(dfg.step.max()) + 2))
    np.add.at(took, (np.searchsorted(dfg.marks.ranks, dfg.rank[nodes]), dfg.step[nodes] + 1), dfg.dur_ns[nodes])
    return took


TERM = Kind(
    name="balance",
    examples=("balance=fix", "balance[stages]=fix"),
    meaning="In each step the same work takes all ranks as long, on average no less and no more than it took: nobody waits "
    "for a rank that has more to do, whoever it is. With `[stages]`, all stages of a pipeline compute as long. A bound: "
    "ranks never are all alike, and layers cannot be cut.",
    needs="Two ranks or more that do the same work; with `[stages]`, ranks that pass messages on and compute unlike "
    "things.",
    effect=Edit(Phase.MEND, _balanced),
    value=word("fix"),
    argument=_argument,
    argument_is_optional=True,
)
