"""Partial sums of gradients stored in host memory, so that GPU memory does not grow with the number of ESTs."""

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor


class Copier(Protocol):
    """Copies tensors concurrently with computation on the device."""

    def copy(self, to: Tensor, source: Tensor) -> Any:
        """Start to copy `source`, once all work that the device was given so far is done. Copies are made one after the
        other. Returns what `wait` takes."""

    def wait(self, copied: Any) -> None:
        """Let the device wait until this copy is done."""


class SideStream:
    """Copies on a stream of their own, to and from pinned memory."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)

    def copy(self, to: Tensor, source: Tensor) -> torch.cuda.Event:
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            to.copy_(source, non_blocking=True)
        copied: torch.cuda.Event = self._stream.record_event()
        return copied

    def wait(self, copied: torch.cuda.Event) -> None:
        torch.cuda.current_stream(self._device).wait_event(copied)


class Stash:
    """Moves partial sums from the device to host memory, and back, whole or by bucket."""

    def __init__(self, copier: Copier) -> None:
        self._copier = copier
        self._hosts: list[Tensor] = []
        self._leaving: list[tuple[Tensor, Any]] = []

    @classmethod
    def on(cls, device: torch.device) -> "Stash | None":
        """The stash for a device; None where the device's memory is the host's, so that none is needed."""
        return cls(SideStream(device)) if device.type == "cuda" else None

    def put(self, flat: Tensor) -> "Held":
        """Start to copy a sum to host memory; its tensor `flat` comes back from `emptied`."""
        host = self._hosts.pop() if self._hosts else torch.empty_like(flat, device="cpu", pin_memory=flat.is_cuda)
        self._leaving.append((flat, self._copier.copy(host, flat)))
        return Held(self, host)

    def emptied(self) -> Tensor | None:
        """A tensor of the device whose sum has been copied to the host; None where there is none."""
        if not self._leaving:
            return None
        flat, copied = self._leaving.pop(0)
        self._copier.wait(copied)
        return flat

    def fetch(self, host: Tensor, out: Tensor) -> None:
        self._copier.wait(self._copier.copy(out, host))

    def release(self, host: Tensor) -> None:
        self._hosts.append(host)


@dataclass(frozen=True)
class Held:
    """A partial sum in host memory."""

    stash: Stash
    host: Tensor

    def fetch(self, where: slice, out: Tensor) -> Tensor:
        """Copy a stretch of the sum to `out` on the device, and return `out`."""
        self.stash.fetch(self.host[where], out)
        return out

    def release(self) -> None:
        """Give the host memory back, as the sum is needed no longer."""
        self.stash.release(self.host)
