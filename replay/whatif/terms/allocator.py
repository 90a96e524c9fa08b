"""`allocator=0`: no allocator calls that stop the device."""

from dataclasses import replace

import numpy as np

from esprof.replay.dfg import Cls, Dfg, Edge, LaneKind
from esprof.replay.whatif.graph import edits
from esprof.replay.whatif.graph.selections import of_ranks, required
from esprof.replay.whatif.scenario import Scenario
from esprof.replay.whatif.term import Edit, Kind, Term, TermPhase, zero

_OWN_LANE = (Edge.LANE, Edge.THREAD)


def _without_allocator(now: Scenario, terms: tuple[Term, ...]) -> Scenario:
    for term in terms:
        missing = "no call of the memory allocator was recorded in these steps"
        calls = required(now.dfg.of(Cls.ALLOCATOR) & of_ranks(now, term), missing)
        dfg = edits.cut(now.dfg, _waiting(now.dfg, calls))
        now = replace(now, dfg=edits.shorten(dfg, calls, 0))
    return now


def _waiting(dfg: Dfg, calls: np.ndarray) -> np.ndarray:
    """Mask of the edges (bool[E]) by which `calls` (bool[N]) wait for their device, be it in themselves or just before."""
    target, in_order = dfg.pred_target, np.isin(dfg.pred_kind, _OWN_LANE)
    before = np.zeros(dfg.nodes, bool)
    before[dfg.pred_idx[in_order & calls[target]]] = True
    for_device = ~in_order & dfg.on(LaneKind.STREAM)[dfg.pred_idx]
    waiting: np.ndarray = for_device & (calls | before & dfg.of(Cls.WAIT))[target]
    return waiting


TERM = Kind(
    name="allocator",
    examples=("allocator=0", "rank3.allocator=0"),
    meaning="Calls of PyTorch's caching allocator to the driver (cudaMalloc, cudaFree) take no time and do not wait "
    "for the device.",
    needs="Allocator calls in the trace.",
    assumes="The peak of reserved memory stays as it was.",
    effect=Edit(TermPhase.REMOVE, _without_allocator),
    value=zero,
    scoped=True,
)
