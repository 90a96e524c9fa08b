"""Advice on the split of a model: the best splits of the search, priced by replay of their schedules."""

from collections.abc import Iterator
from functools import cached_property
from typing import Literal

import msgspec

from esprof.analyzers.advisors.parallel.partition import Problem, Split, lower_bound_us, search
from esprof.analyzers.advisors.parallel.profile import Devices, DeviceType, LayerProfile, matched
from esprof.core.errors import EsprofError, MismatchError, UsageError
from esprof.core.types import Bytes, ns, us
from esprof.replay.engine.timeline import replay
from esprof.replay.schedules.graph import StageTime, schedule_graph
from esprof.replay.schedules.orders import held
from esprof.replay.schedules.pipeline import PipelineSchedule, PipelineShape

_SPLITS_PRICED = 6
_PLANS_SHOWN = 5
_MAX_MICROBATCHES = 10_000
"""Most microbatches of a step: each is some nodes of a graph for each stage."""
_SCHEDULES = (PipelineSchedule.ONE_F_ONE_B, PipelineSchedule.GPIPE, PipelineSchedule.ZB1P)
"""Schedules with one stage a rank; of equal times, the first is preferred."""

_NOT_MODELLED = (
    "tensor parallelism",
    "several stages on one device",
    "recomputation and sharded optimizer state",
    "the time of the optimizer",
    "lower efficiency of smaller microbatches on each replica",
    "transfers that share a link with those of other stages",
)


class PlannedStage(msgspec.Struct, frozen=True, kw_only=True):
    """Consecutive layers on replicas of one type of device."""

    first: str
    last: str
    """Names of the first and last layer."""
    layers: int
    device: DeviceType
    replicas: int
    work_us: float
    """Forward and backward of a microbatch, each replica taking an equal share of it."""
    memory_bytes: Bytes
    """Weights, gradients, optimizer state and activations of each replica."""


class ParallelPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A split with a schedule."""

    schedule: PipelineSchedule
    stages: tuple[PlannedStage, ...]
    step_us: float
    """Replayed time of a step."""
    gap_pct: float
    """By how much that is above the lower bound."""
    idle_pct: float
    """Share of the devices' time in which they do not compute."""
    rectangular: bool
    """Whether all stages have equally many replicas: a DeviceMesh is rectangular, other plans need process groups of their
    own."""


class ParallelAdvice(msgspec.Struct, frozen=True, kw_only=True):
    """The best splits of a model over devices, with all that is needed to compute them again."""

    schema: Literal["esprof.parallel/1"] = "esprof.parallel/1"
    batch: int
    microbatches: int
    plans: tuple[ParallelPlan, ...]
    """The shortest step first."""
    one_stage: ParallelPlan | None
    """Data parallelism only, with its best number of replicas; None if the model does not fit."""
    lower_bound_us: float
    """No plan and no schedule on these devices has a shorter step."""
    warnings: tuple[str, ...]
    not_modelled: tuple[str, ...]
    profile: LayerProfile
    devices: Devices


class _Priced:
    """A problem whose splits are replayed."""

    def __init__(self, profile: LayerProfile, devices: Devices, batch: int) -> None:
        if batch < 1 or batch % profile.microbatch:
            raise UsageError(
                f"a batch of {batch} is not a multiple of the profile's microbatch of {profile.microbatch}",
                remedy="Choose another --batch, or profile the layers with another microbatch.",
            )
        if (count := batch // profile.microbatch) > _MAX_MICROBATCHES:
            raise UsageError(
                f"a batch of {batch} has {count:,} microbatches: at most {_MAX_MICROBATCHES:,} are allowed",
                remedy="Choose a smaller --batch, or profile the layers with a larger microbatch.",
            )
        self.layers = matched(profile, devices).layers
        self.problem = Problem.of(matched(profile, devices), devices, count)

    @cached_property
    def bound_us(self) -> float:
        return lower_bound_us(self.problem)

    @cached_property
    def has_weights(self) -> bool:
        """Whether the backward for weights was measured apart in all layers."""
        return all(time.weights_us is not None for one in self.layers for time in one.times.values())

    def plans(self, split: Split) -> Iterator[ParallelPlan]:
        """A plan for each schedule for which the split has memory and the profile has times."""
        # With one stage, all schedules are gradient accumulation.
        for schedule in _SCHEDULES if len(split) > 1 else _SCHEDULES[:1]:
            if schedule.splits_backward and not self.has_weights:
                continue
            pipeline = PipelineShape(schedule, len(split), self.problem.microbatches)
            needed = [self.problem.memory_bytes(*one) for one in zip(split, held(pipeline), strict=True)]
            if all(size <= self.problem.memory[stage.kind] for size, stage in zip(needed, split, strict=True)):
                yield self._plan(pipeline, split, needed)

    def _plan(self, pipeline: PipelineShape, split: Split, needed: list[float]) -> ParallelPlan:
        times = self._times(split)
        step_us = us(replay(schedule_graph(pipeline, times)).step_ns()[0])
        stages = tuple(
            PlannedStage(
                first=self.layers[stage.first].name,
                last=self.layers[stage.end - 1].name,
                layers=stage.end - stage.first,
                device=self.problem.kinds[stage.kind],
                replicas=stage.replicas,
                work_us=us(time.forward_ns + time.inputs_ns + time.weights_ns),
                memory_bytes=round(size),
            )
            for stage, time, size in zip(split, times, needed, strict=True)
        )
        devices = sum(stage.replicas for stage in split)
        busy_us = pipeline.microbatches * sum(stage.replicas * stage.work_us for stage in stages) / devices
        return ParallelPlan(
            schedule=pipeline.schedule,
            stages=stages,
            step_us=step_us,
            gap_pct=round(100 * (step_us / self.bound_us - 1), 3) if self.bound_us else 0.0,
            idle_pct=round(100 * (1 - busy_us / step_us), 3) if step_us else 0.0,
            rectangular=len({stage.replicas for stage in split}) == 1,
        )

    def _times(self, split: Split) -> list[StageTime]:
        """What each stage costs; without times of the backward for weights, all of the backward is that for inputs."""
        found = []
        for stage in split:
            kind = self.problem.kinds[stage.kind]
            mine = [layer.times[kind] for layer in self.layers[stage.first : stage.end]]
            weights = sum(one.weights_us or 0.0 for one in mine)
            found.append(
                StageTime(
                    forward_ns=ns(sum(one.forward_us for one in mine) / stage.replicas),
                    inputs_ns=ns((sum(one.backward_us for one in mine) - weights) / stage.replicas),
                    weights_ns=ns(weights / stage.replicas),
                    receive_ns=ns(float(self.problem.receive_us[stage.first]) / stage.replicas),
                    reduce_ns=ns(self.problem.reduce_us(stage)),
                )
            )
        return found


def advise_parallel(profile: LayerProfile, devices: Devices, batch: int) -> ParallelAdvice:
    """Advise how to split the model over the devices, for steps of `batch` samples.

    The search is exact for its objective, an upper bound of the time of 1F1B; replay of several schedules then ranks the
    best few splits. Raises UsageError if the batch is no multiple of the microbatch or a layer has no time on a type of
    device, EsprofError if the model does not fit.
    """
    priced = _Priced(profile, devices, batch)
    splits = search(priced.problem)
    if not splits:
        raise EsprofError(
            "the model does not fit into the memory of these devices in any split",
            remedy="Add devices or memory to the inventory, or profile a smaller microbatch.",
        )
    alone = next((split for split in splits if len(split) == 1), None)
    plans = [plan for split in splits[:_SPLITS_PRICED] for plan in priced.plans(split)]
    one_stage = [] if alone is None else list(priced.plans(alone))
    ranked = sorted({*plans, *one_stage}, key=lambda plan: (plan.step_us, len(plan.stages), _place(plan)))
    return ParallelAdvice(
        batch=batch,
        microbatches=priced.problem.microbatches,
        plans=tuple(ranked[:_PLANS_SHOWN]),
        one_stage=min(one_stage, key=lambda plan: plan.step_us, default=None),
        lower_bound_us=round(priced.bound_us, 3),
        warnings=() if priced.has_weights else ("no zero-bubble schedule: the profile has no weights_us",),
        not_modelled=_NOT_MODELLED,
        profile=profile,
        devices=devices,
    )


def check_parallel(advice: ParallelAdvice) -> None:
    """Compute advice again from the inputs in it. Raises MismatchError if it has other plans or another bound."""
    again = advise_parallel(advice.profile, advice.devices, advice.batch)
    for name in ("microbatches", "lower_bound_us", "one_stage", "plans"):
        if getattr(again, name) != getattr(advice, name):
            raise MismatchError(f"computed again from the inputs in the file, {name} differs")


def _place(plan: ParallelPlan) -> tuple[int, ...]:
    """Where the plan stands among those of equal time: schedules in the order tried, then by the sizes of stages."""
    return (_SCHEDULES.index(plan.schedule), *(stage.layers for stage in plan.stages))
