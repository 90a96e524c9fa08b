"""ESP305: collectives that queue on their GPU stream behind collectives of another kind."""

from collections import defaultdict
from collections.abc import Iterator

import numpy as np

from esprof.analyzers.evidence import Evidence, by_rank
from esprof.analyzers.rule import Case, Cause, Page, Rule
from esprof.core.readable import duration
from esprof.core.types import Rank
from esprof.replay.dfg import Dfg
from esprof.replay.whatif.graph.queues import kinds_in_queues, queued
from esprof.run.collective_names import collective_word

_SCENARIO = "streams=apart"


def queued_collectives(case: Case) -> Iterator[Cause]:
    """Collectives that wait on their stream for collectives of another kind."""
    dfg = case.replayed.built.dfg
    kinds = kinds_in_queues(dfg)
    if not kinds.any():
        return
    waited, before = queued(case.replayed.timeline, kinds)
    waited = np.where(np.isin(dfg.step, case.replayed.steps.steady), waited, 0)
    per_step = _by_rank(case, waited)
    if not case.is_worth_reporting(max(per_step.values())) or not case.is_worth_reporting(
        case.pricer.saving_ns(_SCENARIO)
    ):
        return
    waiting, ahead = _longest(dfg, waited, before)
    yield Cause(
        id="ESP305",
        title=f"Collectives queue for up to {duration(max(per_step.values()))} a step behind others on their "
        f"stream: mostly {waiting} behind {ahead}",
        ranks=tuple(rank for rank, ns in per_step.items() if ns > 0),
        scenario=_SCENARIO,
        is_bound=True,
        confidence="low",
        evidence={
            "queued_per_step": by_rank({rank: round(ns) for rank, ns in per_step.items()}, "ns"),
            "waiting": Evidence(waiting),
            "behind": Evidence(ahead),
        },
        advice=f"Use separate process groups for {waiting} and {ahead} (torch.distributed.new_group): each group has "
        "its own stream, on which collectives run one after the other. With FSDP, use separate groups for "
        "all-gathers and reduce-scatters; with several kinds of parallelism, one group for each. The saving is an "
        "upper bound: concurrent collectives share the link.",
    )


def _by_rank(case: Case, waited_ns: np.ndarray) -> dict[Rank, float]:
    """Sum of `waited_ns`, ns, shape (N,), in a mean steady-state step, by rank."""
    dfg, steps = case.replayed.built.dfg, len(case.replayed.steps.steady)
    return {rank: float(waited_ns[dfg.nodes_of(rank)].sum()) / steps for rank in dfg.marks.ranks}


def _longest(dfg: Dfg, waited_ns: np.ndarray, before: np.ndarray) -> tuple[str, str]:
    """The pair of kinds with the longest total wait: the waiting collectives, and those ahead of them."""
    kinds = [collective_word(name) or name for name in dfg.names]
    of_pair: dict[tuple[str, str], int] = defaultdict(int)
    for node in np.flatnonzero(waited_ns).tolist():
        of_pair[kinds[dfg.name[node]], kinds[dfg.name[before[node]]]] += int(waited_ns[node])
    return max(of_pair, key=lambda pair: of_pair[pair])


_PAGES = (
    Page(
        "ESP305",
        "Collectives queue behind others on their stream",
        "The collectives of a process group run one after the other on its GPU stream. A collective whose data is "
        "ready waits there for one of another kind whose result is needed later: for example an all-gather of the "
        "next layer's parameters behind a reduce-scatter of gradients.",
        "`queued per step` is how long collectives wait in a mean step of each rank for a collective of another "
        "kind, while their data is ready; `waiting` and `behind` are the kinds with the longest wait.",
        "`streams=apart`: replay gives each kind of collective its own stream. An upper bound: concurrent "
        "collectives share the link.",
        "Use a process group for each kind of collective (torch.distributed.new_group).",
    ),
)

RULE = Rule(pages=_PAGES, of_case=queued_collectives)
