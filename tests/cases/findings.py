"""What the rules find in a run, before findings are grouped by loss."""

from esprof.analyzers.diagnosis import found_in
from esprof.analyzers.finding import Finding
from esprof.analyzers.recorded_job import RecordedJob
from esprof.analyzers.rule import Case
from esprof.replay.replayed import Replayed
from esprof.run.run import Run


def ungrouped(of: Run | Replayed) -> list[Finding]:
    """The findings of every rule, each with what it saves alone."""
    replayed = of if isinstance(of, Replayed) else Replayed.of(of)
    return found_in(Case(replayed, RecordedJob(replayed.run)))
