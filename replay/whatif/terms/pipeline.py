"""`pipeline=1f1b`: a pipeline job under another schedule."""

from esprof.core.errors import UsageError
from esprof.replay.schedules.pipeline import PipelineSchedule
from esprof.replay.whatif.scenario import Scenario, changing_pipeline
from esprof.replay.whatif.term import Edit, Kind, Term, TermPhase


def _schedule(value: str) -> PipelineSchedule:
    try:
        return PipelineSchedule(value)
    except ValueError as error:
        raise UsageError(
            f"{value!r} is not a schedule", remedy=f"Write one of {', '.join(PipelineSchedule)}."
        ) from error


def _rescheduled(now: Scenario, terms: tuple[Term, ...]) -> Scenario:
    return changing_pipeline(now, schedule=terms[0].value)


TERM = Kind(
    name="pipeline",
    examples=("pipeline=1f1b", "pipeline=gpipe", "pipeline=interleaved"),
    meaning="The stages of a pipeline work on their microbatches in the order of another schedule.",
    needs="A run of torch.distributed.pipelining on CPUs, recorded by `esprof record`: one stage on each rank, no data "
    "parallelism, the schedule GPipe or 1F1B; or several, interleaved. Other numbers of stages need `stages=`, as in "
    "`pipeline=interleaved,stages=2+2+2+2` on two ranks. Schedules that compute the gradients of weights apart (`zb1p`) "
    "are declined: a whole backward pass does not tell the time of its parts.",
    assumes="Each pass and message takes as long as recorded, and the activations fit into memory.",
    effect=Edit(TermPhase.REBUILD, _rescheduled),
    value=_schedule,
)
