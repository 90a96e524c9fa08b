"""`communication=0`: communication that takes no time."""

from esprof.replay.dfg import Cls
from esprof.replay.whatif.graph.selections import not_recorded, taking_no_time
from esprof.replay.whatif.scenario import Scenario
from esprof.replay.whatif.term import Edit, Kind, Term, TermPhase, zero


def _without_communication(now: Scenario, terms: tuple[Term, ...]) -> Scenario:
    return taking_no_time(now, terms, Cls.COMMUNICATION, not_recorded(now.dfg, "communication"))


TERM = Kind(
    name="communication",
    examples=("communication=0",),
    meaning="Collectives, sends and receives take no time. Ranks still wait for ranks that arrive late.",
    needs="Collectives that are matched on all their ranks.",
    assumes="The saving is an upper bound for a faster link or for compression.",
    effect=Edit(TermPhase.REMOVE, _without_communication),
    value=zero,
)
