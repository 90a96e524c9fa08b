"""What a plan costs: the replayed time of its schedule, its memory and traffic, and how torch runs it."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec

from esprof.analyzers.advisors.parallel.problem import Problem, Recompute, Split, Stage
from esprof.analyzers.advisors.parallel.profile import DeviceType
from esprof.core.types import Bytes, ns, us
from esprof.replay.engine.timeline import replay
from esprof.replay.schedules.graph import StageTime, schedule_graph
from esprof.replay.schedules.orders import held
from esprof.replay.schedules.pipeline import PipelineSchedule, PipelineShape

_OF_ONE = (PipelineSchedule.ONE_F_ONE_B, PipelineSchedule.GPIPE, PipelineSchedule.ZB1P)
"""Schedules with one stage a rank; of equal times, the first is preferred."""
_OF_SEVERAL = (PipelineSchedule.INTERLEAVED, PipelineSchedule.ZB1P, PipelineSchedule.ZBV)
"""Schedules with several stages a rank."""

TORCH_SCHEDULES = {
    PipelineSchedule.ONE_F_ONE_B: "Schedule1F1B",
    PipelineSchedule.GPIPE: "ScheduleGPipe",
    PipelineSchedule.INTERLEAVED: "ScheduleInterleaved1F1B",
    PipelineSchedule.ZB1P: "ScheduleInterleavedZeroBubble",
    PipelineSchedule.ZBV: "ScheduleZBVZeroBubble",
}
"""Classes of torch.distributed.pipelining."""


class PlannedStage(msgspec.Struct, frozen=True, kw_only=True):
    """Consecutive layers on replicas of one type of device."""

    first: str
    last: str
    """Names of the first and last layer."""
    layers: int
    device: DeviceType
    replicas: int
    """Each is a device, or a group of them with tensor parallelism."""
    work_us: float
    """Forward and backward of a microbatch, each replica taking an equal share of it."""
    memory_bytes: Bytes
    """Weights, gradients, optimizer state and activations of each device of the stage, with its other stages."""


class PlanTraffic(msgspec.Struct, frozen=True, kw_only=True):
    """What the device that sends most sends in a step, of each kind of traffic."""

    tensor_bytes: Bytes
    """In its tensor group; 0 if a profile does not say."""
    pipeline_bytes: Bytes
    """To the stages before and after."""
    data_bytes: Bytes
    """Gradients, to the replicas of its stages."""


class TorchPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What torch needs to run a plan."""

    mesh: dict[str, int]
    """Sizes for init_device_mesh by name: pipeline stages, replicas, and tensor group, the fastest link last."""
    schedule: str | None
    """Class of torch.distributed.pipelining; None with one stage: gradients are accumulated over the microbatches."""
    microbatches: int
    """Number of microbatches of each pipeline, whose batch is its share of all samples."""
    stages_of_rank: tuple[tuple[int, ...], ...]
    """Numbers of the stages of each rank of a pipeline."""
    parallelize: dict[str, str] = {}
    """For parallelize_module: class of the style for each module of a layer that the tensor group shares."""
    fully_shard: bool
    """Whether to shard by fully_shard(…, reshard_after_forward=False), since the optimizer state does not fit otherwise."""
    recompute: Recompute
    """What to wrap in torch.utils.checkpoint."""


class ParallelPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A split with a schedule."""

    schedule: PipelineSchedule
    stages: tuple[PlannedStage, ...]
    chunks: int
    """Stages of each device: stage s is on rank s modulo the number of ranks; with `zbv` the second half is on them in the
    opposite order."""
    tensor: int
    """Devices that share each layer."""
    microbatch: int
    """Samples of a microbatch, of which each replica of a stage takes an equal share."""
    microbatches: int
    recompute: Recompute
    is_sharded: bool
    """Whether replicas share the optimizer state, since it does not fit otherwise."""
    step_us: float
    """Replayed time of a step."""
    gap_pct: float
    """By how much that is above the lower bound."""
    idle_pct: float
    """Share of the devices' time in which they do not compute."""
    traffic: PlanTraffic
    rectangular: bool
    """Whether all stages have equally many replicas: a DeviceMesh is rectangular, other plans need process groups of their
    own."""
    torch: TorchPlan | None
    """None if the plan is not rectangular."""

    @property
    def shape(self) -> tuple[object, ...]:
        """What distinguishes the plan, except for its microbatches: the simplest is the least."""
        of_schedule = (*_OF_ONE, PipelineSchedule.INTERLEAVED, PipelineSchedule.ZBV).index(self.schedule)
        numbers = (len(self.stages), self.tensor, list(Recompute).index(self.recompute), self.is_sharded, of_schedule)
        return (*numbers, self.chunks, *((stage.layers, stage.replicas, stage.device) for stage in self.stages))

    @property
    def place(self) -> tuple[object, ...]:
        """Where the plan stands among those of equal time: the simplest first, and of these the one whose replicas have
        the larger share of a microbatch."""
        return (*self.shape, -self.microbatch)


@dataclass(frozen=True)
class Candidate:
    """A split of a problem, with equally many stages on each rank."""

    objective_us: float
    """What the search that found it minimises."""
    problem: Problem
    split: Split
    chunks: int = 1

    @property
    def ranks(self) -> int:
        return len(self.split) // self.chunks

    @property
    def tasks(self) -> int:
        """Forward and backward passes of a step, as the graph of a schedule has them."""
        return 2 * len(self.split) * self.problem.microbatches

    def plans(self, bound_us: float) -> Iterator[ParallelPlan]:
        """A plan for each schedule for which the split has memory and the profile has times."""
        # With one stage, all schedules are gradient accumulation.
        possible = _OF_SEVERAL if self.chunks > 1 else _OF_ONE if len(self.split) > 1 else _OF_ONE[:1]
        for schedule in possible:
            pipeline = PipelineShape(schedule, self.ranks, self.problem.microbatches, self.chunks)
            if pipeline.fault() or (schedule.splits_backward and not self._may_split_backward(pipeline)):
                continue
            most_held = held(pipeline)
            for is_sharded in (False, True):
                needed = self._memory_bytes(pipeline, most_held, is_sharded=is_sharded)
                # The first stages are those of the ranks, each on the type of all stages of its rank.
                first = self.split[: self.ranks]
                if all(size <= self.problem.memory[one.kind] for size, one in zip(needed, first, strict=True)):
                    yield self._plan(pipeline, needed, bound_us, is_sharded=is_sharded)
                    break

    def _may_split_backward(self, pipeline: PipelineShape) -> bool:
        """Whether the backward for weights was measured, and needs nothing that is computed again: that would have to be
        kept until then. For `zb1p` torch takes the microbatches in equal rounds."""
        rounds = max(1, pipeline.microbatches // pipeline.ranks)
        is_possible = pipeline.schedule.is_v or pipeline.microbatches % rounds == 0
        return is_possible and self.problem.weights_us is not None and self.problem.recompute is Recompute.NONE

    def _of_rank(self, pipeline: PipelineShape, rank: int) -> Sequence[Stage]:
        return [self.split[number] for number in _numbers_of_rank(pipeline, rank)]

    def _memory_bytes(self, pipeline: PipelineShape, most_held: Sequence[float], *, is_sharded: bool) -> list[float]:
        """Memory of a device of each rank."""
        return [
            self.problem.memory_bytes(self._of_rank(pipeline, rank), most, is_sharded=is_sharded)
            for rank, most in enumerate(most_held)
        ]

    def _plan(
        self,
        pipeline: PipelineShape,
        needed: Sequence[float],
        bound_us: float,
        *,
        is_sharded: bool,
    ) -> ParallelPlan:
        problem = self.problem
        # All stages of a rank are on the same devices.
        of_ranks = [self.split[pipeline.rank_of(number)] for number in range(pipeline.stages)]
        placed = [
            stage._replace(is_local=of_rank.is_local) for stage, of_rank in zip(self.split, of_ranks, strict=True)
        ]
        times = [self._time(stage) for stage in placed]
        step_us = us(replay(schedule_graph(pipeline, times)).step_ns()[0])
        stages = tuple(
            PlannedStage(
                first=problem.names[stage.first],
                last=problem.names[stage.end - 1],
                layers=stage.end - stage.first,
                device=problem.kinds[stage.kind],
                replicas=stage.replicas,
                work_us=us(time.forward_ns + time.inputs_ns + time.weights_ns),
                memory_bytes=round(needed[pipeline.rank_of(number)]),
            )
            for number, (stage, time) in enumerate(zip(self.split, times, strict=True))
        )
        devices = sum(stage.replicas for stage in self.split) / self.chunks
        busy_us = pipeline.microbatches * sum(stage.replicas * stage.work_us for stage in stages) / devices
        rectangular = len({stage.replicas for stage in self.split}) == 1
        return ParallelPlan(
            schedule=pipeline.schedule,
            stages=stages,
            chunks=self.chunks,
            tensor=problem.tensor,
            microbatch=problem.microbatch,
            microbatches=problem.microbatches,
            recompute=problem.recompute,
            is_sharded=is_sharded,
            step_us=step_us,
            gap_pct=round(100 * (step_us / bound_us - 1), 3) if bound_us else 0.0,
            idle_pct=round(100 * (1 - busy_us / step_us), 3) if step_us else 0.0,
            traffic=self._traffic(pipeline),
            rectangular=rectangular,
            torch=self._torch(pipeline, is_sharded=is_sharded) if rectangular else None,
        )

    def _torch(self, pipeline: PipelineShape, *, is_sharded: bool) -> TorchPlan:
        return TorchPlan(
            mesh={"pp": self.ranks, "dp": self.split[0].replicas, "tp": self.problem.tensor},
            schedule=TORCH_SCHEDULES[pipeline.schedule] if len(self.split) > 1 else None,
            microbatches=pipeline.microbatches,
            stages_of_rank=tuple(_numbers_of_rank(pipeline, rank) for rank in range(self.ranks)),
            parallelize=self.problem.styles,
            fully_shard=is_sharded,
            recompute=self.problem.recompute,
        )

    def _time(self, stage: Stage) -> StageTime:
        """What a stage costs; without times of the backward for weights, all of the backward is that for inputs."""
        problem, at = self.problem, stage.kind
        weights = 0.0 if problem.weights_us is None else _between(problem.weights_us[at], stage)
        forward = _between(problem.forward_us[at], stage)
        rest = _between(problem.work_us[at], stage) - forward - weights
        return StageTime(
            forward_ns=ns(forward / stage.replicas),
            inputs_ns=ns(rest / stage.replicas),
            weights_ns=ns(weights / stage.replicas),
            receive_ns=ns(float(problem.receive_us[stage.first]) / stage.replicas),
            reduce_ns=ns(problem.reduce_us(stage)),
        )

    def _traffic(self, pipeline: PipelineShape) -> PlanTraffic:
        problem = self.problem
        exchanged, sent, reduced = [], [], []
        for rank in range(self.ranks):
            numbers, mine = _numbers_of_rank(pipeline, rank), self._of_rank(pipeline, rank)
            exchanged.append(sum(problem.exchanged_bytes(stage) for stage in mine))
            # Outputs go forward, and the gradients of inputs back; nothing is sent between two stages of one rank.
            cuts = {self.split[number].first for number in numbers if number - 1 not in numbers}
            cuts |= {self.split[number].end for number in numbers if number + 1 not in numbers}
            ends = [problem.inputs[at] for at in cuts if at < problem.layers]
            sent.append(float(sum(ends)) / mine[0].replicas)
            reduced.append(sum(problem.reduced_bytes(stage) for stage in mine))
        return PlanTraffic(
            tensor_bytes=round(problem.microbatches * max(exchanged)),
            pipeline_bytes=round(problem.microbatches * max(sent)),
            data_bytes=round(max(reduced)),
        )


def _numbers_of_rank(pipeline: PipelineShape, rank: int) -> tuple[int, ...]:
    """Numbers of the stages of a rank."""
    return tuple(number for number in range(pipeline.stages) if pipeline.rank_of(number) == rank)


def _between(sums: Sequence[float], stage: Stage) -> float:
    return float(sums[stage.end] - sums[stage.first])
