"""`gpu=2x`: GPUs that compute faster."""

import numpy as np

from esprof.replay.whatif.graph.selections import gpu_work, of_ranks, required
from esprof.replay.whatif.scenario import Scenario
from esprof.replay.whatif.term import Kind, Resource, Speed, Term, speed_up


def _nodes(scenario: Scenario, term: Term) -> np.ndarray:
    if not scenario.dfg.has_gpu():
        reason = "no GPU work was recorded: this job computes on CPUs (use cpu=)"
    else:
        reason = "no GPU work was recorded on these ranks"
    return required(gpu_work(scenario.dfg) & of_ranks(scenario, term), reason)


TERM = Kind(
    name="gpu",
    examples=("gpu=2x", "rank3.gpu=1.5x", "device[NAME].gpu=2x"),
    meaning="Kernels and other work on GPU streams run faster by this factor. Copies between host and device keep "
    "their time.",
    needs="GPU kernels in the trace.",
    assumes="All kernels speed up equally.",
    effect=Speed(Resource.WORK, _nodes),
    value=speed_up,
    scoped=True,
)
