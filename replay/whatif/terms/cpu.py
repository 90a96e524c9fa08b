"""`cpu=2x`: CPUs that do everything faster."""

import numpy as np

from esprof.replay.whatif.graph.selections import cpu_work, of_ranks, required
from esprof.replay.whatif.host.idle_gaps import asleep
from esprof.replay.whatif.scenario import Scenario
from esprof.replay.whatif.term import Kind, Resource, Speed, Term, speed_up


def _nodes(scenario: Scenario, term: Term) -> np.ndarray:
    work = required(cpu_work(scenario.dfg) & of_ranks(scenario, term), "no CPU work was recorded on these ranks")
    return np.where(work, 1 - asleep(scenario.run, scenario.dfg), 0)


TERM = Kind(
    name="cpu",
    examples=("cpu=2x", "rank3.cpu=0.5x", "device[NAME].cpu=2x"),
    meaning="CPU threads and loader workers run faster by this factor. This includes gaps between operations, the CPU "
    "share of communication over gloo, and the making of batches. Long gaps shrink only by the time that the thread "
    "ran, where its CPU time was recorded.",
    needs="CPU operations in the trace.",
    assumes="All CPU work speeds up equally.",
    effect=Speed(Resource.CPU, _nodes),
    value=speed_up,
    scoped=True,
)
