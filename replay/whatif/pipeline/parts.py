"""The parts of the backward passes of a recorded pipeline job: for the gradients of inputs, and for those of weights.

A whole pass is divided by its operations (`weights_ns`). On the first stage torch computes all gradients in the part for
weights, since nobody needs those of its inputs. Two parts take as long as the whole.
"""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from esprof.core.types import Ns
from esprof.replay.schedules.graph import PipelineStep
from esprof.replay.schedules.passes import RankPasses
from esprof.replay.schedules.pipeline import PipelineTask, StagePass
from esprof.replay.schedules.recorded import RecordedPipeline
from esprof.replay.whatif.gradients.backward import AUTOGRAD_NODE
from esprof.replay.whatif.gradients.weights import weights_ns
from esprof.replay.whatif.graph.nested_operations import innermost_around, nested_rows
from esprof.replay.whatif.scenario import Declined
from esprof.run.run import Run
from esprof.run.schema import Table

_B, _I, _W = StagePass.BACKWARD, StagePass.INPUTS, StagePass.WEIGHTS

Shares = Mapping[tuple[int, PipelineTask], float]
"""(step, backward pass) -> the share of its time that is for weights."""


def in_parts(run: Run, pipeline: RecordedPipeline) -> RecordedPipeline:
    """The pipeline with each backward pass divided in two. Raises Declined if an operation computes both kinds of
    gradients."""
    shares: dict[tuple[int, PipelineTask], float] = {}
    for passes in pipeline.passes:
        shares |= _shares(run.events(passes.rank), passes)
    return replace(pipeline, steps=tuple(_divided(step, shares) for step in pipeline.steps))


def as_wholes(pipeline: RecordedPipeline) -> RecordedPipeline:
    """The pipeline with the two parts of each backward pass as one."""
    return replace(pipeline, steps=tuple(map(_joined, pipeline.steps)))


def _divided(step: PipelineStep, shares: Shares) -> PipelineStep:
    tasks = dict[PipelineTask, Ns]()
    for task, took in step.tasks_ns.items():
        if task.kind != _B:
            tasks[task] = took
            continue
        tasks[task._replace(kind=_W)] = for_weights = round(took * shares[step.number, task])
        tasks[task._replace(kind=_I)] = took - for_weights
    return _with_tasks(step, tasks, {_B: _I})


def _joined(step: PipelineStep) -> PipelineStep:
    tasks = dict[PipelineTask, Ns]()
    for task, took in step.tasks_ns.items():
        whole = task._replace(kind=_B) if task.kind in (_I, _W) else task
        tasks[whole] = tasks.get(whole, 0) + took
    return _with_tasks(step, tasks, {_I: _B})


def _with_tasks(
    step: PipelineStep, tasks: dict[PipelineTask, Ns], kinds: Mapping[StagePass, StagePass]
) -> PipelineStep:
    """The step with these tasks; messages go to and from tasks of other `kinds`."""

    def renamed(times: Mapping[PipelineTask, Ns]) -> dict[PipelineTask, Ns]:
        return {task._replace(kind=kinds.get(task.kind, task.kind)): took for task, took in times.items()}

    return replace(step, tasks_ns=tasks, receives_ns=renamed(step.receives_ns), sends_ns=renamed(step.sends_ns))


def _shares(events: Table, passes: RankPasses) -> dict[tuple[int, PipelineTask], float]:
    start, end, for_weights = _weights(events, int(events.ints("tid")[passes.row[0]]))
    found = {}
    for step, task, row in zip(passes.step.tolist(), passes.tasks, passes.row.tolist(), strict=True):
        if task.kind != _B:
            continue
        begin = events.ints("start_ns")[row]
        took = int(events.ints("dur_ns")[row])
        inside = (start >= begin) & (end <= begin + took)
        share = float(for_weights[inside].sum()) / max(took, 1)
        found[step, task] = 1.0 if task.stage == 0 else min(share, 1.0)
    return found


def _weights(events: Table, tid: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(begin, end, time for weights) of the operations of a thread, int64[N], ns. Raises Declined."""
    rows, thread, start, end = nested_rows(events, events.is_kind("op") & (events.ints("tid") == tid))
    codes, texts = events.codes("name")
    names = [texts[code] for code in codes[rows].tolist()]
    is_node = np.array([name.startswith(AUTOGRAD_NODE) for name in names], bool)
    is_outermost = is_node & (innermost_around(thread, start, end, is_node) < 0)
    node = np.where(is_outermost, np.arange(len(rows)), innermost_around(thread, start, end, is_outermost))
    # A stage behind the first needs the gradients of all its inputs.
    found, is_known = weights_ns(names, node, end - start, np.ones(len(rows), bool))
    if not is_known:
        raise Declined("an operation computes gradients of inputs and of weights at once, so their times are unknown")
    if not is_node.any():
        raise Declined("the operations of backward passes were not recorded")
    return start, end, found
