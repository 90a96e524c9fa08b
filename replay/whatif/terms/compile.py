"""`compile=0`: steps in which torch.compile compiles nothing."""

from esprof.replay.whatif.graph.selections import without_share
from esprof.replay.whatif.host.compiling import compile_share
from esprof.replay.whatif.scenario import Scenario
from esprof.replay.whatif.term import Edit, Kind, Term, TermPhase, zero


def _without(now: Scenario, terms: tuple[Term, ...]) -> Scenario:
    share = compile_share(now.run, now.dfg)
    return without_share(now, terms, share, "torch.compile compiles nothing in these steps, or left no marks of it")


TERM = Kind(
    name="compile",
    examples=("compile=0", "rank3.compile=0"),
    meaning="Time of CPU threads in which torch.compile compiles vanishes. Compiled code keeps its time.",
    needs="Marks of Dynamo in the trace (`… (dynamo_timed)`).",
    effect=Edit(TermPhase.REMOVE, _without),
    value=zero,
    scoped=True,
)
