"""`batch=2x`: batches of more samples."""

from esprof.replay.whatif.memory.blocks import RankBlocks
from esprof.replay.whatif.memory.changes import with_batch
from esprof.replay.whatif.scenario import Scenario, changing_batch
from esprof.replay.whatif.term import Edit, Kind, Term, TermPhase, speed_up
from esprof.run.run import Run


def _larger(now: Scenario, terms: tuple[Term, ...]) -> Scenario:
    return changing_batch(now, factor=terms[0].value)


def _memory(run: Run, memory: RankBlocks, term: Term) -> RankBlocks:
    return with_batch(memory, term.value)


TERM = Kind(
    name="batch",
    examples=("batch=2x",),
    meaning="Each batch has this many times the samples. The time is predicted on CPUs only.",
    needs="The time: recorded shapes (`esprof record --shapes`). The peak: recorded allocations (`esprof record "
    "--memory`).",
    assumes="Operations on samples, and batches to be loaded, take proportionally longer. What a call costs, the host's "
    "time between operations, updates, and the exchange of gradients stay. A product or convolution that reads its "
    "parameters, or writes their gradients, may grow less: its range widens the interval. Collectives carry no "
    "activations. All that the forward pass allocates grows, and so do temporary tensors of the backward pass. Copies of "
    "parameters in another precision (autocast) count as if they grew.",
    effect=Edit(TermPhase.RESIZE, _larger),
    memory=_memory,
    value=speed_up,
)
