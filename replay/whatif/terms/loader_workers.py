"""`loader.workers=4`: another number of loader workers."""

from esprof.replay.whatif.scenario import Declined, Scenario
from esprof.replay.whatif.term import Edit, Kind, Phase, Term, number


def _declined(now: Scenario, terms: tuple[Term, ...]) -> Scenario:
    raise Declined("needs the loader's reads apart from its decoding (stages), which no run holds yet")


TERM = Kind(
    name="loader.workers",
    examples=("loader.workers=4",),
    meaning="DataLoaders with so many workers.",
    needs="Stages of the loader, which no run holds yet: always declined.",
    effect=Edit(Phase.REFUSE, _declined),
    value=number,
)
