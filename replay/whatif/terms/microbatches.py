"""`microbatches=16`: a pipeline job with another number of microbatches."""

from esprof.replay.whatif.memory.blocks import RankBlocks
from esprof.replay.whatif.scenario import Declined, Scenario, changing_pipeline
from esprof.replay.whatif.term import Edit, Kind, Term, TermPhase, whole
from esprof.run.run import Run


def _resized(now: Scenario, terms: tuple[Term, ...]) -> Scenario:
    return changing_pipeline(now, microbatches=terms[0].value)


def _memory(run: Run, memory: RankBlocks, term: Term) -> RankBlocks:
    raise Declined("the memory of a pipeline with other microbatches is not known")


TERM = Kind(
    name="microbatches",
    examples=("microbatches=16",),
    meaning="A pipeline divides each batch into so many microbatches.",
    needs="What `pipeline` needs, recorded with `--shapes`.",
    assumes="N divides the batch. Operations on activations, and messages, grow with the samples of a microbatch. What a "
    "call costs, operations on parameters alone, and the host's time between operations are the same in each pass.",
    effect=Edit(TermPhase.REBUILD, _resized),
    memory=_memory,
    value=whole(1, 4096),
)
