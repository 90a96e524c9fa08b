"""`collective[REGEX]=2x`: some collectives faster."""

import numpy as np

from esprof.replay.dfg import Cls
from esprof.replay.whatif.graph.selections import named, not_recorded, required
from esprof.replay.whatif.scenario import Scenario
from esprof.replay.whatif.term import Kind, Resource, Speed, Term, regex, speed_up


def _nodes(scenario: Scenario, term: Term) -> np.ndarray:
    dfg = scenario.dfg
    return required(dfg.of(Cls.COMMUNICATION) & named(dfg, term), not_recorded(dfg, "collective of that name"))


TERM = Kind(
    name="collective",
    examples=("collective[REGEX]=2x",),
    meaning="Collectives whose name matches the regular expression run faster by this factor.",
    needs="Collectives of that name, matched on all their ranks.",
    effect=Speed(Resource.WORK, _nodes),
    value=speed_up,
    argument=regex,
)
