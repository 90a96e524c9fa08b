"""The stages of a recorded pipeline job with other layers, or with several stages on each rank."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from statistics import mean

import numpy as np

from esprof.core.types import Ns
from esprof.replay.schedules.graph import PipelineStep
from esprof.replay.schedules.pipeline import PipelineSchedule, PipelineShape, PipelineTask, StagePass
from esprof.replay.schedules.recorded import RecordedPipeline
from esprof.replay.whatif.pipeline.layers import StageLayers, StepTask
from esprof.replay.whatif.scenario import Declined

LayerTimes = Sequence[Mapping[StepTask, np.ndarray]]
"""For each recorded stage, by step and pass: a time for each of its layers, ns."""


@dataclass(frozen=True)
class Restaging:
    """Which layers each stage gets: the numbers `counts` of layers of all stages, in order of the layers as recorded.

    A layer takes as long on another rank as a layer of its kind takes there in the same pass. What a pass takes beside its
    layers stays with the first and the last stage, and each other stage of a rank takes it once.
    """

    recorded: PipelineShape
    layers: tuple[StageLayers, ...]
    """Layers of each recorded stage."""
    counts: tuple[int, ...]

    @cached_property
    def shape(self) -> PipelineShape:
        """The shape with these stages; torch runs several stages a rank interleaved. Raises Declined."""
        ranks, total = self.recorded.ranks, len(self._found_at)
        if sum(self.counts) != total:
            raise Declined(f"the stages have {sum(self.counts)} layers together, the model has {total}")
        if len(self.counts) % ranks:
            raise Declined(f"{len(self.counts)} stages cannot be divided among {ranks} ranks")
        chunks = len(self.counts) // ranks
        schedule = self.recorded.schedule
        if chunks != self.recorded.chunks:
            schedule = PipelineSchedule.INTERLEAVED if chunks > 1 else PipelineSchedule.ONE_F_ONE_B
        return self.recorded._replace(schedule=schedule, chunks=chunks)

    def times(self, step: int, tasks: Mapping[PipelineTask, float], of_layers: LayerTimes) -> dict[PipelineTask, float]:
        """The time of each pass of a step, ns, from those of the recorded passes and of their layers. Raises Declined."""
        found = {}
        for kind in (StagePass.FORWARD, StagePass.BACKWARD):
            for batch in range(self.recorded.microbatches):
                recorded = [PipelineTask(kind, stage, batch) for stage in range(self.recorded.stages)]
                own = [times[step, task] for times, task in zip(of_layers, recorded, strict=True)]
                beside = [max(0.0, tasks[task] - float(ns.sum())) for task, ns in zip(recorded, own, strict=True)]
                for stage, layers in enumerate(self._layers_of):
                    took = sum(self._time(layer, stage, own) for layer in layers)
                    found[PipelineTask(kind, stage, batch)] = took + self._beside(stage, beside)
        return found

    def after_ns(self, place: int, step: int, recorded_ns: Ns) -> Ns:
        """What the rank at this place does after the passes: its optimizer takes as long for each parameter as recorded."""
        mine = [self.layers[stage] for stage in self._recorded_on(place)]
        before = sum(int(one.parameters.sum()) for one in mine)
        moved = sum(self._parameters(layer) for layer in self._layers_on(place)) - before
        every = sum(one.all_parameters for one in mine)
        return recorded_ns + (round(mine[0].optimizer_ns[step] * moved / every) if every else 0)

    @property
    def notes(self) -> Iterator[str]:
        """What should be said of the prediction."""
        if not all(one.all_parameters for one in self.layers):
            yield "the optimizer takes as long on each rank as recorded: gradients were not recorded"

    @cached_property
    def _found_at(self) -> list[tuple[int, int]]:
        """(recorded stage, number in it) of each layer."""
        return [(stage, at) for stage, one in enumerate(self.layers) for at in range(len(one.kinds))]

    @cached_property
    def _layers_of(self) -> list[range]:
        """The layers of each stage."""
        return [
            range(behind - count, behind) for behind, count in zip(accumulate(self.counts), self.counts, strict=True)
        ]

    def _layers_on(self, place: int) -> Iterator[int]:
        """The layers on the rank at this place."""
        for layers in self._layers_of[place :: self.recorded.ranks]:
            yield from layers

    def _recorded_on(self, place: int) -> range:
        """The recorded stages of the rank at this place."""
        return range(place, self.recorded.stages, self.recorded.ranks)

    def _kind(self, layer: int) -> str:
        stage, at = self._found_at[layer]
        return self.layers[stage].kinds[at]

    def _parameters(self, layer: int) -> int:
        stage, at = self._found_at[layer]
        return int(self.layers[stage].parameters[at])

    def _time(self, layer: int, stage: int, recorded: Sequence[np.ndarray]) -> float:
        """The time of a layer in a pass of this stage, from those of the layers of the recorded stages."""
        before, at = self._found_at[layer]
        if before % self.recorded.ranks == stage % self.recorded.ranks:
            return float(recorded[before][at])
        alike = [
            float(recorded[one][n])
            for one in self._recorded_on(stage % self.recorded.ranks)
            for n, kind in enumerate(self.layers[one].kinds)
            if kind == self._kind(layer)
        ]
        if not alike:
            raise Declined(f"no layer like number {layer} ran on the rank of stage {stage}: its time there is unknown")
        return mean(alike)

    def _beside(self, stage: int, recorded: Sequence[float]) -> float:
        """What a pass of this stage takes beside its layers, from that of the recorded stages."""
        # An embedding or a loss is what the first or the last stage does more than the others.
        if stage in (0, len(self.counts) - 1):
            return recorded[0 if stage == 0 else -1]
        inner = [recorded[one] for one in self._recorded_on(stage % self.recorded.ranks) if 0 < one < len(recorded) - 1]
        return mean(inner) if inner else min(recorded)


def restaged(pipeline: RecordedPipeline, restaging: Restaging) -> RecordedPipeline:
    """The pipeline with these stages. Raises Declined."""
    shape, times = restaging.shape, [layers.times_ns for layers in restaging.layers]
    steps = []
    for step in pipeline.steps:
        found = restaging.times(step.number, step.tasks_ns, times)
        after = [restaging.after_ns(place, step.number, ns) for place, ns in enumerate(step.after_ns)]
        tasks = {task: round(ns) for task, ns in found.items()}
        changed = replace(step, stages=[step.stages[0]] * shape.stages, tasks_ns=tasks, after_ns=after)
        steps.append(changed if shape.chunks == pipeline.shape.chunks else _with_messages(changed, shape))
    return replace(pipeline, shape=shape, steps=tuple(steps))


def _with_messages(step: PipelineStep, shape: PipelineShape) -> PipelineStep:
    """The step with messages to and from its passes, each as long as the rank's recorded ones on average."""

    def usual(recorded: Mapping[PipelineTask, Ns]) -> dict[PipelineTask, Ns]:
        of_place = [[ns for task, ns in recorded.items() if shape.rank_of(task.stage) == n] for n in range(shape.ranks)]
        means = [round(mean(ns)) if ns else 0 for ns in of_place]
        return {task: means[shape.rank_of(task.stage)] for task in step.tasks_ns}

    return replace(step, receives_ns=usual(step.receives_ns), sends_ns=usual(step.sends_ns))
