"""`barriers=0`: barriers at which no rank waits for another."""

from esprof.replay.whatif.graph.selections import matched, not_recorded, required, without_collectives
from esprof.replay.whatif.scenario import Scenario
from esprof.replay.whatif.term import Edit, Kind, Term, TermPhase, zero


def _without_barriers(now: Scenario, terms: tuple[Term, ...]) -> Scenario:
    return without_collectives(now, required(matched(now.dfg, "barrier"), not_recorded(now.dfg, "barrier")))


TERM = Kind(
    name="barriers",
    examples=("barriers=0",),
    meaning="Barriers take no time, and no rank waits for another there. Ranks still wait in all other collectives.",
    needs="Barriers that are matched on all their ranks.",
    assumes="Nothing after a barrier needs what other ranks have done before it.",
    effect=Edit(TermPhase.REMOVE, _without_barriers),
    value=zero,
)
