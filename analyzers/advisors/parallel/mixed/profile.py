"""Times and sizes of a model's layers by type of device, microbatch and tensor degree, and plans that mix types."""

from math import isfinite

import msgspec

from esprof.analyzers.advisors.parallel.profile import DeviceType
from esprof.core.types import Bytes

LayerSeconds = tuple[float, float, float]
"""Forward, backward and optimizer of one layer, s: as published."""


class ShardSizes(msgspec.Struct, frozen=True, kw_only=True):
    """Sizes of one layer on one of the devices that share it. Those of activations are of one sample."""

    parameter_bytes: Bytes
    output_bytes: Bytes
    """Its whole output: not a share of it."""
    kept_bytes: Bytes
    """Activations kept for the backward."""


class MixedProfile(msgspec.Struct, frozen=True, kw_only=True):
    """The layers of one model, in order."""

    model: str
    times: dict[DeviceType, dict[int, dict[int, tuple[LayerSeconds, ...]]]]
    """By type, samples of a microbatch, and tensor degree: the number of devices that share each layer."""
    sizes: dict[int, tuple[ShardSizes, ...]]
    """By tensor degree."""
    state_factor: float = 4.0
    """Bytes of weights, gradients and optimizer state for each byte of parameters: 4 for Adam in one precision."""

    @property
    def layers(self) -> int:
        return len(next(iter(self.sizes.values())))

    def has(self, device: DeviceType, microbatch: int, tensor: int) -> bool:
        """Whether this was measured."""
        return tensor in self.times.get(device, {}).get(microbatch, {})

    def fault(self) -> str | None:
        """What is wrong with the profile; None if nothing is."""
        for tensor, sizes in self.sizes.items():
            if len(sizes) != self.layers:
                return (
                    f"{self.model} has sizes of {len(sizes)} layers at tensor degree {tensor}, elsewhere {self.layers}"
                )
            if any(min(one.parameter_bytes, one.output_bytes, one.kept_bytes) < 0 for one in sizes):
                return f"{self.model} has a negative size at tensor degree {tensor}"
        for device, by_microbatch in self.times.items():
            for microbatch, by_tensor in by_microbatch.items():
                for tensor, layers in by_tensor.items():
                    where = f"{self.model} on {device}, microbatch {microbatch}, tensor degree {tensor}"
                    if microbatch < 1 or tensor < 1:
                        return f"{where}: both must be at least 1"
                    if len(layers) != self.layers:
                        return f"{where}: times of {len(layers)} layers, but sizes of {self.layers}"
                    if not all(isfinite(time) and time >= 0 for layer in layers for time in layer):
                        return f"{where}: a time is negative or not finite"
        return None


class Replica(msgspec.Struct, frozen=True, order=True):
    """Devices of one type that share each layer of a stage."""

    device: DeviceType
    tensor: int
    """How many."""


class MixedStage(msgspec.Struct, frozen=True, order=True):
    """Layers `first` to before `end` on replicas, each of which computes microbatches of its own."""

    first: int
    end: int
    replicas: tuple[Replica, ...]


class MixedPlan(msgspec.Struct, frozen=True):
    """Stages with equally many replicas: as many pipelines, of which each computes whole microbatches."""

    microbatch: int
    """Samples."""
    stages: tuple[MixedStage, ...]

    @property
    def pipelines(self) -> int:
        return len(self.stages[0].replicas)


class GivenPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A plan to predict."""

    name: str
    plan: MixedPlan
    batch: int | None = None
    """Samples of a step; None if the file does not say."""
    measured_us: float | None = None
