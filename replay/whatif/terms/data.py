"""`data=0`: loaders that never make a rank wait."""

from esprof.replay.dfg import Cls
from esprof.replay.whatif.scenario import Scenario
from esprof.replay.whatif.term import Edit, Kind, Phase, Term, zero
from esprof.replay.whatif.work import taking_no_time


def _without_input_stall(now: Scenario, terms: tuple[Term, ...]) -> Scenario:
    return taking_no_time(now, terms, Cls.DATA, "no data loader was recorded in these steps")


TERM = Kind(
    name="data",
    examples=("data=0", "rank3.data=0"),
    meaning="Batches take no time to make: no rank waits for its input data.",
    needs="A DataLoader in the trace.",
    effect=Edit(Phase.REMOVE, _without_input_stall),
    value=zero,
    scoped=True,
)
