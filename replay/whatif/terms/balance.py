"""`balance=fix`: the same work takes all ranks as long; `balance[stages]=fix`: all stages of a pipeline compute as long."""

from dataclasses import replace

import numpy as np

from esprof.core.errors import UsageError
from esprof.replay.dfg import Cls, Dfg
from esprof.replay.whatif.scenario import Declined, Scenario
from esprof.replay.whatif.term import Edit, Kind, Term, TermPhase, word

STAGES = "stages"


def _argument(text: str) -> str:
    if text != STAGES:
        raise UsageError(f"{text!r} cannot be balanced", remedy=f"Write balance=fix or balance[{STAGES}]=fix.")
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
    return replace(now, dfg=replace(dfg, dur_ns=dur)).noted("an upper bound: no rank has more work than another")


def _even_stages(now: Scenario) -> Scenario:
    """`now` with the computing of each stage scaled so that all stages compute as long in a mean step.

    Ranks of one stage stay as unlike as they are. Raises Declined where the ranks are no stages of a pipeline.
    """
    dfg, roles = now.dfg, now.blame.roles
    if not roles.any():
        raise Declined("the ranks are not stages of a pipeline: they all do the same work, or exchange no messages")
    of_stage = stage_ns(dfg, roles, now.steps)
    share = np.divide(of_stage.mean(), of_stage, out=np.ones(len(of_stage)), where=of_stage > 0)
    computing = np.flatnonzero(_computing(dfg))
    dur = dfg.dur_ns.copy()
    of_node = share[roles[np.searchsorted(dfg.marks.ranks, dfg.rank[computing])]]
    dur[computing] = np.rint(dur[computing] * of_node).astype(np.int64)
    return replace(now, dfg=replace(dfg, dur_ns=dur)).noted("an upper bound: layers cannot be divided so evenly")


def stage_ns(dfg: Dfg, roles: np.ndarray, steps: tuple[int, ...]) -> np.ndarray:
    """How long the ranks of each stage compute in a mean step, by their median, ns, float64[stages].

    `roles`, int[ranks], is the stage of each rank. A rank counts in the steps that it has.
    """
    nodes = np.flatnonzero(_computing(dfg) & np.isin(dfg.step, steps))
    took = np.zeros((len(dfg.marks.ranks), len(steps)))
    np.add.at(
        took,
        (np.searchsorted(dfg.marks.ranks, dfg.rank[nodes]), np.searchsorted(steps, dfg.step[nodes])),
        dfg.dur_ns[nodes],
    )
    mean = took.sum(axis=1) / np.maximum((took > 0).sum(axis=1), 1)
    # Of two ranks the shorter: the other may be slow.
    return np.array([np.quantile(mean[roles == role], 0.5, method="lower") for role in range(roles.max() + 1)])


def _computing(dfg: Dfg) -> np.ndarray:
    mask: np.ndarray = dfg.of(Cls.COMPUTE, Cls.CONTENTION) & (dfg.rank >= 0)
    return mask


TERM = Kind(
    name="balance",
    examples=("balance=fix", "balance[stages]=fix"),
    meaning="In each step, the same work takes the same time on all ranks: the mean over the ranks. No rank waits for "
    "another that has more work. `[stages]` gives all stages of a pipeline the same compute time.",
    needs="Two or more ranks that do the same work. `[stages]` needs ranks that exchange messages and compute "
    "different layers.",
    assumes="Work can be divided perfectly, so the saving is an upper bound.",
    effect=Edit(TermPhase.MEND, _balanced),
    value=word("fix"),
    argument=_argument,
    argument_is_optional=True,
)
