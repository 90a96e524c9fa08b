"""Buffers of the model and of modules outside of it, such as BatchNorm's running statistics, with the meaning that those of
a model have under DistributedDataParallel."""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from esprof.core.assignment import Est
from esprof.core.errors import UsageError
from esprof.elastic.runtime.transport import Transport


class Buffers:
    """Every EST starts a step from the same buffers; the values of EST 0 are then used on all ranks.

    A module may change a buffer in place or assign another tensor of that shape and type. After an EST step the
    module has its original tensors again, with the new values.
    """

    def __init__(self, modules: Mapping[str, nn.Module]) -> None:
        """`modules` are by name; the model's is empty."""
        self._roots = modules
        self._modules: list[dict[str, Tensor | None]] = []
        self._entries: list[_BufferEntry] = []
        self._own: list[Tensor] = []
        self._before: list[Tensor] = []
        self._values_of_est_0: list[Tensor] = []

    def begin(self) -> None:
        """Store the values of the buffers at the start of a step."""
        # Walking through the model takes longer than copying small buffers: do it once per step.
        named = [
            (name, module._buffers)
            for prefix, root in self._roots.items()
            for name, module in root.named_modules(prefix=prefix)
        ]
        self._modules = [buffers for _, buffers in named]
        self._entries = [
            _BufferEntry(".".join(filter(None, (name, key))), buffers, key, tensor)
            for name, buffers in named
            for key, tensor in buffers.items()
        ]
        self._own = [entry.tensor for entry in self._entries if entry.tensor is not None]
        self._before = self._copy()
        self._values_of_est_0 = self._before

    def enter(self) -> None:
        """Start an EST step: reset the buffers to their values at the start of the step."""
        self._write(self._before)

    def leave(self, est: Est) -> None:
        """End an EST step: restore the tensors of the buffers, and store the values of EST 0.

        Raises UsageError if a buffer was registered, deleted, or changed its shape or type.
        """
        if sum(map(len, self._modules)) != len(self._entries):
            raise UsageError("a buffer was registered or deleted during a step", remedy="Register buffers in __init__.")
        for entry in self._entries:
            entry.reclaim()
        if est == 0:
            self._values_of_est_0 = self._copy()

    def named(self) -> dict[str, Tensor]:
        """The buffers with their present values, by name. Only after `begin`."""
        return {entry.name: entry.tensor for entry in self._entries if entry.tensor is not None}

    @torch.no_grad()
    def finish(self, transport: Transport, owner: int) -> None:
        """End a step: set the buffers on all ranks to the values of EST 0, which the rank `owner` runs."""
        self._write(self._values_of_est_0)
        if transport.world > 1:
            for dtype in dict.fromkeys(buffer.dtype for buffer in self._own):
                _share([buffer for buffer in self._own if buffer.dtype == dtype], transport, owner)

    @torch.no_grad()
    def _copy(self) -> list[Tensor]:
        return [buffer.clone() for buffer in self._own]

    @torch.no_grad()
    def _write(self, values: list[Tensor]) -> None:
        for buffer, value in zip(self._own, values, strict=True):
            buffer.copy_(value)


@dataclass(frozen=True)
class _BufferEntry:
    """Location of a buffer in its module, and its tensor at the start of the step."""

    name: str
    buffers: dict[str, Tensor | None]
    key: str
    tensor: Tensor | None

    @torch.no_grad()
    def reclaim(self) -> None:
        """Restore the tensor, with the current value. Raises UsageError if shape or type changed."""
        now = self.buffers[self.key]
        if now is self.tensor:
            return
        if now is None or self.tensor is None or _kind(now) != _kind(self.tensor):
            raise UsageError(
                f"buffer {self.name} was {_kind(self.tensor)} before a step and {_kind(now)} during the step",
                remedy="Keep its shape, type and device: all ESTs start a step with the same buffers.",
            )
        self.tensor.copy_(now.detach().clone())  # It may be a view of what is overwritten.
        self.buffers[self.key] = self.tensor


def _kind(tensor: Tensor | None) -> str:
    return "None" if tensor is None else f"{str(tensor.dtype)[6:]} {list(tensor.shape)} on {tensor.device}"


def _share(buffers: list[Tensor], transport: Transport, owner: int) -> None:
    """Overwrite buffers of one type with those of the rank `owner`, in one broadcast."""
    flat = torch.cat([buffer.reshape(-1) for buffer in buffers])
    transport.broadcast(flat, owner).wait()
    for buffer, values in zip(buffers, flat.split([buffer.numel() for buffer in buffers]), strict=True):
        buffer.copy_(values.view_as(buffer))
