"""What a running job says of a plan, as text for a terminal."""

from esprof.core.plan import PlanStatus
from esprof.reports import units
from esprof.reports.terminal.text import PLAIN, Screen, drawn, headline


def draw_applied(told: PlanStatus, screen: Screen = PLAIN) -> str:
    """A line."""
    about = f"plan {told.plan}, version {told.version}"
    if told.state == "pending":
        return drawn(screen, headline(f"The job will adopt {about} at step {told.step}", screen))
    if told.state == "adopted":
        return drawn(screen, headline(f"The job has adopted {about} before step {told.step}", screen))
    said = {
        "kept": "keeps",
        "missed": "keeps, though it brings less than promised,",
        "reverted": "has taken back, since it made steps longer,",
    }[told.state]
    steps = f": a step takes {units.duration(told.after_us)}" if told.after_us is not None else ""
    before = f", and took {units.duration(told.before_us)} before" if told.before_us is not None else ""
    return drawn(screen, headline(f"The job {said} {about}{steps}{before}", screen))
