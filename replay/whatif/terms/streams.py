"""`streams=apart`: collectives of one kind wait for none of another."""

from dataclasses import replace

from esprof.replay.whatif.graph import edits
from esprof.replay.whatif.graph.queues import kinds_in_queues
from esprof.replay.whatif.scenario import Declined, Scenario
from esprof.replay.whatif.term import Edit, Kind, Term, TermPhase, word


def _apart(now: Scenario, terms: tuple[Term, ...]) -> Scenario:
    kinds = kinds_in_queues(now.dfg)
    if not kinds.any():
        raise Declined("no GPU stream has collectives of several kinds that are matched on all their ranks")
    return replace(now, dfg=edits.on_separate_lanes(now.dfg, kinds)).noted(
        "an upper bound: assumes that two concurrent collectives are as fast as one"
    )


TERM = Kind(
    name="streams",
    examples=("streams=apart",),
    meaning="Collectives of each kind (all-gather, reduce-scatter, …) that share a GPU stream get a stream of their "
    "own, as with separate process groups. They wait for no collective of another kind.",
    needs="A GPU stream with several kinds of collectives, matched on all their ranks.",
    assumes="Two concurrent collectives are as fast as one, so the saving is an upper bound.",
    effect=Edit(TermPhase.REBUILD, _apart),
    value=word("apart"),
)
