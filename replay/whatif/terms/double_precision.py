"""`double_precision=2x`: modules of 64 bits compute faster, as with 32."""

import numpy as np

from esprof.core.types import NS_PER_US, Ns
from esprof.replay.dfg import Cls, LaneKind
from esprof.replay.whatif.gradients.marked_calls import call_ranges, calls_in_float64, marked_share
from esprof.replay.whatif.graph.selections import of_ranks, required
from esprof.replay.whatif.scenario import Scenario
from esprof.replay.whatif.term import Kind, Resource, Speed, Term, speed_up

_MIN_OPERATION_NS: Ns = 20 * NS_PER_US
"""Shortest operation of a CPU that becomes faster: shorter ones consist of the overhead of PyTorch."""


def _nodes(scenario: Scenario, term: Term) -> np.ndarray:
    dfg = scenario.dfg
    share = marked_share(scenario, calls_in_float64, call_ranges)
    is_long = dfg.on(LaneKind.STREAM) | (dfg.of(Cls.CPU, Cls.COMPUTE) & (dfg.dur_ns >= _MIN_OPERATION_NS))
    share = np.where(is_long & of_ranks(scenario, term), share, 0.0)
    required(share > 0, "no call of a module of 64 bits was recorded among others")
    return share


TERM = Kind(
    name="double_precision",
    examples=("double_precision=2x", "rank3.double_precision=2x"),
    meaning="Modules with parameters of 64 bits, or with buffers of 64 bits and no parameters, run faster, except for "
    "operations of less than 20 µs on CPUs.",
    needs="A window of `esprof record` with calls of such modules, and of others without.",
    effect=Speed(Resource.WORK, _nodes),
    value=speed_up,
    scoped=True,
)
