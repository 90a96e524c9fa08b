"""`compress=powersgd:4`: compressed gradients."""

from esprof.replay.whatif.scenario import Declined, Scenario
from esprof.replay.whatif.term import Edit, Kind, Phase, Term, anything


def _declined(now: Scenario, terms: tuple[Term, ...]) -> Scenario:
    raise Declined(
        "needs measured costs of the compressor and of the collectives (a probe), which this run does not hold"
    )


TERM = Kind(
    name="compress",
    examples=("compress=powersgd:4",),
    meaning="Gradients compressed by this codec.",
    needs="Measured costs of the codec and of the collectives, which no run holds yet: always declined.",
    effect=Edit(Phase.REFUSE, _declined),
    value=anything,
)
