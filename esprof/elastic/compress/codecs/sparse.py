"""Sparse codecs with error feedback: entries that are not sent are added to the next gradient.

Sparsified SGD with memory (Stich et al., NeurIPS 2018, algorithm 1).
"""

import math
from collections.abc import Iterator

import torch
from torch import Tensor

from esprof.core.errors import UsageError
from esprof.elastic.compress.codecs.codec import State, counted, typed, with_residual

_ENTRIES_AT_ONCE = 64
"""Length of random-k's runs of entries: reading neighbours is much faster than reading single entries."""
_STEP_BYTES = 8


class TopK:
    """The largest entries by magnitude. At least one is sent, if there is one."""

    has_state = True

    def __init__(self, ratio: float) -> None:
        self._ratio = _checked("top-k", ratio)
        self.spec = f"topk:{ratio:g}"

    def encode(self, gradient: Tensor, state: State) -> Tensor:
        residual = with_residual(gradient, state)
        index = residual.abs().topk(self._count(gradient.numel())).indices.sort().values
        value = residual[index].to(torch.float32)
        residual[index] -= value.to(residual.dtype)
        return torch.cat([index.to(torch.int32).view(torch.uint8), value.view(torch.uint8)])

    def decode(self, wire: Tensor, out: Tensor) -> None:
        half = wire.numel() // 2
        out.zero_()
        out[typed(wire[:half], torch.int32).long()] = typed(wire[half:], torch.float32).to(out.dtype)

    def wire_bytes(self, numel: int) -> int:
        return 8 * self._count(numel)

    def _count(self, numel: int) -> int:
        return min(numel, max(1, math.floor(numel * self._ratio)))


class RandomK:
    """Random entries, different for each gradient and the same on all ranks, so that they can be summed. Takes runs of
    64 neighbours, or single entries of a gradient shorter than two runs."""

    has_state = True

    def __init__(self, ratio: float) -> None:
        self._ratio = _checked("random-k", ratio)
        self.spec = f"randk:{ratio:g}"

    def encode(self, gradient: Tensor, state: State) -> Tensor:
        number = counted(state)
        index, residual = self._index(gradient, number), with_residual(gradient, state)
        value = residual[index].to(torch.float32)
        residual[index] -= value.to(residual.dtype)
        step = torch.tensor([number], dtype=torch.int64, device=gradient.device)
        return torch.cat([step.view(torch.uint8), value.view(torch.uint8)])

    def decode(self, wire: Tensor, out: Tensor) -> None:
        number = int(typed(wire[:_STEP_BYTES], torch.int64))
        out.zero_()
        out[self._index(out, number)] = typed(wire[_STEP_BYTES:], torch.float32).to(out.dtype)

    def wire_bytes(self, numel: int) -> int:
        run, runs = self._runs(numel)
        return _STEP_BYTES + 4 * run * runs if numel else _STEP_BYTES

    def reduce(self, gradient: Tensor, state: State, world: int) -> Iterator[Tensor]:
        index, residual = self._index(gradient, counted(state)), with_residual(gradient, state)
        # A non-finite value on one rank must reach all: a loss scaler then skips the step.
        value = residual[index] * (1 / world) + 0 * residual.sum()
        residual[index] = 0
        yield value
        gradient.zero_()
        gradient[index] = value

    def _runs(self, numel: int) -> tuple[int, int]:
        """(entries of a run, number of runs sent). Entries after the last complete run belong to none in this step."""
        run = _ENTRIES_AT_ONCE if numel >= 2 * _ENTRIES_AT_ONCE else 1
        return run, min(numel // run, max(1, math.floor(numel * self._ratio / run)))

    def _index(self, like: Tensor, number: int) -> Tensor:
        """Indices of the entries sent of a gradient of the shape of `like`."""
        numel = like.numel()
        run, count = self._runs(numel)
        chosen = torch.randperm(max(1, numel // run), generator=torch.Generator().manual_seed(number))[:count]
        # Runs start at another offset each time, so that the entries after the last complete one are sent, too.
        first = (chosen.sort().values * run + number * run // 2) % max(1, numel)
        return ((first[:, None] + torch.arange(run)).ravel() % max(1, numel)).to(like.device)


def _checked(name: str, ratio: float) -> float:
    if not 0 < ratio <= 1:
        raise UsageError(f"{name} needs a share between 0 and 1, not {ratio:g}")
    return ratio
