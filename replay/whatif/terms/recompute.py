"""`recompute=0`: activations that are kept, not computed again in the backward pass."""

from esprof.replay.whatif.graph.recomputation import recompute_share
from esprof.replay.whatif.graph.selections import without_share
from esprof.replay.whatif.scenario import Scenario
from esprof.replay.whatif.term import Edit, Kind, Term, TermPhase, zero


def _without(now: Scenario, terms: tuple[Term, ...]) -> Scenario:
    share = recompute_share(now.run, now.dfg)
    now = without_share(now, terms, share, "no forward operation was recorded inside a backward pass")
    return now.noted("assumes that all activations fit into memory")


TERM = Kind(
    name="recompute",
    examples=("recompute=0", "rank3.recompute=0"),
    meaning="Activations are kept: forward operations inside the backward pass (activation checkpointing), and the GPU work "
    "that they launch, take no time.",
    needs="Operations with autograd's sequence numbers (every trace of torch.profiler), not compiled by torch.compile.",
    assumes="All activations fit into memory.",
    effect=Edit(TermPhase.REMOVE, _without),
    value=zero,
    scoped=True,
)
