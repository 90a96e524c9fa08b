"""`zero=1`: states of optimizers that the ranks share."""

from esprof.replay.whatif.gradients.shared_update import reducing_ranks, with_shared_update
from esprof.replay.whatif.memory.blocks import RankBlocks
from esprof.replay.whatif.memory.changes import with_sharded_optimizer
from esprof.replay.whatif.scenario import Scenario
from esprof.replay.whatif.term import Edit, Kind, Term, TermPhase, word
from esprof.run.run import Run


def _shared(now: Scenario, terms: tuple[Term, ...]) -> Scenario:
    return with_shared_update(now)


def _memory(run: Run, memory: RankBlocks, term: Term) -> RankBlocks:
    return with_sharded_optimizer(memory, len(reducing_ranks(run, memory.rank)))


TERM = Kind(
    name="zero",
    examples=("zero=1",),
    meaning="Each rank holds an equal share of the states of the optimizer, updates that part of the parameters, and sends "
    "it to all others (ZeRO, stage 1; `ZeroRedundancyOptimizer` with `parameters_as_bucket_view=True`).",
    needs="All-reduces of gradients in one process group, and updates of `torch.optim`. The time is predicted on CPUs only. "
    "The peak needs recorded allocations (`esprof record --memory`).",
    assumes="All states can be shared equally. Parameters have the size of the gradients, and travel at the speed of the "
    "recorded all-reduces.",
    effect=Edit(TermPhase.REBUILD, _shared),
    memory=_memory,
    value=word("1"),
)
