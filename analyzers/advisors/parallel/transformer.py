"""A transformer described by its sizes, and what follows from them: parameters, operations, traffic and memory.

Formulas: Narayanan et al., SC 2021 (PTD-P), §§3 and 5.1; memory: Korthikanti et al., MLSys 2023, and Megatron-LM. All passes
and activations are 16-bit.
"""

from collections.abc import Mapping, Sequence
from math import isfinite

import msgspec

from esprof.analyzers.advisors.parallel.problem import Recompute
from esprof.analyzers.advisors.parallel.profile import DeviceType, Layer, LayerProfile, PassTimes
from esprof.core.types import Bytes

_HALF = 2
"""Bytes of a 16-bit number."""
_STATE_FACTOR = 9.0
"""State of mixed precision with Adam: 18 bytes for each parameter, which itself has 2."""
_OPTIMIZER_FACTOR = 6.0
"""The part of it that is the optimizer's: 12 bytes for each parameter."""
_US_PER_TFLOP = 1e-6
"""Microseconds of an operation at 10^12 operations per second."""
_S_PER_DAY = 86_400


class Transformer(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """A decoder as in GPT: equal layers of attention and an MLP four times as wide, with one embedding for both ends."""

    schema: str = "esprof.transformer/1"
    layers: int
    hidden: int
    heads: int
    vocabulary: int
    sequence: int
    microbatch: int = 1
    """Samples of a microbatch on each device."""
    tflops: dict[DeviceType, float] = {}
    """10^12 operations per second that the passes of a layer reach on each type of device, without communication."""
    fused_attention: bool = True
    """Whether attention keeps no matrix of sequence × sequence, as in scaled_dot_product_attention."""
    sequence_parallel: bool = False
    """Whether norms and dropout are split among the devices of a tensor group, too."""
    tokens: int | None = None
    """Tokens of the whole training; None if that is not known."""
    column_wise: tuple[str, ...] = ()
    """Names of the linear modules in a layer whose outputs are split: query, key, value, and the first of the MLP."""
    row_wise: tuple[str, ...] = ()
    """Names of those whose inputs are split: the output of attention, and the second of the MLP."""

    def fault(self) -> str | None:
        """What is wrong with the description; None if nothing is."""
        if self.schema != "esprof.transformer/1":
            return f"has the schema {self.schema}, not esprof.transformer/1"
        sizes = (self.layers, self.hidden, self.heads, self.vocabulary, self.sequence, self.microbatch)
        if min(sizes) < 1 or (self.tokens is not None and self.tokens < 1):
            return "needs sizes of at least 1"
        if self.hidden % self.heads:
            return f"has {self.heads} heads, which do not divide its hidden size of {self.hidden}"
        if not all(isfinite(speed) and speed > 0 for speed in self.tflops.values()):
            return "needs tflops above 0"
        return None

    @property
    def parameters(self) -> int:
        """P = 12lh² (1 + 13/(12h) + (V + s)/(12lh))."""
        return self.layers * self._layer_parameters + (self.vocabulary + self.sequence) * self.hidden

    @property
    def _layer_parameters(self) -> int:
        return 12 * self.hidden**2 + 13 * self.hidden

    @property
    def _layer_flops(self) -> int:
        """Operations of the forward of a sample in a layer."""
        return 24 * self.sequence * self.hidden**2 + 4 * self.sequence**2 * self.hidden

    @property
    def _head_flops(self) -> int:
        """Operations of the forward of a sample in the head, which computes logits."""
        return 2 * self.sequence * self.hidden * self.vocabulary

    def flops(self, batch: int, recompute: Recompute = Recompute.LAYERS) -> int:
        """Operations of a step. With recomputation of the layers, F = 96Bslh² (1 + s/(6h) + V/(16lh))."""
        of_layer = 3 if recompute is Recompute.NONE else 4
        of_head = 4 if recompute is Recompute.STAGES else 3
        return batch * (of_layer * self.layers * self._layer_flops + of_head * self._head_flops)

    def training_days(self, tokens: int, devices: int, tflops: float) -> float:
        """Days to train on `tokens` with recomputation, if each device reaches `tflops` over whole steps: 8TP/(nX)."""
        return 8 * tokens * self.parameters / (devices * tflops * 1e12) / _S_PER_DAY

    def tensor_degrees(self, per_server: int) -> list[int]:
        """The numbers of devices of a server that can share each layer: divisors of the server's devices and of heads."""
        return [degree for degree in range(1, per_server + 1) if per_server % degree == self.heads % degree == 0]

    def tensor_bytes(self, microbatch: int, tensor: int) -> Bytes:
        """What a device sends for a microbatch in a layer: four ring all-reduces, 8bsh (t − 1)/t numbers."""
        return round(4 * 2 * _HALF * self._numbers(microbatch) * (tensor - 1) / tensor)

    def layer_kept_bytes(self, microbatch: int, tensor: int) -> Bytes:
        """Activations that a device keeps for the backward of a microbatch in a layer: sbh (10 + 24/t + 5as/(ht))."""
        whole = 34 / tensor if self.sequence_parallel else 10 + 24 / tensor
        scores = 0.0 if self.fused_attention else 5 * self.heads * self.sequence / (self.hidden * tensor)
        return round(self._numbers(microbatch) * (whole + scores))

    def _numbers(self, microbatch: int) -> int:
        """Numbers in the output of a layer: bsh."""
        return microbatch * self.sequence * self.hidden

    def profile(
        self, microbatch: int, tensor: int, tflops: Mapping[DeviceType, float], us_per_byte: float, *, is_split: bool
    ) -> LayerProfile:
        """Times and sizes of one of the `tensor` devices that share each layer, whose link takes `us_per_byte`.

        If the model is split into stages, the head has its own copy of the embedding's weights.
        """
        sent = self.tensor_bytes(microbatch, tensor)
        numbers = self._numbers(microbatch)
        shared = tensor if self.sequence_parallel else 1
        layer = Layer(
            name="",
            times={
                kind: self._times(speed * tensor / microbatch, sent * us_per_byte / 2) for kind, speed in tflops.items()
            },
            output_bytes=_HALF * numbers,
            parameter_bytes=_HALF * self._layer_parameters // tensor,
            kept_bytes=self.layer_kept_bytes(microbatch, tensor),
            tensor_bytes=sent,
        )
        nothing = PassTimes(forward_us=0.0, backward_us=0.0, weights_us=0.0)
        embedding = Layer(
            name="embedding",
            times=dict.fromkeys(tflops, nothing),
            output_bytes=_HALF * numbers,
            parameter_bytes=_HALF * (self.vocabulary + self.sequence) * self.hidden // tensor,
            kept_bytes=numbers // shared,
        )
        head_us = {
            kind: self._head_flops * microbatch * _US_PER_TFLOP / tensor / speed for kind, speed in tflops.items()
        }
        head = Layer(
            name="head",
            times={
                kind: PassTimes(forward_us=took, backward_us=2 * took, weights_us=took)
                for kind, took in head_us.items()
            },
            output_bytes=0,
            parameter_bytes=_HALF * self.vocabulary * self.hidden // tensor if is_split else 0,
            kept_bytes=4 * numbers // shared + 4 * microbatch * self.sequence * self.vocabulary // tensor,
        )
        return LayerProfile(
            layers=(embedding, *_numbered(layer, self.layers), head),
            microbatch=microbatch,
            tensor=tensor,
            state_factor=_STATE_FACTOR,
            optimizer_factor=_OPTIMIZER_FACTOR,
            column_wise=self.column_wise,
            row_wise=self.row_wise,
        )

    def _times(self, tflops: float, exchange_us: float) -> PassTimes:
        """Passes of a layer at `tflops` for a sample, with `exchange_us` in the tensor group for each. The gradients of
        weights take as much as the products of weights in the forward; attention has none."""
        forward_us = self._layer_flops * _US_PER_TFLOP / tflops
        return PassTimes(
            forward_us=forward_us + exchange_us,
            backward_us=2 * forward_us + exchange_us,
            weights_us=24 * self.sequence * self.hidden**2 * _US_PER_TFLOP / tflops,
        )

    def measured_tflops(self, profiles: Sequence[LayerProfile], kind: DeviceType, us_per_byte: float) -> float | None:
        """What a device reached in measured profiles of this model, without the exchange in its tensor group; None if
        they have no times on this type, or less than the exchange should take."""
        flops = took_us = 0.0
        for one in profiles:
            if any(kind not in layer.times for layer in one.layers):
                continue
            times = [layer.times[kind] for layer in one.layers]
            flops += self.flops(one.microbatch, Recompute.NONE) / one.tensor
            took_us += sum(time.forward_us + time.backward_us for time in times)
            took_us -= self.layers * self.tensor_bytes(one.microbatch, one.tensor) * us_per_byte
        return flops * _US_PER_TFLOP / took_us if took_us > 0 else None


def _numbered(layer: Layer, count: int) -> list[Layer]:
    return [msgspec.structs.replace(layer, name=f"layer {number}") for number in range(count)]
