"""`microbatches=16`: a pipeline job with its batch cut into other microbatches."""

from esprof.replay.whatif.graph.rescheduled import with_microbatches
from esprof.replay.whatif.scenario import Scenario
from esprof.replay.whatif.term import Edit, Kind, Term, TermPhase, whole

_MOST = 4096


def _cut(now: Scenario, terms: tuple[Term, ...]) -> Scenario:
    for term in terms:
        now = with_microbatches(now, term.value)
    return now


TERM = Kind(
    name="microbatches",
    examples=("microbatches=16", "pipeline=1f1b,microbatches=16"),
    meaning="The batch of a pipeline job is cut into this number of microbatches.",
    needs="As `pipeline=`.",
    assumes="A pass takes as long as its microbatch is large: smaller ones in fact use a device less well.",
    effect=Edit(TermPhase.REBUILD, _cut),
    value=whole(1, _MOST),
)
