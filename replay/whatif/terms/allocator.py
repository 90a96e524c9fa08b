"""`allocator=0`: no allocator calls that stop the device."""

from esprof.replay.dfg import Cls
from esprof.replay.whatif.scenario import Scenario
from esprof.replay.whatif.term import Edit, Kind, Phase, Term, zero
from esprof.replay.whatif.work import taking_no_time


def _without_allocator(now: Scenario, terms: tuple[Term, ...]) -> Scenario:
    return taking_no_time(now, terms, Cls.ALLOCATOR, "no call of the memory allocator was recorded in these steps")


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
