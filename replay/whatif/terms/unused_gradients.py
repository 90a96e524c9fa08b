"""`unused_gradients=0`: no backward pass computes gradients of models that no optimizer changes."""

from functools import partial

from esprof.replay.whatif.gradients.marked_calls import backward_ranges, calls_marked, marked_share
from esprof.replay.whatif.graph.selections import without_share
from esprof.replay.whatif.scenario import Scenario
from esprof.replay.whatif.term import Edit, Kind, Term, TermPhase, zero
from esprof.run.raw.call_marks import NOT_OPTIMIZED


def _without_gradients(now: Scenario, terms: tuple[Term, ...]) -> Scenario:
    share = marked_share(now, partial(calls_marked, mark=NOT_OPTIMIZED), backward_ranges)
    return without_share(now, terms, share, "no backward pass of a model was recorded that no optimizer changes")


TERM = Kind(
    name="unused_gradients",
    examples=("unused_gradients=0", "rank3.unused_gradients=0"),
    meaning="Models that no optimizer changes have no backward pass, unless their inputs need a gradient.",
    needs="A window of `esprof record` with calls of such models.",
    assumes="The job uses their gradients for nothing else.",
    effect=Edit(TermPhase.REMOVE, _without_gradients),
    value=zero,
    scoped=True,
)
