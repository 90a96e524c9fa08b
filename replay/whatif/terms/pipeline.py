"""`pipeline=1f1b`: a pipeline job under another schedule."""

from esprof.core.errors import UsageError
from esprof.replay.schedules.pipeline import PipelineSchedule
from esprof.replay.whatif.memory.blocks import RankBlocks
from esprof.replay.whatif.memory.reordered import with_schedule
from esprof.replay.whatif.scenario import Scenario, changing_pipeline
from esprof.replay.whatif.term import Edit, Kind, Term, TermPhase
from esprof.run.run import Run


def _schedule(value: str) -> PipelineSchedule:
    try:
        return PipelineSchedule(value)
    except ValueError as error:
        raise UsageError(
            f"{value!r} is not a schedule", remedy=f"Write one of {', '.join(PipelineSchedule)}."
        ) from error


def _rescheduled(now: Scenario, terms: tuple[Term, ...]) -> Scenario:
    return changing_pipeline(now, schedule=terms[0].value)


def _memory(run: Run, memory: RankBlocks, term: Term) -> RankBlocks:
    return with_schedule(run, memory, term.value)


TERM = Kind(
    name="pipeline",
    examples=("pipeline=1f1b", "pipeline=gpipe", "pipeline=interleaved", "pipeline=zb1p"),
    meaning="The stages of a pipeline work on their microbatches in the order of another schedule.",
    needs="A run of torch.distributed.pipelining on CPUs, recorded by `esprof record`: one stage on each rank, no data "
    "parallelism, the schedule GPipe, 1F1B or ZB1P; or several, interleaved or ZB1P. Other numbers of stages need "
    "`stages=`, as in `pipeline=interleaved,stages=2+2+2+2` on two ranks. `zb1p` computes the gradients of weights apart "
    "from those of inputs: a recorded whole backward pass is divided by its operations, unless one of them computes both, "
    "as convolutions do. It is not combined with `stages=`. The peak needs recorded allocations (`esprof record --memory`), "
    "and backward passes in the same parts.",
    assumes="Both parts of a backward pass take as long as the whole. Each pass and message takes as long as recorded, "
    "and allocates and frees what was recorded.",
    effect=Edit(TermPhase.REBUILD, _rescheduled),
    memory=_memory,
    value=_schedule,
)
