"""`kernel[REGEX]=2x`: some computations faster."""

import numpy as np

from esprof.replay.whatif.graph.nested_operations import share_in
from esprof.replay.whatif.graph.selections import cpu_work, gpu_work, named, not_recorded, on_ranks_with_gpu, required
from esprof.replay.whatif.scenario import Scenario
from esprof.replay.whatif.term import Kind, Resource, Speed, Term, regex, speed_up


def _nodes(scenario: Scenario, term: Term) -> np.ndarray:
    dfg = scenario.dfg
    share = (gpu_work(dfg) & named(dfg, term)).astype(float)
    computes = cpu_work(dfg) & ~on_ranks_with_gpu(dfg)
    if computes.any():
        share[computes] = share_in(scenario.run, dfg, term.argument)[computes]  # type: ignore[arg-type]
    return required(share, not_recorded(dfg, "kernel of that name"))


TERM = Kind(
    name="kernel",
    examples=("kernel[REGEX]=2x",),
    meaning="GPU kernels whose name matches the regular expression run faster by this factor. On ranks that compute on "
    "CPUs, so do matching operations; of an operation that calls others, only its own time shrinks.",
    needs="Kernels or operations of that name.",
    effect=Speed(Resource.WORK, _nodes),
    value=speed_up,
    argument=regex,
)
