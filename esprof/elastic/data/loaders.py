"""A DataLoader for each EST, for stateful datasets."""

import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from esprof.core.assignment import Est
from esprof.core.errors import InputError, UsageError
from esprof.elastic.data.threads import one_thread
from esprof.elastic.runtime.rng import derived_seed, seeded


class StatefulLoader(Protocol):
    """The interface of torchdata's StatefulDataLoader: batches of one size, and the position among them."""

    def __iter__(self) -> Iterator[Any]: ...

    def __len__(self) -> int: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state_dict: dict[str, Any]) -> None: ...


MakeLoader = Callable[[Est, int], StatefulLoader]
"""(EST, number of ESTs) -> its loader."""


@dataclass(frozen=True)
class Loaders:
    """Replaces a dataset that has state: each EST has a loader, whose state moves with the EST and is saved in
    checkpoints."""

    make: MakeLoader
    """Makes the loader of an EST, a StatefulDataLoader, given the EST's number and the number of ESTs. All loaders have
    batches of the trainer's `batch_size`, and equally many batches in an epoch."""


_END = object()


def batches_per_epoch(make: MakeLoader, n_est: int, seed: int, accumulate: int) -> int:
    """Number of batches in an epoch of a loader.

    Raises UsageError for a loader without a length or a state, or if an epoch is not a multiple of a step.
    """
    with seeded(derived_seed(seed, 0, 0)):
        loader = make(0, n_est)
    if not hasattr(loader, "state_dict"):
        raise UsageError("the loader has no state_dict()", remedy="Make a torchdata StatefulDataLoader in Loaders.")
    try:
        count = len(loader)
    except TypeError as error:
        raise UsageError(f"the loader has no length: {error}", remedy="Give its dataset a __len__.") from error
    if not count or count % accumulate:
        raise UsageError(f"the {count} batches in an epoch of a loader are not a multiple of accumulate={accumulate}")
    return count


class EstLoader:
    """The loader of one EST, created at its first batch, and again on the rank to which the EST moves.

    While the loader works, the generators are seeded by the number of batches taken, so that neither the loader nor its
    workers draw from the EST's own stream. The generators of worker processes restart with a new loader.
    """

    def __init__(self, state: Tensor | None = None) -> None:
        """`state` (1-D, uint8) is the result of the method `state`, to resume from."""
        self._state: dict[str, Any] | None = _unpacked(state) if state is not None else None
        self._taken: int = self._state["taken"] if self._state else 0
        self._loader: StatefulLoader | None = None
        self._batches: Iterator[Any] = iter(())

    def next(self, make: MakeLoader, est: Est, n_est: int, seed: int, per_epoch: int) -> Any:
        """The next batch; after the last one, the `per_epoch`-th, the next epoch's first.

        Raises UsageError for a loader whose epoch does not have `per_epoch` batches.
        """
        new = self._loader is None  # A loader restored at the end of an epoch may start the next epoch by itself.
        if self._loader is None:
            with seeded(derived_seed(seed, 0, est)):
                self._loader = make(est, n_est)
                if len(self._loader) != per_epoch:
                    raise _unequal(est, f"has {len(self._loader)} batches", per_epoch)
                if self._state is not None:
                    self._loader.load_state_dict(self._state["loader"])
                self._batches = iter(self._loader)
        position = self._taken % per_epoch
        self._taken += 1
        with seeded(derived_seed(seed, self._taken, est)), one_thread():
            batch = next(self._batches, _END)
            if batch is _END and position == 0:
                self._batches = iter(self._loader)
                batch = next(self._batches, _END)
            elif position == 0 and not new:
                raise _unequal(est, f"goes on after {per_epoch} batches", per_epoch)
        if batch is _END:
            raise _unequal(est, f"has ended after {position} batches", per_epoch)
        return batch

    def state(self) -> Tensor | None:
        """The state of the loader as bytes (1-D, uint8); None before the first batch."""
        if self._loader is not None:
            self._state = {"taken": self._taken, "loader": self._loader.state_dict()}
        return _packed(self._state) if self._state is not None else None


def _unequal(est: Est, found: str, per_epoch: int) -> UsageError:
    return UsageError(
        f"the loader of EST {est} {found}; an epoch has {per_epoch}",
        remedy="Give the loaders of all ESTs the same number of batches, and a correct length.",
    )


def _packed(state: dict[str, Any]) -> Tensor:
    file = io.BytesIO()
    torch.save(state, file)
    return torch.frombuffer(file.getbuffer(), dtype=torch.uint8).clone()


def _unpacked(packed: Tensor) -> dict[str, Any]:
    """Only tensors, numbers, strings and containers of them are unpickled: nothing can run code."""
    try:
        state: dict[str, Any] = torch.load(io.BytesIO(packed.numpy().tobytes()), weights_only=True)
    except Exception as error:  # torch.load raises almost anything on bytes that are no checkpoint.
        raise InputError(
            f"the state of an EST's loader cannot be read: {error}",
            remedy="Keep only numbers, strings, tensors, lists and dicts in the state of the dataset.",
        ) from error
    return state
