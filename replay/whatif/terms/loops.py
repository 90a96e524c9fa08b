"""`loops=0`: loops of Python over small operations take no time, as if one call computed all iterations at once."""

import numpy as np

from esprof.core.types import NS_PER_US
from esprof.replay.whatif.gradients.marked_calls import with_backward
from esprof.replay.whatif.graph.selections import without_share
from esprof.replay.whatif.graph.thread_ranges import ThreadRanges, share_within
from esprof.replay.whatif.host.operation_loops import operation_loops
from esprof.replay.whatif.scenario import Declined, Scenario
from esprof.replay.whatif.term import Edit, Kind, Term, TermPhase, zero
from esprof.replay.whatif.terms.small_operations import MAX_OPERATION_NS, small_nodes
from esprof.run.schema import Table


def _without_loops(now: Scenario, terms: tuple[Term, ...]) -> Scenario:
    dfg = now.dfg
    if dfg.has_gpu():
        raise Declined("on a GPU the kernels of a loop would have to change, too: see launches=graph")
    share = share_within(now.run, dfg, {rank: _ranges(now.run.events(rank)) for rank in dfg.marks.ranks})
    missing = "no loop over small operations was recorded, or the trace does not tell the modules that are called"
    return without_share(now, terms, np.where(small_nodes(dfg), share, 0.0), missing)


def _ranges(events: Table) -> ThreadRanges:
    """When and where the loops ran, with their backward passes."""
    loops = operation_loops(events)
    return with_backward(events, ThreadRanges(loops.tid, loops.begin_ns, loops.end_ns))


TERM = Kind(
    name="loops",
    examples=("loops=0", "rank3.loops=0"),
    meaning="Loops of Python that call the same operations again and again take no time, with their backward passes. "
    f"Operations of more than {MAX_OPERATION_NS // NS_PER_US} µs, optimizers, and loops over the layers of a model stay.",
    needs="A window of `esprof record` on CPUs.",
    assumes="One call on larger tensors computes what all iterations do, in no more time than one of them.",
    effect=Edit(TermPhase.REMOVE, _without_loops),
    value=zero,
    scoped=True,
)
