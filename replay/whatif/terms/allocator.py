"""`allocator=0`: no allocator calls that stop the device."""

from dataclasses import replace

from esprof.replay.dfg import Cls
from esprof.replay.whatif import edits
from esprof.replay.whatif.scenario import Scenario
from esprof.replay.whatif.term import Edit, Kind, Phase, Term, zero
from esprof.replay.whatif.work import of_ranks, required


def _without_allocator(now: Scenario, terms: tuple[Term, ...]) -> Scenario:
    for term in terms:
        calls = now.dfg.of(Cls.ALLOCATOR) & of_ranks(now, term)
        required(calls, "no call of the memory allocator was recorded in these steps")
        now = replace(now, dfg=edits.shorten(now.dfg, calls, 0))
    return now


TERM = Kind(
    name="allocator",
    examples=("allocator=0", "rank3.allocator=0"),
    meaning="Calls by which PyTorch's caching allocator asks the driver for memory or gives it back (cudaMalloc, cudaFree) "
    "take no time.",
    needs="Such calls in the trace.",
    effect=Edit(Phase.REMOVE, _without_allocator),
    value=zero,
    scoped=True,
)
