"""A model's layers on devices of several types: times and memory of each stage that a plan may have."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from esprof.analyzers.advisors.parallel.limits import objective_us
from esprof.analyzers.advisors.parallel.profile import Devices, DeviceType, LayerProfile


class Recompute(StrEnum):
    """What the backward computes again instead of keeping it."""

    NONE = "none"
    LAYERS = "layers"
    """Each layer, from its input."""
    STAGES = "stages"
    """Each stage as a whole, from its input."""


class Stage(NamedTuple):
    """Layers `first` to before `end` on `replicas` devices of one type, which are taken in order, server by server."""

    first: int
    end: int
    kind: int
    """Number of the type of device."""
    replicas: int
    is_local: bool = False
    """Whether one server has all replicas."""


Split = tuple[Stage, ...]
"""The stages of a plan in order."""


_OF_A_MICROBATCH = ("microbatch", "forward_us", "again_us", "backward_us", "weights_us", "kept", "exchanged", "inputs")
"""Fields of a problem that grow with its microbatch."""


@dataclass(frozen=True)
class Problem:
    """Layers, devices and microbatches. L layers, T types; times in µs, sizes in bytes.

    With tensor parallelism, a device here is a group of `tensor` devices: times and sizes are those of one of them.
    """

    names: tuple[str, ...]
    """Names of the layers."""
    kinds: tuple[DeviceType, ...]
    counts: np.ndarray
    """int64[T], devices of each type."""
    memory: np.ndarray
    """float64[T], bytes of a device; infinite if that is no limit."""
    tensor: int
    microbatch: int
    """Samples of a microbatch on all replicas of a stage."""
    microbatches: int
    styles: dict[str, str]
    """Class of torch's style for each module in a layer that the devices of a tensor group share."""
    recompute: Recompute
    is_split: bool | None
    """Whether these are the layers of a model in several stages (True) or in one (False); None if that is the same."""
    forward_us: np.ndarray
    """float64[T, L + 1], sums over the layers before each of the forward of a microbatch."""
    again_us: np.ndarray
    """float64[T, L + 1], sums of the forward that is computed again."""
    backward_us: np.ndarray
    """float64[T, L + 1], sums of the whole backward, without what is computed again."""
    weights_us: np.ndarray | None
    """float64[T, L + 1], sums of the part of the backward for weights; None if it was not measured in all layers."""
    state: np.ndarray
    """float64[L + 1], sums of weights, gradients and optimizer state that each replica needs, bytes."""
    optimizer: np.ndarray
    """float64[L + 1], sums of the optimizer state that replicas can share, bytes."""
    kept: np.ndarray
    """float64[L], activations of a microbatch that the backward of a layer needs, bytes."""
    parameters: np.ndarray
    """float64[L + 1], sums of parameters, bytes."""
    exchanged: np.ndarray
    """float64[L + 1], sums of what a device sends in its tensor group for a microbatch, bytes."""
    inputs: np.ndarray
    """float64[L], input of each layer of a microbatch from the layer before, bytes."""
    per_server: int
    """Devices of a server."""
    us_per_byte_between: float
    """Time of a byte between two stages."""
    us_per_byte: np.ndarray
    """float64[2], time of a byte among replicas: through the network, and in a server."""

    @classmethod
    def of(
        cls,
        profile: LayerProfile,
        devices: Devices,
        microbatches: int,
        recompute: Recompute = Recompute.NONE,
        is_split: bool | None = None,
    ) -> "Problem":
        """The problem of `profile`, which has times on all types of `devices`: groups of its tensor degree."""
        kinds, layers = tuple(devices.devices), profile.layers
        times = [[one.times[kind] for one in layers] for kind in kinds]
        forward = _sums([[time.forward_us for time in row] for row in times])
        has_weights = all(time.weights_us is not None for row in times for time in row)
        parameters = _sums([one.parameter_bytes for one in layers])
        return cls(
            names=tuple(one.name for one in layers),
            kinds=kinds,
            counts=np.array([devices.counts[kind] for kind in kinds], np.int64),
            memory=np.array([devices.memory_bytes(kind) for kind in kinds]),
            tensor=profile.tensor,
            microbatch=profile.microbatch,
            microbatches=microbatches,
            styles=_styles(profile),
            recompute=recompute,
            is_split=is_split,
            forward_us=forward,
            again_us=_again(forward, recompute),
            backward_us=_sums([[time.backward_us for time in row] for row in times]),
            weights_us=_sums([[time.weights_us or 0.0 for time in row] for row in times]) if has_weights else None,
            state=parameters * (profile.state_factor - profile.optimizer_factor),
            optimizer=parameters * profile.optimizer_factor,
            kept=np.array([float(one.kept) for one in layers]),
            parameters=parameters,
            exchanged=_sums([one.tensor_bytes for one in layers]),
            inputs=np.array([0.0, *(float(one.output_bytes) for one in layers[:-1])]),
            per_server=devices.per_server,
            us_per_byte_between=devices.us_per_byte_between(),
            us_per_byte=np.array([1e-3 / devices.network_gb_per_s, devices.us_per_byte_in_server()]),
        )

    def on_replicas(self, replicas: int, microbatches: int) -> "Problem":
        """The same problem with one microbatch on each replica. Its own microbatch is that of all replicas together."""
        scaled = {name: value * replicas for name in _OF_A_MICROBATCH if (value := getattr(self, name)) is not None}
        return replace(self, microbatches=microbatches, **scaled)

    @property
    def layers(self) -> int:
        return len(self.inputs)

    @property
    def most_stages(self) -> int:
        return min(self.layers, int(self.counts.sum()))

    @cached_property
    def work_us(self) -> np.ndarray:
        """All passes of a microbatch, µs, float64[T, L + 1], sums over the layers before each."""
        total: np.ndarray = self.forward_us + self.again_us + self.backward_us
        return total

    @cached_property
    def receive_us(self) -> np.ndarray:
        """Transfer of the input of each layer of a microbatch, one way, µs, float64[L]."""
        times: np.ndarray = self.inputs * self.us_per_byte_between
        return times

    @cached_property
    def busy_us(self) -> np.ndarray:
        """Work and transfers with the stage before of each stage on one replica, µs, float64[T, L, L + 1]."""
        work = np.stack([ranges(one)[: self.layers] for one in self.work_us])
        times: np.ndarray = work + 2 * self.receive_us[:, None]
        return times

    @cached_property
    def held_bytes(self) -> np.ndarray:
        """Activations of a microbatch that each stage keeps from forward to backward, float64[L, L + 1]: of all layers,
        of their inputs, or of the stage's input."""
        if self.recompute is Recompute.STAGES:
            return np.repeat(self.inputs[:, None], self.layers + 1, axis=1)
        sizes: np.ndarray = ranges(_sums(self._kept_between))[: self.layers]
        return sizes

    @cached_property
    def live_bytes(self) -> np.ndarray:
        """Activations that each stage has in addition while it computes one microbatch again, float64[L, L + 1]."""
        if self.recompute is Recompute.STAGES:
            sizes: np.ndarray = ranges(_sums(self.kept))[: self.layers]
            return sizes
        most = np.zeros((self.layers, self.layers + 1))
        for first in range(self.layers):
            most[first, first + 1 :] = np.maximum.accumulate((self.kept - self._kept_between)[first:])
        return most

    @property
    def _kept_between(self) -> np.ndarray:
        """What each layer keeps from forward to backward, unless stages are computed again as a whole, bytes, float64[L].
        Nothing comes between the forward and the backward of the last layer: it is not computed again."""
        if self.recompute is Recompute.NONE:
            return self.kept
        return np.append(np.minimum(self.inputs, self.kept)[:-1], self.kept[-1])

    @cached_property
    def shared_bytes(self) -> np.ndarray:
        """What the replicas of each stage divide among them, apart from activations held, float64[L, L + 1]."""
        sizes: np.ndarray = ranges(self.optimizer)[: self.layers] + self.live_bytes
        return sizes

    @cached_property
    def _reductions_us(self) -> np.ndarray:
        """Time of the ring all-reduce of the gradients of each stage, through the network and in a server, µs,
        float64[2, most replicas, L, L + 1]: 2 (r − 1)/r of its bytes pass each link."""
        replicas = np.arange(1, int(self.counts.max()) + 1)
        per_byte = np.outer(self.us_per_byte, 2 * (replicas - 1) / replicas)
        times: np.ndarray = per_byte[:, :, None, None] * ranges(self.parameters)[: self.layers]
        return times

    @cached_property
    def stages_us(self) -> np.ndarray:
        """T of each stage, its replicas in several servers and in one, µs, float64[2, T, most replicas, L, L + 1]: its work,
        its transfers with the stage before, and its share of the all-reduce."""
        replicas = np.arange(1, int(self.counts.max()) + 1)[None, :, None, None]
        times: np.ndarray = self.busy_us[:, None] / replicas + self._reductions_us[:, None] / self.microbatches
        return times

    def reduce_us(self, stage: Stage) -> float:
        """Time of the all-reduce of a stage's gradients, µs."""
        return self.reduced_bytes(stage) * float(self.us_per_byte[int(stage.is_local)])

    def is_local(self, before: int, replicas: int) -> bool:
        """Whether one server has these replicas, which follow so many devices of their type."""
        return before // self.per_server == (before + replicas - 1) // self.per_server

    def reduced_bytes(self, stage: Stage) -> float:
        """What a replica sends in the ring all-reduce of a stage's gradients."""
        parameters = float(self.parameters[stage.end] - self.parameters[stage.first])
        return 2 * (stage.replicas - 1) / stage.replicas * parameters

    def exchanged_bytes(self, stage: Stage) -> float:
        """What a device sends in its tensor group for a microbatch in a stage. Half of it is sent in the forward."""
        sums, last = self.exchanged, min(stage.end, self.layers - 1)
        again = {Recompute.NONE: stage.first, Recompute.LAYERS: max(stage.first, last), Recompute.STAGES: stage.end}
        repeated = sums[again[self.recompute]] - sums[stage.first]
        return float(sums[stage.end] - sums[stage.first] + repeated / 2) / stage.replicas

    def stage_us(self, stage: Stage) -> float:
        """T of a stage, µs."""
        busy = float(self.busy_us[stage.kind, stage.first, stage.end])
        return busy / stage.replicas + self.reduce_us(stage) / self.microbatches

    def memory_bytes(self, stages: Sequence[Stage], held: float, *, is_sharded: bool = True) -> float:
        """Memory of a device that has these stages and holds activations of `held` microbatches of them all. Replicas may
        share the state of the optimizer that they can share."""
        replicas = stages[0].replicas
        at = [(stage.first, stage.end) for stage in stages]
        state = sum(float(self.state[end] - self.state[first]) for first, end in at)
        optimizer = sum(float(self.optimizer[end] - self.optimizer[first]) for first, end in at)
        kept = sum(float(self.held_bytes[one]) for one in at)
        live = max(float(self.live_bytes[one]) for one in at)
        return state + optimizer / (replicas if is_sharded else 1) + (live + held * kept) / replicas

    def bound_us(self, split: Split) -> float:
        """ΣT + (m − 1) max T, the objective."""
        return objective_us([self.stage_us(stage) for stage in split], self.microbatches)


def _styles(profile: LayerProfile) -> dict[str, str]:
    if profile.tensor == 1:
        return {}
    return dict.fromkeys(profile.column_wise, "ColwiseParallel") | dict.fromkeys(profile.row_wise, "RowwiseParallel")


def ranges(sums: np.ndarray) -> np.ndarray:
    """The sum from each layer to before each other one, from sums over all layers before."""
    between: np.ndarray = sums[None, :] - sums[:, None]
    return between


def _sums(values: ArrayLike) -> np.ndarray:
    """Sums over all before each of the values of the last axis, and over all of them."""
    rows = np.asarray(values, float)
    return np.cumsum(np.concatenate([np.zeros((*rows.shape[:-1], 1)), rows], axis=-1), axis=-1)


def _again(forward_us: np.ndarray, recompute: Recompute) -> np.ndarray:
    """Sums of the forward that is computed again."""
    if recompute is Recompute.NONE:
        return np.zeros_like(forward_us)
    if recompute is Recompute.STAGES:
        return forward_us
    # Not the last layer, whose backward follows its forward at once.
    return np.concatenate([forward_us[:, :-1], forward_us[:, -2:-1]], axis=1)
