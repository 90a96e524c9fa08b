"""The steps of a recorded pipeline job under another schedule."""

from dataclasses import replace

import numpy as np

from esprof.replay.engine.timeline import replay
from esprof.replay.schedules.orders import held
from esprof.replay.schedules.pipeline import PipelineSchedule
from esprof.replay.schedules.recorded import NoPipeline, RecordedPipeline, recorded_pipeline
from esprof.replay.whatif.scenario import Declined, Scenario

_MAX_OFF = 0.1
"""Largest error of the recorded schedule, rebuilt from its passes and messages, with which another one is predicted."""


def with_schedule(now: Scenario, schedule: PipelineSchedule) -> Scenario:
    """`now` under another schedule. Raises Declined."""
    pipeline = _pipeline(now)
    changed = pipeline.under(schedule)
    if fault := changed.shape.fault():
        raise Declined(f"{schedule}: {fault}")
    before, after = (max(held(one.shape)) for one in (pipeline, changed))
    now = replace(now, dfg=changed.graph(), pipeline=changed)
    if before == after:
        return now
    return now.noted(f"a rank holds the activations of up to {after:g} microbatches, not of {before:g}")


def _pipeline(now: Scenario) -> RecordedPipeline:
    """That of `now`, with times at which the recorded schedule takes as long as recorded. Raises Declined."""
    if now.pipeline is not None:
        return now.pipeline
    try:
        pipeline = recorded_pipeline(now.run, now.dfg)
    except NoPipeline as reason:
        raise Declined(str(reason)) from reason
    at = np.flatnonzero(np.isin(now.dfg.marks.steps, now.steps))
    recorded, built = (replay(dfg).step_ns()[at].mean() for dfg in (now.dfg, pipeline.graph()))
    if abs(built / recorded - 1) > _MAX_OFF:
        raise Declined(
            f"the times of its passes give the recorded schedule with an error of {built / recorded - 1:+.0%}"
        )
    return pipeline.scaled(recorded / built)
