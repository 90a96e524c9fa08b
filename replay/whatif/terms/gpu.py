"""`gpu=2x`: GPUs that compute faster."""

import numpy as np

from esprof.replay.whatif.graph.selections import gpu_work, of_ranks, required
from esprof.replay.whatif.scenario import Scenario
from esprof.replay.whatif.term import Kind, Resource, Speed, Term, speed_up


def _nodes(scenario: Scenario, term: Term) -> np.ndarray:
    if not scenario.dfg.has_gpu():
        reason = "no GPU work was recorded: the device of this job is its CPU (ask cpu=)"
    else:
        reason = "no GPU work was recorded there"
    return required(gpu_work(scenario.dfg) & of_ranks(scenario, term), reason)


TERM = Kind(
    name="gpu",
    examples=("gpu=2x", "rank3.gpu=1.5x", "device[NAME].gpu=2x"),
    meaning="Work on GPU streams runs so many times as fast; copies between host and device do not.",
    needs="GPU kernels in the trace.",
    effect=Speed(Resource.WORK, _nodes),
    value=speed_up,
    scoped=True,
)
