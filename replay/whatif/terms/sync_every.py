"""`sync_every=8`: models that the ranks train apart for eight steps, and then average (local SGD)."""

from esprof.replay.whatif.gradients.local_steps import with_local_steps
from esprof.replay.whatif.scenario import Scenario
from esprof.replay.whatif.term import Edit, Kind, Term, TermPhase, whole

_MAX_STEPS = 1_000_000


def _apart(now: Scenario, terms: tuple[Term, ...]) -> Scenario:
    now = with_local_steps(now, terms[0].value)
    return now.noted("changes the results of training: models of the ranks differ between averages")


TERM = Kind(
    name="sync_every",
    examples=("sync_every=8",),
    meaning="Each rank updates a model of its own with its own gradients, and every so many steps the ranks average "
    "their models (local SGD, `torch.distributed.algorithms.model_averaging`). All-reduces of gradients vanish. Before "
    "an average, an all-reduce of the model follows the update. In between, no rank waits for another at a gradient.",
    needs="A run of all ranks of DDP over gloo, whose all-reduces belong to one process group, and updates of "
    "`torch.optim`. With torch 2.6, sizes of all-reduces need `--shapes --stack-steps 0`.",
    assumes="Parameters have the size of the gradients. Copies into and out of DDP's buckets stay, and stand for those "
    "of an average. Other collectives stay. Without a probe, an average has no fixed cost. Whether training learns as "
    "well is not predicted: `esprof.ModelTravel` measures it.",
    effect=Edit(TermPhase.REBUILD, _apart),
    value=whole(2, _MAX_STEPS),
)
