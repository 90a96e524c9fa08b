"""`recompute=0`: activations that are kept, not computed again in the backward pass; `recompute=full`: the opposite."""

from esprof.core.errors import UsageError
from esprof.replay.whatif.graph.computed_again import computed_again
from esprof.replay.whatif.graph.recomputation import recompute_ranges, recompute_share
from esprof.replay.whatif.graph.selections import without_share
from esprof.replay.whatif.memory.blocks import RankBlocks
from esprof.replay.whatif.memory.changes import with_recomputation
from esprof.replay.whatif.memory.layers import layers_of
from esprof.replay.whatif.scenario import Declined, Scenario
from esprof.replay.whatif.term import Edit, Kind, Term, TermPhase
from esprof.run.run import Run


def _recomputed(now: Scenario, terms: tuple[Term, ...]) -> Scenario:
    kept = tuple(term for term in terms if term.value == "0")
    if kept:
        share = recompute_share(now.run, now.dfg)
        now = without_share(now, kept, share, "no forward operation was recorded inside a backward pass")
        now = now.noted("assumes that all activations fit into memory")
    for term in terms:
        if term.value == "full":
            now = computed_again(now, term.ranks(now))
    return now


def _memory(run: Run, memory: RankBlocks, term: Term) -> RankBlocks:
    events = run.events(memory.rank)
    if term.value == "0":
        raise Declined("the memory of activations that were not kept is not known")
    if len(recompute_ranges(events).tid):
        raise Declined("some activations are computed again already")
    return with_recomputation(memory, layers_of(events, memory.passes))


def _value(text: str) -> str:
    if text not in ("0", "full"):
        raise UsageError(
            "its value can only be 0 (nothing is computed again) or full (each layer is)",
            remedy="Write recompute=0 or recompute=full.",
        )
    return text


TERM = Kind(
    name="recompute",
    examples=("recompute=0", "recompute=full", "rank3.recompute=0"),
    meaning="`0`: activations are kept, not computed again in the backward pass (activation checkpointing). `full`: each "
    "entry of the model's largest list of modules (`nn.Sequential`, `nn.ModuleList`) keeps its input alone, and is computed "
    "again before its backward pass.",
    needs="`0`: forward operations within backward passes, not compiled by torch.compile. `full`: recorded calls of "
    "modules, with backward passes by PyTorch's autograd, and no communication within the modules. The peak needs recorded "
    "allocations (`esprof record --memory`).",
    assumes="`0`: memory suffices for the activations. `full`: computing a layer again takes as long as the first time.",
    effect=Edit(TermPhase.REMOVE, _recomputed),
    memory=_memory,
    value=_value,
    scoped=True,
)
