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
    meaning="Links carry this many times the bytes per second. Between GPUs, the latency of a collective stays. "
    "Between CPUs, only the link's share of its time shrinks: as the probe measured it, or else as collectives of its "
    "kind show it while the ranks only wait, or else the fastest ones.",
    needs="Collectives that are matched on all their ranks.",
    assumes="Latency and CPU work of a collective do not depend on the link.",
    effect=Speed(Resource.LINK, _nodes),
    value=speed_up,
)
