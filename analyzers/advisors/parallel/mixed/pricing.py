"""What stages that mix types of devices cost, and the replayed step of a plan.

A stage is as slow as its slowest replica, and the shards of a replica share one link. A transfer between two stages takes
its time twice: on the link, while both compute, and in the later stage, which waits for it. Of several simple assumptions,
this one predicts measured plans best (docs/results/mixed-gpus.md).
"""

from collections.abc import Sequence
from functools import cache, cached_property
from typing import NamedTuple

import numpy as np

from esprof.analyzers.advisors.parallel.limits import objective_us
from esprof.analyzers.advisors.parallel.mixed.profile import MixedPlan, MixedProfile, MixedStage, Replica
from esprof.analyzers.advisors.parallel.profile import Devices
from esprof.core.errors import UsageError
from esprof.core.types import ns, us
from esprof.replay.dfg import LaneKind
from esprof.replay.engine.timeline import replay
from esprof.replay.schedules.graph import PipelineStep, StageTime, steps_graph
from esprof.replay.schedules.pipeline import PipelineSchedule, PipelineShape

MAX_MICROBATCHES = 10_000
"""Most microbatches of a step: each is some nodes of a graph for each stage."""

_US_PER_S = 1e6


class LayerRanges(NamedTuple):
    """Sums over the layers from each one to before each other one on one replica, float64[L + 1, L + 1]."""

    forward_us: np.ndarray
    backward_us: np.ndarray
    update_us: np.ndarray
    """Time of the optimizer, once a step."""
    parameters: np.ndarray
    """Bytes on one device."""
    kept: np.ndarray
    """Bytes of activations of a microbatch on one device."""

    @property
    def work_us(self) -> np.ndarray:
        """Time of both passes of a microbatch."""
        work: np.ndarray = self.forward_us + self.backward_us
        return work


class MixedPricing:
    """Costs of stages of one model on some devices."""

    def __init__(self, profile: MixedProfile, devices: Devices) -> None:
        self.profile = profile
        self.devices = devices
        self.ranges = cache(self._ranges)

    def _ranges(self, replica: Replica, microbatch: int) -> LayerRanges:
        """The sums on a replica. Raises UsageError if the profile has no times of it."""
        if not self.profile.has(replica.device, microbatch, replica.tensor):
            raise UsageError(
                f"{self.profile.model} was not measured on {replica.device} with microbatch {microbatch} "
                f"and tensor degree {replica.tensor}"
            )
        times = np.array(self.profile.times[replica.device][microbatch][replica.tensor]) * _US_PER_S
        sizes = self.profile.sizes[replica.tensor]
        columns = (*times.T, [one.parameter_bytes for one in sizes], [one.kept_bytes * microbatch for one in sizes])
        return LayerRanges(*(_between(column) for column in columns))

    @cached_property
    def _sent(self) -> np.ndarray:
        """Time to send the input of each layer of one sample, µs, float64[L + 1]."""
        outputs = [one.output_bytes for one in next(iter(self.profile.sizes.values()))]
        return np.array([0.0, *outputs]) * self.devices.us_per_byte_between()

    def receive_us(self, microbatch: int) -> np.ndarray:
        """Transfer of the input of a stage that begins with each layer, one way, float64[L + 1]."""
        sent: np.ndarray = self._sent * microbatch
        return sent

    def reduce_us(self, replicas: Sequence[Replica], microbatch: int) -> np.ndarray:
        """Ring all-reduce of a stage's gradients, float64[L + 1, L + 1]: 2 (r − 1)/r of all shards pass the link of each
        replica."""
        kinds = {one.device for one in replicas}
        per_byte = self.devices.us_per_byte(min(kinds)) if len(kinds) == 1 else 1e-3 / self.devices.network_gb_per_s
        most = np.max([one.tensor * self.ranges(one, microbatch).parameters for one in set(replicas)], axis=0)
        reduced: np.ndarray = 2 * (len(replicas) - 1) / len(replicas) * per_byte * most
        return reduced

    def update_us(self, replicas: Sequence[Replica], microbatch: int) -> np.ndarray:
        """Time of the optimizer on the slowest replica, float64[L + 1, L + 1]."""
        slowest: np.ndarray = np.max([self.ranges(one, microbatch).update_us for one in set(replicas)], axis=0)
        return slowest

    def stage_us(self, replicas: Sequence[Replica], microbatch: int, microbatches: int) -> np.ndarray:
        """T of a stage, float64[L + 1, L + 1]: its work of a microbatch, its waits for both transfers with the stage before,
        and its share of what is done once a step."""
        work = np.max([self.ranges(one, microbatch).work_us for one in set(replicas)], axis=0)
        once = self.reduce_us(replicas, microbatch) + self.update_us(replicas, microbatch)
        whole: np.ndarray = work + 2 * self.receive_us(microbatch)[:, None] + once / microbatches
        return whole

    def memory_bytes(self, replica: Replica, microbatch: int, held: float | np.ndarray) -> np.ndarray:
        """Memory of a device of a replica that holds activations of `held` microbatches, float64[L + 1, L + 1]."""
        sums = self.ranges(replica, microbatch)
        needed: np.ndarray = self.profile.state_factor * sums.parameters + held * sums.kept
        return needed

    def bound_us(self, plan: MixedPlan, microbatches: int) -> float:
        """ΣT + (m − 1) max T, which the search minimises: an upper bound of the time of 1F1B but for the time on links."""
        times = [
            float(self.stage_us(stage.replicas, plan.microbatch, microbatches)[stage.first, stage.end])
            for stage in plan.stages
        ]
        return objective_us(times, microbatches)

    def step_us(self, plan: MixedPlan, microbatches: int) -> float:
        """The replayed time of a step under 1F1B."""
        shape = PipelineShape(PipelineSchedule.ONE_F_ONE_B, len(plan.stages), microbatches)
        after = [
            ns(float(self.update_us(stage.replicas, plan.microbatch)[stage.first, stage.end])) for stage in plan.stages
        ]
        step = PipelineStep(
            number=1,
            stages=[self._time(stage, plan.microbatch) for stage in plan.stages],
            before_ns=[0] * len(plan.stages),
            after_ns=after,
        )
        return us(replay(steps_graph(shape, [step], range(len(plan.stages)), LaneKind.STREAM)).step_ns()[0])

    def _time(self, stage: MixedStage, microbatch: int) -> StageTime:
        at = stage.first, stage.end
        slowest = max(stage.replicas, key=lambda one: self.ranges(one, microbatch).work_us[at])
        sums, received = self.ranges(slowest, microbatch), self.receive_us(microbatch)[stage.first]
        return StageTime(
            forward_ns=ns(float(sums.forward_us[at] + received)),
            inputs_ns=ns(float(sums.backward_us[at] + received)),
            weights_ns=0,
            receive_ns=ns(float(received)),
            reduce_ns=ns(float(self.reduce_us(stage.replicas, microbatch)[at])),
        )


def microbatches_of(plan: MixedPlan, batch: int) -> int:
    """Microbatches of each pipeline in a step. Raises UsageError if the batch cannot be split so."""
    of_all = plan.microbatch * plan.pipelines
    if batch % of_all:
        raise UsageError(
            f"a batch of {batch} is not a multiple of {plan.microbatch} samples on each of {plan.pipelines} pipelines"
        )
    if batch // of_all > MAX_MICROBATCHES:
        raise UsageError(f"a batch of {batch} has more than {MAX_MICROBATCHES:,} microbatches of {plan.microbatch}")
    return batch // of_all


def _between(values: Sequence[float] | np.ndarray) -> np.ndarray:
    """The sum of the values from each one to before each other one."""
    sums = np.concatenate([[0.0], np.cumsum(np.asarray(values, float))])
    between: np.ndarray = sums[None, :] - sums[:, None]
    return between
