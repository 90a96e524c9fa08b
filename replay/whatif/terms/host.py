"""`host=2x`: CPUs that issue the work of GPUs faster."""

import numpy as np

from esprof.replay.dfg import Cls, LaneKind
from esprof.replay.whatif.graph.selections import of_ranks, on_ranks_with_gpu, required
from esprof.replay.whatif.host.first_calls import first_calls
from esprof.replay.whatif.host.idle_gaps import long_gaps
from esprof.replay.whatif.scenario import Scenario
from esprof.replay.whatif.term import Kind, Resource, Speed, Term, speed_up


def _nodes(scenario: Scenario, term: Term) -> np.ndarray:
    dfg = scenario.dfg
    feeds = required(on_ranks_with_gpu(dfg), "no GPU work was recorded: this job computes on CPUs (use cpu=)")
    work = (
        feeds & dfg.on(LaneKind.CPU) & dfg.of(Cls.CPU, Cls.LAUNCH, Cls.HOST_GAP) & ~long_gaps(dfg) & ~first_calls(dfg)
    )
    return required(work & of_ranks(scenario, term), "no CPU work was recorded on these ranks")


TERM = Kind(
    name="host",
    examples=("host=2x", "rank3.host=2x"),
    meaning="CPU work that feeds the GPU runs faster by this factor: operations, launches, and gaps of up to 1 ms. "
    "Longer gaps (sleep, I/O), first calls of kernels (ESP407) and communication keep their time.",
    needs="CPU operations and GPU kernels in the trace.",
    assumes="Gaps of up to 1 ms are CPU work that was not recorded.",
    effect=Speed(Resource.WORK, _nodes),
    value=speed_up,
    scoped=True,
)
