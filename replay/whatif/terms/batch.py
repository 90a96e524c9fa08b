"""`batch=2x`: batches of more samples."""

from esprof.replay.whatif.memory.blocks import RankBlocks
from esprof.replay.whatif.memory.changes import with_batch
from esprof.replay.whatif.scenario import Declined, Scenario
from esprof.replay.whatif.term import Edit, Kind, Term, TermPhase, speed_up
from esprof.run.run import Run


def _unknown_time(now: Scenario, terms: tuple[Term, ...]) -> Scenario:
    raise Declined(
        "the time of batches of another size is not known from this run; record a run with them and use esprof compare"
    )


def _memory(run: Run, memory: RankBlocks, term: Term) -> RankBlocks:
    return with_batch(memory, term.value)


TERM = Kind(
    name="batch",
    examples=("batch=2x",),
    meaning="Each batch has this many times the samples. Only the peak memory is predicted, not the time.",
    needs="Recorded allocations (`esprof record --memory`).",
    assumes="All that the forward pass allocates grows with the batch, and so do temporary tensors of the backward pass; "
    "gradients and the update do not. Copies of parameters in another precision (autocast) count as if they grew.",
    effect=Edit(TermPhase.REBUILD, _unknown_time),
    memory=_memory,
    value=speed_up,
)
