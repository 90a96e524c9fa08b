"""`unused_gradients=0`: no backward pass computes gradients that no optimizer uses."""

from esprof.replay.whatif.gradients.marked_calls import backward_ranges, calls_with_unused_gradients, marked_share
from esprof.replay.whatif.graph.selections import without_share
from esprof.replay.whatif.scenario import Scenario
from esprof.replay.whatif.term import Edit, Kind, Term, TermPhase, zero


def _without_gradients(now: Scenario, terms: tuple[Term, ...]) -> Scenario:
    share = marked_share(now, calls_with_unused_gradients, backward_ranges)
    return without_share(now, terms, share, "no backward pass was recorded whose gradients no optimizer uses")


TERM = Kind(
    name="unused_gradients",
    examples=("unused_gradients=0", "rank3.unused_gradients=0"),
    meaning="Calls of models whose gradients no optimizer uses have no backward pass, unless their inputs need a gradient.",
    needs="A window of `esprof record` with such calls.",
    assumes="The job uses these gradients for nothing else.",
    effect=Edit(TermPhase.REMOVE, _without_gradients),
    value=zero,
    scoped=True,
)
