"""`accumulate=4`: each batch in equal parts, whose gradients are added up before one update."""

from esprof.replay.whatif.memory.blocks import RankBlocks
from esprof.replay.whatif.memory.changes import with_accumulation
from esprof.replay.whatif.scenario import Scenario, changing_batch
from esprof.replay.whatif.term import Edit, Kind, Term, TermPhase, whole
from esprof.run.run import Run


def _divided(now: Scenario, terms: tuple[Term, ...]) -> Scenario:
    return changing_batch(now, parts=terms[0].value)


def _memory(run: Run, memory: RankBlocks, term: Term) -> RankBlocks:
    return with_accumulation(memory, term.value)


TERM = Kind(
    name="accumulate",
    examples=("accumulate=4",),
    meaning="Each batch is divided into so many equal parts, which pass through the model one after the other. Their "
    "gradients are added up, and exchanged and used once (gradient accumulation, with `no_sync` of DDP).",
    needs="What `batch` needs, and one backward pass a step.",
    assumes="What `batch` assumes of each part. Batches are loaded as a whole. What a call costs, and the host's time "
    "between operations, are needed for each part. From the second part on, gradients are there during the forward pass, "
    "too.",
    effect=Edit(TermPhase.RESIZE, _divided),
    memory=_memory,
    value=whole(2, 4096),
)
