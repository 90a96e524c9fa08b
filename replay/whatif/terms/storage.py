"""`storage=2x`: storage that answers faster."""

from esprof.replay.whatif.scenario import Declined, Scenario
from esprof.replay.whatif.term import Edit, Kind, Phase, Term, speed_up


def _declined(now: Scenario, terms: tuple[Term, ...]) -> Scenario:
    raise Declined("needs the loader's reads apart from its decoding (stages), which no run holds yet")


TERM = Kind(
    name="storage",
    examples=("storage=2x",),
    meaning="Storage that reads so many times as fast.",
    needs="Stages of the loader, which no run holds yet: always declined.",
    effect=Edit(Phase.REFUSE, _declined),
    value=speed_up,
)
