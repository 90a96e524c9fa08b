"""`assign=plan.json`: workers on other devices."""

from esprof.replay.whatif.term import Kind, anything, refused

TERM = Kind(
    name="assign",
    examples=("assign=plan.json",),
    meaning="Logical workers placed as this plan says.",
    needs="The job measured on the other devices, which no run holds yet: always declined.",
    effect=refused("needs this job measured on the other devices (a probe), which this run does not hold"),
    value=anything,
)
