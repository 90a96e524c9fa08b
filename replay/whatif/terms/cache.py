"""`cache=0.5`: a cache for the loader's reads."""

from esprof.replay.whatif.scenario import Declined, Scenario
from esprof.replay.whatif.term import Edit, Kind, Phase, Term, number


def _declined(now: Scenario, terms: tuple[Term, ...]) -> Scenario:
    raise Declined("needs the loader's reads apart from its decoding (stages), which no run holds yet")


TERM = Kind(
    name="cache",
    examples=("cache=0.5",),
    meaning="A cache that answers this share of the loader's reads.",
    needs="Stages of the loader, which no run holds yet: always declined.",
    effect=Edit(Phase.REFUSE, _declined),
    value=number,
)
