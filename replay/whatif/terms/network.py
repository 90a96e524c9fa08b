"""`network=2x`: links that carry more."""

import numpy as np

from esprof.replay.dfg import Cls
from esprof.replay.whatif.graph.selections import not_recorded, required
from esprof.replay.whatif.scenario import Scenario
from esprof.replay.whatif.term import Kind, Resource, Speed, Term, speed_up


def _nodes(scenario: Scenario, term: Term) -> np.ndarray:
    dfg = scenario.dfg
    return required(dfg.of(Cls.COMMUNICATION), not_recorded(dfg, "communication"))


TERM = Kind(
    name="network",
    examples=("network=2x",),
    meaning="Links carry so many times as much: of a transfer between GPUs the latency stays, of one between CPUs all but "
    "the part that the link takes: by the curve of a probe, or else by the fastest transfers.",
    needs="Collectives that are matched on all their ranks.",
    effect=Speed(Resource.LINK, _nodes),
    value=speed_up,
)
