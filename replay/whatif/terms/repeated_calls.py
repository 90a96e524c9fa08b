"""`repeated_calls=0`: no module is called again with inputs that it has had in the same step."""

from esprof.replay.whatif.gradients.marked_calls import marked_share, ranges_of_repeated, repeated_calls
from esprof.replay.whatif.graph.selections import without_share
from esprof.replay.whatif.scenario import Scenario
from esprof.replay.whatif.term import Edit, Kind, Term, TermPhase, zero


def _without_repeats(now: Scenario, terms: tuple[Term, ...]) -> Scenario:
    share = marked_share(now, repeated_calls, ranges_of_repeated)
    return without_share(now, terms, share, "no call of a module was recorded that had the same inputs as another")


TERM = Kind(
    name="repeated_calls",
    examples=("repeated_calls=0", "rank3.repeated_calls=0"),
    meaning="No model, and no part of it, is called again with the same inputs and weights in a step.",
    needs="A window of `esprof record` with such calls.",
    effect=Edit(TermPhase.REMOVE, _without_repeats),
    value=zero,
    scoped=True,
)
