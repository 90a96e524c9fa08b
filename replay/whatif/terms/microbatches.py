"""`microbatches=16`: a pipeline job with another number of microbatches."""

from esprof.replay.whatif.scenario import Scenario, changing_pipeline
from esprof.replay.whatif.term import Edit, Kind, Term, TermPhase, whole


def _resized(now: Scenario, terms: tuple[Term, ...]) -> Scenario:
    return changing_pipeline(now, microbatches=terms[0].value)


TERM = Kind(
    name="microbatches",
    examples=("microbatches=16",),
    meaning="A pipeline divides each batch into so many microbatches.",
    needs="What `pipeline` needs, recorded with `--shapes`.",
    assumes="N divides the batch. Operations on activations, and messages, grow with the samples of a microbatch. What a "
    "call costs, operations on parameters alone, and the host's time between operations are the same in each pass.",
    effect=Edit(TermPhase.REBUILD, _resized),
    value=whole(1, 4096),
)
