"""`assign=plan.json`: workers on other devices."""

from esprof.replay.whatif.scenario import Declined, Scenario
from esprof.replay.whatif.term import Edit, Kind, Phase, Term, anything


def _declined(now: Scenario, terms: tuple[Term, ...]) -> Scenario:
    raise Declined("needs this job measured on the other devices (a probe), which this run does not hold")


TERM = Kind(
    name="assign",
    examples=("assign=plan.json",),
    meaning="Logical workers placed as this plan says.",
    needs="The job measured on the other devices, which no run holds yet: always declined.",
    effect=Edit(Phase.REFUSE, _declined),
    value=anything,
)
