"""The steps of a recorded pipeline job under another schedule, with other stages, or with other microbatches."""

from dataclasses import replace

import numpy as np

from esprof.core.errors import UsageError
from esprof.replay.engine.timeline import replay
from esprof.replay.schedules.orders import held
from esprof.replay.schedules.pipeline import PipelineSchedule, PipelineShape
from esprof.replay.schedules.recorded import SCHEDULES, NoPipeline, RecordedPipeline, recorded_pipeline
from esprof.replay.whatif.pipeline.layers import stage_layers
from esprof.replay.whatif.pipeline.microbatches import Scaling, with_microbatches
from esprof.replay.whatif.pipeline.parts import as_wholes, in_parts
from esprof.replay.whatif.pipeline.stages import Restaging, restaged
from esprof.replay.whatif.scenario import Declined, PipelineChange, Scenario
from esprof.run.run import Run

_MAX_OFF = 0.1
"""Largest error of the recorded schedule, rebuilt from its passes and messages, with which another one is predicted."""

_UNEVEN = 2
"""Factor up to which sizes of messages may differ because the microbatches do."""


def with_pipeline(now: Scenario, change: PipelineChange) -> Scenario:
    """`now` with its pipeline changed. Raises Declined."""
    try:
        recorded = recorded_pipeline(now.run, now.dfg)
    except NoPipeline as reason:
        raise Declined(str(reason)) from reason
    factor = _as_recorded(now, recorded)
    changed, scaling = recorded, None
    _refuse_together(recorded.shape, change)
    if change.microbatches is not None:
        scaling = Scaling.of(now.run, recorded)
    if change.stages is not None:
        _refuse_unlike_messages(now, recorded)
        restaging = Restaging(recorded.shape, stage_layers(now.run, recorded), change.stages)
        changed = restaged(recorded, restaging)
        now = now.noted(*restaging.notes)
        scaling = None if scaling is None else scaling.moved(restaging)
    if change.microbatches is not None:
        assert scaling is not None
        changed = with_microbatches(changed, scaling, change.microbatches)
    if change.schedule is not None:
        _refuse_unknown(change.schedule, changed.shape)
        changed = _with_passes_of(change.schedule, now.run, changed)
        changed = replace(changed, shape=changed.shape._replace(schedule=change.schedule))
    try:
        drawn = changed.scaled(factor).graph()
    except UsageError as error:
        raise Declined(error.reason) from error
    return replace(now, dfg=drawn).noted(*_held(recorded.shape, changed.shape))


def _with_passes_of(schedule: PipelineSchedule, run: Run, pipeline: RecordedPipeline) -> RecordedPipeline:
    """The pipeline with backward passes in parts or as wholes, as the schedule has them. Raises Declined."""
    if schedule.splits_backward == pipeline.shape.schedule.splits_backward:
        return pipeline
    return in_parts(run, pipeline) if schedule.splits_backward else as_wholes(pipeline)


def _refuse_together(recorded: PipelineShape, change: PipelineChange) -> None:
    """Raise Declined if the times of passes that are computed in parts would be needed of other stages or microbatches."""
    wanted = change.schedule or recorded.schedule
    if change.stages is not None and (recorded.schedule.splits_backward or wanted.splits_backward):
        raise Declined("how backward passes divide into parts on other stages is not known: leave out stages=")
    if change.microbatches is not None and recorded.schedule.splits_backward != wanted.splits_backward:
        raise Declined(f"{wanted} with other microbatches is not known from {recorded.schedule}: change one of them")


def _refuse_unknown(schedule: PipelineSchedule, shape: PipelineShape) -> None:
    """Raise Declined if the recorded passes do not tell how long those of this schedule take."""
    if schedule not in SCHEDULES:
        raise Declined(f"{schedule}: how torch waits for its messages is not known")
    if schedule == PipelineSchedule.INTERLEAVED and shape.chunks == 1:
        raise Declined(f"{schedule}: a rank has one stage; add stages= with two or more for each rank")
    rounds = max(1, shape.microbatches // shape.ranks)
    if schedule == PipelineSchedule.ZB1P and shape.microbatches % rounds:
        raise Declined(f"{schedule}: torch needs a number of microbatches that is a multiple of {rounds}")


def _refuse_unlike_messages(now: Scenario, pipeline: RecordedPipeline) -> None:
    """Raise Declined if what stages send each other depends on where the model is cut."""
    sizes = [now.dfg.bytes[now.dfg.nodes_of(rank)] for rank in pipeline.ranks]
    sent = np.concatenate([of_rank[of_rank > 0] for of_rank in sizes])
    if len(sent) and sent.max() > _UNEVEN * sent.min():
        raise Declined(
            "messages between its stages differ in size, so that they are unknown where stages end elsewhere"
        )


def _as_recorded(now: Scenario, pipeline: RecordedPipeline) -> float:
    """The factor of all times with which the recorded schedule takes as long as recorded. Raises Declined."""
    at = np.flatnonzero(np.isin(now.dfg.marks.steps, now.steps))
    recorded, built = (replay(dfg).step_ns()[at].mean() for dfg in (now.dfg, pipeline.graph()))
    if abs(built / recorded - 1) > _MAX_OFF:
        raise Declined(
            f"the times of its passes give the recorded schedule with an error of {built / recorded - 1:+.0%}"
        )
    return float(recorded / built)


def _held(recorded: PipelineShape, changed: PipelineShape) -> tuple[str, ...]:
    """What to say if a rank holds the activations of more or fewer samples, in microbatches as recorded."""
    before, after = (max(held(shape)) for shape in (recorded, changed))
    after *= recorded.microbatches / changed.microbatches
    if round(before, 2) == round(after, 2):
        return ()
    return (f"a rank holds the activations of up to {after:g} microbatches, not of {before:g}",)
