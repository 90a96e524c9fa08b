"""`pipeline=1f1b`: a pipeline job under another schedule."""

from esprof.core.errors import UsageError
from esprof.replay.schedules.pipeline import PipelineSchedule
from esprof.replay.schedules.recorded import SCHEDULES
from esprof.replay.whatif.graph.rescheduled import with_schedule
from esprof.replay.whatif.scenario import Scenario
from esprof.replay.whatif.term import Edit, Kind, Term, TermPhase


def _schedule(value: str) -> PipelineSchedule:
    if value not in SCHEDULES:
        raise UsageError(f"{value!r} is not a schedule", remedy=f"Write one of {', '.join(SCHEDULES)}.")
    return PipelineSchedule(value)


def _rescheduled(now: Scenario, terms: tuple[Term, ...]) -> Scenario:
    for term in terms:
        now = with_schedule(now, term.value)
    return now


TERM = Kind(
    name="pipeline",
    examples=("pipeline=1f1b", "pipeline=gpipe"),
    meaning="The stages of a pipeline work on their microbatches in the order of another schedule.",
    needs="A run of torch.distributed.pipelining on CPUs, recorded by `esprof record`: one stage on each rank, no data "
    "parallelism, the schedule GPipe or 1F1B.",
    assumes="Each pass and message takes as long as recorded, and the activations fit into memory.",
    effect=Edit(TermPhase.REBUILD, _rescheduled),
    value=_schedule,
)
