"""`host=2x`: CPUs that issue the work of GPUs faster."""

import numpy as np

from esprof.replay.dfg import Cls, LaneKind
from esprof.replay.whatif.graph.idle_gaps import long_gaps
from esprof.replay.whatif.graph.selections import of_ranks, required
from esprof.replay.whatif.scenario import Declined, Scenario
from esprof.replay.whatif.term import Kind, Resource, Speed, Term, speed_up


def _nodes(scenario: Scenario, term: Term) -> np.ndarray:
    dfg = scenario.dfg
    if not dfg.has_gpu():
        raise Declined("no GPU work was recorded: the device of this job is its CPU (ask cpu=)")
    work = dfg.on(LaneKind.CPU) & dfg.of(Cls.CPU, Cls.LAUNCH, Cls.HOST_GAP) & ~long_gaps(dfg)
    return required(work & of_ranks(scenario, term), "no CPU work was recorded there")


TERM = Kind(
    name="host",
    examples=("host=2x", "rank3.host=2x"),
    meaning="What CPU threads do to keep their device busy (operations, launches, gaps of up to 1 ms) runs so many times as "
    "fast. Longer gaps, which are sleeps or I/O, and transfers stay.",
    needs="CPU operations and GPU kernels in the trace.",
    effect=Speed(Resource.WORK, _nodes),
    value=speed_up,
    scoped=True,
)
