"""Other numbers of microbatches: a part of each pass grows with its samples (`sized_work`), the rest stays."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from esprof.replay.schedules.graph import PipelineStep
from esprof.replay.schedules.pipeline import PipelineTask
from esprof.replay.schedules.recorded import RecordedPipeline
from esprof.replay.whatif.pipeline.stages import Restaging
from esprof.replay.whatif.samples.sized_work import SizedWork
from esprof.run.run import Run


@dataclass(frozen=True)
class Scaling:
    """The part of each pass that grows with the samples of a microbatch, by step, ns."""

    work: tuple[SizedWork, ...]
    """Work of the rank of each recorded stage."""
    steps: Mapping[int, Mapping[PipelineTask, float]]

    @classmethod
    def of(cls, run: Run, pipeline: RecordedPipeline) -> "Scaling":
        """Raises Declined if shapes were not recorded."""
        work, steps = [], {step.number: dict[PipelineTask, float]() for step in pipeline.steps}
        for passes in pipeline.passes:
            events = run.events(passes.rank)
            work.append(SizedWork.of(events, int(events.ints("tid")[passes.row[0]])))
            begin = events.ints("start_ns")[passes.row]
            sized, _ = work[-1].within(begin, begin + events.ints("dur_ns")[passes.row])
            for task, step, took, ns in zip(
                passes.tasks, passes.step.tolist(), passes.took_ns.tolist(), sized.tolist(), strict=True
            ):
                steps[step][task] = min(ns, took)
        return cls(tuple(work), steps)

    def moved(self, restaging: Restaging) -> "Scaling":
        """That of the stages with other layers."""
        of_layers = [
            {key: work.within(*spans.T)[0] for key, spans in layers.spans.items()}
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
