"""Quantization to few bits per entry, with a scale per block of neighbours."""

from typing import Literal

import torch
from torch import Tensor

from esprof.elastic.compress.codecs.codec import State, typed, with_residual

BLOCK = 256
"""Entries that share a scale."""
_SCALE_BYTES = 4


class Quantised:
    """Integers of 8 or 4 bits, rounded to nearest, times a scale per block from its largest entry, as in ZeRO++ (Wang
    et al., 2023, §3.3). 4 bits use error feedback; the error of 8 bits is too small to need it."""

    def __init__(self, spec: str, bits: Literal[4, 8]) -> None:
        self.spec = spec
        self._bits = bits
        self._most = (1 << (bits - 1)) - 1

    @property
    def has_state(self) -> bool:
        return self._bits == 4

    def encode(self, gradient: Tensor, state: State) -> Tensor:
        wanted = with_residual(gradient, state) if self.has_state else gradient
        rows = _in_blocks(wanted)
        scale = rows.abs().amax(dim=1, keepdim=True).to(torch.float32) / self._most
        number = (rows / torch.where(scale > 0, scale, 1)).round_()
        if self.has_state:
            state["residual"] -= (number * scale).ravel()[: len(wanted)]
        # NaN has no integer value: the scale of its block is NaN instead.
        whole = number.nan_to_num_(0, 0, 0).to(torch.int8).ravel()[: len(wanted)]
        return torch.cat([self._packed(whole), scale.ravel().view(torch.uint8)])

    def decode(self, wire: Tensor, out: Tensor) -> None:
        blocks = -(-len(out) // BLOCK)
        packed, scale = wire[: len(wire) - _SCALE_BYTES * blocks], wire[len(wire) - _SCALE_BYTES * blocks :]
        rows = _in_blocks(self._unpacked(packed)[: len(out)].to(torch.float32))
        out.copy_((rows * typed(scale, torch.float32)[:, None]).ravel()[: len(out)])

    def wire_bytes(self, numel: int) -> int:
        return -(-numel * self._bits // 8) + _SCALE_BYTES * -(-numel // BLOCK)

    def _packed(self, whole: Tensor) -> Tensor:
        if self._bits == 8:
            return whole.view(torch.uint8)
        pairs = _padded(whole, 2).view(torch.uint8).view(-1, 2)
        return (pairs[:, 0] & 15) | (pairs[:, 1] << 4)

    def _unpacked(self, packed: Tensor) -> Tensor:
        if self._bits == 8:
            return packed.view(torch.int8)
        # Shifting left and back extends the sign.
        low, high = (packed << 4).view(torch.int8) >> 4, packed.view(torch.int8) >> 4
        return torch.stack([low, high], dim=1).ravel()


class Sign:
    """One bit per entry and the mean magnitude per block, with error feedback (EF-SignSGD, Karimireddy et al., ICML
    2019, algorithm 2)."""

    has_state = True

    def __init__(self, spec: str) -> None:
        self.spec = spec

    def encode(self, gradient: Tensor, state: State) -> Tensor:
        residual = with_residual(gradient, state)
        rows = _in_blocks(residual)
        # The last block may be shorter and is padded with 0.
        count = torch.full((len(rows), 1), BLOCK, device=rows.device)
        count[-1:] -= rows.numel() - len(residual)
        scale = (rows.abs().sum(dim=1, keepdim=True) / count).to(torch.float32)
        up = residual >= 0
        residual -= torch.where(_in_blocks(up), scale, -scale).ravel()[: len(residual)].to(residual.dtype)
        bits = _padded(up.to(torch.uint8), 8).view(-1, 8) << _bit_positions(up.device)
        return torch.cat([bits.sum(dim=1, dtype=torch.uint8), scale.ravel().view(torch.uint8)])

    def decode(self, wire: Tensor, out: Tensor) -> None:
        blocks = -(-len(out) // BLOCK)
        packed, scale = wire[: len(wire) - _SCALE_BYTES * blocks], wire[len(wire) - _SCALE_BYTES * blocks :]
        up = (packed[:, None] >> _bit_positions(wire.device)) & 1
        signs = _in_blocks(up.ravel()[: len(out)].to(torch.float32)) * 2 - 1
        out.copy_((signs * typed(scale, torch.float32)[:, None]).ravel()[: len(out)])

    def wire_bytes(self, numel: int) -> int:
        return -(-numel // 8) + _SCALE_BYTES * -(-numel // BLOCK)


def _bit_positions(device: torch.device) -> Tensor:
    return torch.arange(8, dtype=torch.uint8, device=device)


def _padded(flat: Tensor, multiple: int) -> Tensor:
    """The entries, padded with zeros to a multiple of `multiple`."""
    missing = -len(flat) % multiple
    return torch.nn.functional.pad(flat, (0, missing)) if missing else flat


def _in_blocks(flat: Tensor) -> Tensor:
    return _padded(flat, BLOCK).view(-1, BLOCK)
