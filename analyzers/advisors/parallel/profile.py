"""Times and sizes of a model's layers, and the devices to put them on: the input of the search for a plan."""

import msgspec

from esprof.analyzers.advisors.job.growth import Model
from esprof.core.errors import UsageError
from esprof.core.types import Bytes

DeviceType = str

ANY_TYPE: DeviceType = "any"
"""The type of times whose file does not say on which device they were measured."""


_LARGE = 1 << 62
"""Above all sizes (bytes) and times (µs): a file may have an integer of any length."""


class PassTimes(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Times of one microbatch in one layer on one type of device, in µs."""

    forward_us: float
    backward_us: float
    """The whole backward."""
    weights_us: float | None = None
    """The part of the backward that computes the gradients of weights; None if it was not measured apart."""


class Layer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One layer, or several that cannot be separated. Sizes of activations are those of one microbatch."""

    name: str
    times: dict[DeviceType, PassTimes]
    output_bytes: Bytes
    """What the following layers need of this and earlier ones: what is sent if they are on another device."""
    parameter_bytes: Bytes
    kept_bytes: Bytes | None = None
    """Activations that are kept for the backward; None if only the output is."""
    tensor_bytes: Bytes = 0
    """What each device of a tensor group sends in forward and backward; the times include it."""

    @property
    def kept(self) -> Bytes:
        return self.output_bytes if self.kept_bytes is None else self.kept_bytes


class LayerProfile(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The layers of a model in order. A layer needs nothing of later ones."""

    schema: str = "esprof.layers/1"
    layers: tuple[Layer, ...]
    microbatch: int = 1
    """Samples in the microbatch that was measured; 1 if the file does not say: a batch is then counted in microbatches."""
    tensor: int = 1
    """Devices that share each layer (tensor parallelism). Times and sizes are those of one of them."""
    state_factor: float = 4.0
    """Bytes of weights, gradients and optimizer state for each byte of parameters: 4 for Adam in one precision."""
    optimizer_factor: float = 0.0
    """How much of `state_factor` is optimizer state that replicas may share: 2 for Adam in one precision. 0 if they may
    not."""
    column_wise: tuple[str, ...] = ()
    """With tensor parallelism, names of the linear modules in a layer whose outputs are split."""
    row_wise: tuple[str, ...] = ()
    """Names of those whose inputs are split."""
    notes: tuple[str, ...] = ()
    """What is to be known of these figures; shown with the plans."""

    def fault(self) -> str | None:
        """What is wrong with the profile; None if nothing is."""
        if self.schema != "esprof.layers/1":
            return f"has the schema {self.schema}, not esprof.layers/1"
        if not self.layers:
            return "lists no layer"
        if self.microbatch < 1 or self.tensor < 1:
            return "needs a microbatch and a tensor degree of at least 1"
        if not 0 <= self.optimizer_factor <= self.state_factor < float("inf"):
            return "needs an optimizer_factor from 0 to its state_factor"
        return next((fault for layer in self.layers if (fault := _fault_of(layer))), None)


class Devices(msgspec.Struct, frozen=True, kw_only=True):
    """The devices by type, and their links. Speeds are in 10^9 bytes per second, in one direction."""

    devices: dict[DeviceType, int | Model]
    network_gb_per_s: float
    server_gb_per_s: float | None = None
    """Between devices of one server; None if that is no faster."""
    per_server: int = 1
    """Devices of a server, all of one type."""

    @property
    def counts(self) -> dict[DeviceType, int]:
        return {kind: one if isinstance(one, int) else one.count for kind, one in self.devices.items()}

    def memory_bytes(self, kind: DeviceType) -> float:
        """Memory of a device, bytes; infinite if it is no limit."""
        one = self.devices[kind]
        known = isinstance(one, Model) and one.memory_gb is not None
        return one.memory_gb * 1e9 if known else float("inf")  # type: ignore[operator, union-attr]

    def us_per_byte(self, kind: DeviceType) -> float:
        """Time of a byte between devices of one type: of the link in a server only if one server has them all."""
        in_server = self.counts[kind] <= self.per_server and self.server_gb_per_s is not None
        return 1e-3 / (self.server_gb_per_s if in_server else self.network_gb_per_s)  # type: ignore[operator]

    def us_per_byte_between(self) -> float:
        """Time of a byte between two stages: of the network, unless there is one server only."""
        kinds = list(self.devices)
        return self.us_per_byte(kinds[0]) if len(kinds) == 1 else 1e-3 / self.network_gb_per_s

    def us_per_byte_in_server(self) -> float:
        """Time of a byte in a server, or of the network if that is no faster."""
        return 1e-3 / (self.server_gb_per_s or self.network_gb_per_s)

    def grouped(self, tensor: int) -> "Devices | None":
        """Groups of `tensor` devices of one server, as if each was one device; None if there is none."""
        servers = {kind: divmod(count, self.per_server) for kind, count in self.counts.items()}
        counts = {kind: full * (self.per_server // tensor) + rest // tensor for kind, (full, rest) in servers.items()}
        grouped = {
            kind: counts[kind] if isinstance(one, int) else msgspec.structs.replace(one, count=counts[kind])
            for kind, one in self.devices.items()
            if counts[kind]
        }
        if not grouped:
            return None
        return msgspec.structs.replace(self, devices=grouped, per_server=max(1, self.per_server // tensor))

    def fault(self) -> str | None:
        """What is wrong with the devices; None if nothing is."""
        if not self.devices or min(self.counts.values()) < 1:
            return "every type needs at least one device"
        speeds = [self.network_gb_per_s, *([] if self.server_gb_per_s is None else [self.server_gb_per_s])]
        if self.per_server < 1 or not all(0 < speed < float("inf") for speed in speeds):
            return "speeds of links and devices per server must be above 0"
        return None


def matched(profile: LayerProfile, devices: Devices) -> LayerProfile:
    """The profile with times for each type of device. Times of no known type stand for the only type that there is.

    Raises UsageError if a layer has no time on a type, or there are several types and the profile names none.
    """
    kinds = list(devices.devices)
    if all(set(layer.times) == {ANY_TYPE} for layer in profile.layers):
        if len(kinds) > 1:
            raise UsageError(
                f"the profile names no type of device, but the inventory has {len(kinds)}",
                remedy="Leave one type in the inventory, or write a JSON profile with times for each type.",
            )
        renamed = [msgspec.structs.replace(one, times={kinds[0]: one.times[ANY_TYPE]}) for one in profile.layers]
        return msgspec.structs.replace(profile, layers=tuple(renamed))
    for layer in profile.layers:
        if missing := [kind for kind in kinds if kind not in layer.times]:
            raise UsageError(
                f"layer {layer.name} has no time on {missing[0]}: the profile has {', '.join(layer.times) or 'none'}",
                remedy="Measure the layer there, or leave this type out of the inventory.",
            )
    return profile


def _fault_of(layer: Layer) -> str | None:
    sizes = (layer.output_bytes, layer.parameter_bytes, layer.kept, layer.tensor_bytes)
    times = [time for one in layer.times.values() for time in (one.forward_us, one.backward_us, one.weights_us or 0.0)]
    if not all(0 <= number < _LARGE for number in (*sizes, *times)):  # NaN is not.
        return f"layer {layer.name} has a number that is negative or too large"
    if any((one.weights_us or 0.0) > one.backward_us for one in layer.times.values()):
        return f"layer {layer.name} has a weights_us above its backward_us, of which it is a part"
    return None
