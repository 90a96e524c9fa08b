"""ESP305: collectives that wait on their GPU stream for others of another kind."""

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

_APART = "streams=apart"


def queued_transfers(case: Case) -> Iterator[Cause]:
    """What a step would gain if collectives of each kind had a stream of their own."""
    dfg = case.replayed.built.dfg
    kinds = kinds_in_queues(dfg)
    if not kinds.any():
        return
    waited, before = queued(case.replayed.timeline, kinds)
    waited = np.where(np.isin(dfg.step, case.replayed.steps.steady), waited, 0)
    per_step = _by_rank(case, waited)
    if not case.worth_naming(max(per_step.values())) or not case.worth_naming(case.pricer.saving_ns(_APART)):
        return
    who, behind = _longest(dfg, waited, before)
    yield Cause(
        id="ESP305",
        title=f"Collectives wait up to {duration(max(per_step.values()))} a step for others on their stream: mostly "
        f"{who} behind {behind}",
        ranks=tuple(rank for rank, ns in per_step.items() if ns > 0),
        scenario=_APART,
        confidence="low",
        evidence={
            "queued_per_step": by_rank({rank: round(ns) for rank, ns in per_step.items()}, "ns"),
            "waiting": Evidence(who),
            "behind": Evidence(behind),
        },
        advice=f"Give {who} and {behind} process groups of their own (torch.distributed.new_group): each group has its own "
        "stream, on which one collective follows the other. With FSDP, a group for all-gathers beside that for "
        "reduce-scatters; with parallelism of several kinds, a group for each. The saving is a bound: two transfers at once "
        "share the link.",
    )


def _by_rank(case: Case, waited_ns: np.ndarray) -> dict[Rank, float]:
    """What a mean steady step of each rank has of `waited_ns`, [N], ns."""
    dfg, steps = case.replayed.built.dfg, len(case.replayed.steps.steady)
    return {rank: float(waited_ns[dfg.nodes_of(rank)].sum()) / steps for rank in dfg.marks.ranks}


def _longest(dfg: Dfg, waited_ns: np.ndarray, before: np.ndarray) -> tuple[str, str]:
    """The kinds of the collectives that wait longest in all, and of those that they wait behind."""
    kinds = [collective_word(name) or name for name in dfg.names]
    of_pair: dict[tuple[str, str], int] = defaultdict(int)
    for node in np.flatnonzero(waited_ns).tolist():
        of_pair[kinds[dfg.name[node]], kinds[dfg.name[before[node]]]] += int(waited_ns[node])
    return max(of_pair, key=lambda pair: of_pair[pair])


_PAGES = (
    Page(
        "ESP305",
        "Collectives wait for others on their stream",
        "The collectives of a process group run one after the other on its GPU stream. One whose data is ready waits there "
        "for another that is of another kind and whose result nobody needs as soon: an all-gather of the next layer's "
        "parameters behind a reduce-scatter of gradients.",
        "`queued_per_step` is how long collectives of a mean step of each rank wait for one of another kind while all else "
        "that they wait for is there; `waiting` and `behind` are the kinds that make most of it.",
        "`streams=apart`: replay gives collectives of each kind a stream of their own. A bound: two transfers at once share "
        "the link.",
        "A process group for each kind of collective (torch.distributed.new_group).",
    ),
)

RULE = Rule(pages=_PAGES, of_case=queued_transfers)
