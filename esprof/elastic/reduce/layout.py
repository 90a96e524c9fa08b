"""One flat tensor for all gradients of an EST, cut into buckets."""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from esprof.core.errors import UsageError

_ALIGNMENT_BYTES = 64
"""Bytes to which each slot, and each rank's shard of a bucket, is aligned: a kernel may add in another order where its
input begins within a vector, and where a shard begins depends on the world's size."""


@dataclass(frozen=True)
class Slot:
    """The position of a parameter in the flat tensor."""

    name: str
    parameter: nn.Parameter
    start: int
    bucket: int

    @property
    def stop(self) -> int:
        return self.start + self.parameter.numel()

    def of(self, flat: Tensor) -> Tensor:
        """The slice of a flat tensor for this parameter, 1-D."""
        return flat[self.start : self.stop]

    def shaped(self, flat: Tensor) -> Tensor:
        """That slice in the parameter's shape."""
        return flat.as_strided(self.parameter.shape, self._strides, self.start)

    @cached_property
    def _strides(self) -> tuple[int, ...]:
        return torch.empty(self.parameter.shape, device="meta").stride()


@dataclass(frozen=True)
class Bucket:
    """A range of the flat tensor that is sent at once; its length is a multiple of the world size."""

    start: int
    stop: int
    slots: tuple[Slot, ...]


class Layout:
    """Parameters in reverse order of registration, approximately the order of the backward pass.

    Each gradient is moved into a flat tensor as soon as it is computed. Raises UsageError where the parameters differ in
    type or device.
    """

    def __init__(self, model: nn.Module, world: int, bucket_bytes: int) -> None:
        named = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
        kinds = {(parameter.dtype, parameter.device) for _, parameter in named}
        if len(kinds) != 1 or not next(iter(kinds))[0].is_floating_point or next(iter(kinds))[0].itemsize < 4:
            listed = ", ".join(sorted(f"{dtype} on {device}" for dtype, device in kinds)) or "there are none"
            raise UsageError(
                f"trainable parameters must all be float32 (or all float64) and on one device: {listed}",
                remedy="For mixed precision keep them float32 and pass Gradients(amp='bf16').",
            )
        self.dtype, self.device = next(iter(kinds))
        self.buckets = _buckets(named[::-1], world, max(1, bucket_bytes // self.dtype.itemsize))
        self.slots = tuple(slot for bucket in self.buckets for slot in bucket.slots)
        self.numel = self.buckets[-1].stop
        self.parameters = frozenset(id(parameter) for parameter in model.parameters())
        """Ids of all parameters, frozen ones too."""
        self._trained = [(name, parameter, parameter.requires_grad) for name, parameter in model.named_parameters()]
        self._views: dict[str, Tensor] = {}
        """Name of a parameter -> the gradient that is attached to it."""

    def new(self) -> Tensor:
        """A flat tensor; its content is arbitrary."""
        return torch.empty(self.numel, dtype=self.dtype, device=self.device)

    def attach(self, flat: Tensor) -> None:
        """Make slices of `flat` the gradients of the parameters."""
        for slot in self.slots:
            self._attach(slot, flat)

    def detach(self) -> None:
        """Take the gradients away from the parameters."""
        for slot in self.slots:
            slot.parameter.grad = None
        self._views.clear()

    def take(self, slot: Slot, flat: Tensor) -> bool:
        """Move the gradient that a parameter has just got into `flat`, unless it was added to one that is there already.
        Returns False if the script has put another one in its place."""
        gradient, view = slot.parameter.grad, self._views.get(slot.name)
        if gradient is None or view is not None:
            return gradient is not None and gradient is view
        self._attach(slot, flat).copy_(gradient)
        return True

    def fill(self, flat: Tensor, taken: Collection[str], *, as_ddp: bool) -> None:
        """Fill the slices of parameters whose gradient was not `taken`, by name: with 0.0 `as_ddp` does, else with -0.0, the
        one number that changes no other when it is added."""
        if len(taken) < len(self.slots):
            for slot in self.slots:
                if slot.name not in taken:
                    slot.of(flat).fill_(0.0 if as_ddp else -0.0)

    def lost(self, mean: Tensor, exact: Tensor) -> float:
        """Squared error of the gradient in the flat tensor `mean`, relative to the square of that in `exact`. What lies
        between slots is no part of either."""
        off = whole = torch.zeros((), dtype=torch.float64, device=self.device)
        for slot in self.slots:
            wanted = slot.of(exact).double()
            off = off + (slot.of(mean).double() - wanted).square().sum()
            whole = whole + wanted.square().sum()
        return float(off / whole) if whole else 0.0

    def holds(self) -> bool:
        """Whether each parameter still has the gradient that was attached to it, or none."""
        return all(slot.parameter.grad is self._views.get(slot.name) for slot in self.slots)

    def check(self) -> None:
        """Raise UsageError where other parameters are trained now than there were slots made for."""
        for name, parameter, trained in self._trained:
            if parameter.requires_grad != trained:
                raise UsageError(
                    f"{name} was {'frozen' if trained else 'unfrozen'} after ElasticTrainer was made",
                    remedy="Set requires_grad before. To freeze a parameter for some steps, use a learning rate of 0.",
                )

    def watch(self, ready: Callable[[Slot], None]) -> list[RemovableHandle]:
        """Call `ready` each time that a parameter's gradient has been accumulated, until the handles are removed."""

        def hook(slot: Slot) -> Callable[[Tensor], None]:
            return lambda _: ready(slot)

        return [slot.parameter.register_post_accumulate_grad_hook(hook(slot)) for slot in self.slots]

    def _attach(self, slot: Slot, flat: Tensor) -> Tensor:
        view = self._views[slot.name] = slot.shaped(flat)
        slot.parameter.grad = view
        return view


class Countdown:
    """Tracks which buckets are complete while the gradients of one EST arrive."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._missing = [len(bucket.slots) for bucket in layout.buckets]
        self._taken = 0

    def arrived(self, slot: Slot) -> Iterator[Bucket]:
        """Count a gradient, and yield the buckets that are now complete, in bucket order: all ranks must start
        collectives in the same order."""
        self._missing[slot.bucket] -= 1
        while self._taken < len(self._missing) and self._missing[self._taken] <= 0:
            yield self._take()

    def rest(self) -> Iterator[Bucket]:
        """Yield all buckets that were not yielded yet, in their order."""
        while self._taken < len(self._missing):
            yield self._take()

    def _take(self) -> Bucket:
        self._taken += 1
        return self._layout.buckets[self._taken - 1]


def _buckets(named: list[tuple[str, nn.Parameter]], world: int, most: int) -> tuple[Bucket, ...]:
    buckets: list[Bucket] = []
    slots: list[Slot] = []
    begin = at = 0
    aligned = _ALIGNMENT_BYTES // named[0][1].dtype.itemsize
    for index, (name, parameter) in enumerate(named):
        slots.append(Slot(name, parameter, at, len(buckets)))
        at += _up_to(parameter.numel(), aligned)
        if at - begin >= most or index == len(named) - 1:
            stop = begin + _up_to(at - begin, aligned * world)
            buckets.append(Bucket(begin, stop, tuple(slots)))
            slots, begin, at = [], stop, stop
    return tuple(buckets)


def _up_to(count: int, multiple: int) -> int:
    return -(-count // multiple) * multiple
