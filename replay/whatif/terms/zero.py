"""`zero=1`, `2` and `3`: states of optimizers, gradients and parameters that the ranks share."""

from esprof.replay.whatif.gradients.sharded_units import with_sharded_units
from esprof.replay.whatif.gradients.shared_update import reducing_ranks, with_shared_update
from esprof.replay.whatif.gradients.units import units_of
from esprof.replay.whatif.memory import sharded
from esprof.replay.whatif.memory.blocks import RankBlocks
from esprof.replay.whatif.memory.changes import with_sharded_optimizer
from esprof.replay.whatif.scenario import Declined, Scenario
from esprof.replay.whatif.term import Edit, Kind, Term, TermPhase, whole
from esprof.run.run import Run

_GIVES_UP_PARAMETERS = 3
"""The stage in which ranks gather parameters again for the backward pass."""


def _shared(now: Scenario, terms: tuple[Term, ...]) -> Scenario:
    stage = terms[0].value
    if stage == 1:
        return with_shared_update(now)
    if now.batch is not None and now.batch.parts > 1:
        raise Declined("how often FSDP2 exchanges parameters and gradients of batches in parts depends on the script")
    return with_sharded_units(now, regather=stage == _GIVES_UP_PARAMETERS)


def _memory(run: Run, memory: RankBlocks, term: Term) -> RankBlocks:
    ranks = len(reducing_ranks(run, memory.rank))
    if term.value == 1:
        return with_sharded_optimizer(memory, ranks)
    _, steps = units_of(run, memory.rank)
    return sharded.with_sharded_units(memory, steps.values(), ranks, regather=term.value == _GIVES_UP_PARAMETERS)


TERM = Kind(
    name="zero",
    examples=("zero=1", "zero=2", "zero=3"),
    meaning="The ranks share what each of them holds (ZeRO). `1`: the states of the optimizer; each rank updates its part "
    "of the parameters and sends it to all others (`ZeroRedundancyOptimizer` with `parameters_as_bucket_view=True`). `2`: "
    "gradients and parameters, too, which are gathered once a step (FSDP2, `fully_shard` with "
    "`reshard_after_forward=False`). `3`: parameters are gathered again for the backward pass "
    "(`reshard_after_forward=True`).",
    needs="All-reduces of gradients in one process group, and updates of `torch.optim`. `2` and `3`: recorded calls of "
    "modules and shapes (`esprof record --shapes`), and one backward pass a step. The time is predicted on CPUs only. The "
    "peak needs recorded allocations (`esprof record --memory`).",
    assumes="All states can be shared equally. Parameters have the size of the gradients, and travel at the speed of the "
    "recorded all-reduces. `1`: over gloo two ranks send their parts at once, or in turn if the first rank updates its "
    "part last; of more ranks, the interval holds both. `2` and `3`: each entry of the model's largest list of modules is "
    "sharded, and then the model. Over gloo FSDP2 waits for each exchange. A reduce-scatter takes as long as an "
    "all-reduce, and an all-gather of two ranks half as long again as its bytes need. What FSDP2 copies takes as long as "
    "what DDP copies; its hooks, and operations on DTensors, take no more time.",
    effect=Edit(TermPhase.REBUILD, _shared),
    memory=_memory,
    value=whole(1, 3),
)
