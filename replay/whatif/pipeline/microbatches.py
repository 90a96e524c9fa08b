"""Other numbers of microbatches: what of a pass grows with its samples, and what a pass takes however few they are.

Fixed are the host's time between operations, operations on parameters alone (adding up gradients), operations that only
describe a tensor anew (views), and of each other operation as much as such a view takes: the cost of a call. The rest grows
with the samples.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import msgspec
import numpy as np

from esprof.replay.schedules.graph import PipelineStep
from esprof.replay.schedules.passes import RankPasses
from esprof.replay.schedules.pipeline import PipelineTask
from esprof.replay.schedules.recorded import RecordedPipeline
from esprof.replay.whatif.gradients.backward import GRADIENT
from esprof.replay.whatif.graph.nested_operations import innermost_around
from esprof.replay.whatif.pipeline.stages import Restaging
from esprof.replay.whatif.scenario import Declined
from esprof.run.run import Run
from esprof.run.schema import Table

_VIEWS = tuple(
    f"aten::{name}"
    for name in (
        *("alias", "as_strided", "detach", "expand", "narrow", "permute", "select", "slice", "split", "squeeze", "t"),
        *("transpose", "unsqueeze", "view"),
    )
)
"""Operations that describe a tensor anew, and touch none of its elements."""


class SizedWork:
    """The work of a rank's main thread that grows with the samples of a microbatch."""

    def __init__(self, events: Table, passes: RankPasses) -> None:
        """Raises Declined if shapes were not recorded."""
        rows = np.flatnonzero(events.is_kind("op") & (events.ints("tid") == events.ints("tid")[passes.row[0]]))
        start, took = events.ints("start_ns")[rows], events.ints("dur_ns")[rows]
        order = np.lexsort((-took, start))
        rows, start, took = rows[order], start[order], took[order]
        around = innermost_around(np.zeros(len(rows), np.int64), start, start + took, np.ones(len(rows), bool))
        own = took - np.bincount(around[around >= 0], took[around >= 0], len(rows))
        is_sized, is_view = _sized(events, rows)
        a_call = float(own[is_view].mean()) if is_view.any() else 0.0
        self._start = start
        self._until = np.append(0, np.cumsum(np.where(is_sized, np.maximum(own - a_call, 0), 0)))

    def within(self, spans: np.ndarray) -> np.ndarray:
        """The work that begins in each of these (begin, end), float64[...], ns."""
        first, behind = np.searchsorted(self._start, spans[..., 0]), np.searchsorted(self._start, spans[..., 1])
        found: np.ndarray = self._until[behind] - self._until[first]
        return found


@dataclass(frozen=True)
class Scaling:
    """The part of each pass that grows with the samples of a microbatch, by step, ns."""

    work: tuple[SizedWork, ...]
    """Of the rank of each recorded stage."""
    steps: Mapping[int, Mapping[PipelineTask, float]]

    @classmethod
    def of(cls, run: Run, pipeline: RecordedPipeline) -> "Scaling":
        """Raises Declined if shapes were not recorded."""
        work, steps = [], {step.number: dict[PipelineTask, float]() for step in pipeline.steps}
        for passes in pipeline.passes:
            events = run.events(passes.rank)
            work.append(SizedWork(events, passes))
            begin = events.ints("start_ns")[passes.row]
            sized = work[-1].within(np.stack([begin, begin + events.ints("dur_ns")[passes.row]], axis=1))
            for task, step, took, ns in zip(
                passes.tasks, passes.step.tolist(), passes.took_ns.tolist(), sized.tolist(), strict=True
            ):
                steps[step][task] = min(ns, took)
        return cls(tuple(work), steps)

    def moved(self, restaging: Restaging) -> "Scaling":
        """That of the stages with other layers."""
        of_layers = [
            {key: work.within(spans) for key, spans in layers.spans.items()}
            for work, layers in zip(self.work, restaging.layers, strict=True)
        ]
        return replace(self, steps={step: restaging.times(step, ns, of_layers) for step, ns in self.steps.items()})


def with_microbatches(pipeline: RecordedPipeline, scaling: Scaling, count: int) -> RecordedPipeline:
    """The pipeline with so many microbatches of as many samples together. Messages grow with their samples."""
    before = pipeline.shape.microbatches
    factor = before / count

    def resized(step: PipelineStep) -> PipelineStep:
        def of(times: Mapping[PipelineTask, float], grows: Mapping[PipelineTask, float]) -> dict[PipelineTask, int]:
            """For each microbatch, the time of the recorded one at its place among all; `grows` grows with its samples."""
            found = {}
            for first in [task for task in times if not task.microbatch]:
                for batch in range(count):
                    one = first._replace(microbatch=batch * before // count)
                    found[first._replace(microbatch=batch)] = round(times[one] + (factor - 1) * grows[one])
            return found

        return replace(
            step,
            tasks_ns=of(step.tasks_ns, scaling.steps[step.number]),
            receives_ns=of(step.receives_ns, step.receives_ns),
            sends_ns=of(step.sends_ns, step.sends_ns),
        )

    return replace(
        pipeline, shape=pipeline.shape._replace(microbatches=count), steps=tuple(map(resized, pipeline.steps))
    )


def _sized(events: Table, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(operations on more than parameters, operations that only describe a tensor anew), bool[rows]."""
    (name, names), (shape, shapes) = (events.codes(column) for column in ("name", "shapes"))
    read = [frozenset(map(str, msgspec.json.decode(text))) if text else frozenset[str]() for text in shapes]
    if not any(one - {"[]"} for one in read):
        raise Declined("what grows with the samples is not known without shapes (esprof record --shapes)")
    gradients = np.unique(shape[rows][np.isin(name[rows], [at for at, text in enumerate(names) if text == GRADIENT])])
    if not (gradients >= 0).any():
        raise Declined("what grows with the samples is not known without the shapes of gradients")
    fixed = {"[]"}.union(*(read[at] for at in gradients.tolist() if at >= 0))
    is_sized: np.ndarray = np.array([*(bool(one - fixed) for one in read), False])[shape[rows]]
    is_view: np.ndarray = np.array([*(text in _VIEWS for text in names), False])[name[rows]]
    return is_sized & ~is_view, is_view
