"""`barriers=0`: barriers at which no rank waits for another."""

from dataclasses import replace

import numpy as np

from esprof.replay.dfg import Cls, Dfg, Edge
from esprof.replay.whatif.graph import edits
from esprof.replay.whatif.graph.selections import not_recorded, required
from esprof.replay.whatif.scenario import Scenario
from esprof.replay.whatif.term import Edit, Kind, Term, TermPhase, zero
from esprof.run.collective_names import collective_word


def barriers(dfg: Dfg) -> np.ndarray:
    """Mask of the matched barriers: their communication, on all ranks."""
    is_barrier = dfg.named(lambda name: collective_word(name) == "barrier")
    mask: np.ndarray = is_barrier & dfg.of(Cls.COMMUNICATION) & (dfg.collective >= 0)
    return mask


def _without_barriers(now: Scenario, terms: tuple[Term, ...]) -> Scenario:
    dfg = now.dfg
    nodes = required(barriers(dfg), not_recorded(dfg, "barrier"))
    waits = (dfg.pred_kind == Edge.RENDEZVOUS) & nodes[dfg.pred_target]
    return replace(now, dfg=edits.shorten(edits.cut(dfg, waits), nodes, 0))


TERM = Kind(
    name="barriers",
    examples=("barriers=0",),
    meaning="Barriers take no time, and no rank waits for another there. Ranks still wait in all other collectives.",
    needs="Barriers that are matched on all their ranks.",
    assumes="Nothing after a barrier needs what other ranks have done before it.",
    effect=Edit(TermPhase.REMOVE, _without_barriers),
    value=zero,
)
