"""A check that a loader which is resumed from its state uses each item exactly once."""

import random
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from typing import Any, Protocol

import numpy as np

from esprof.core.errors import MismatchError, UsageError


class Resumable(Protocol):
    """A loader with a state, such as torchdata's StatefulDataLoader."""

    def __iter__(self) -> Iterator[Any]: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: dict[str, Any], /) -> None: ...


def check_resume(
    make_loader: Callable[[], Resumable],
    items: Callable[[Any], Iterable[Hashable]] | None = None,
    *,
    stops: int = 20,
    seed: int = 0,
) -> None:
    """Stop an epoch at random batches, resume it from the loader's state with a new loader, and compare the items.

    `make_loader` makes a loader at the start of the same epoch each time; it is called `stops` + 1 times. `items` tells the
    items of a batch, such as their numbers; by default an item is the content of a row of the batch's arrays, which random
    transforms change.

    Raises MismatchError if items are lost or repeated, and UsageError if the loader has no state or no batches.
    """
    rows = items or _rows
    whole = [list(rows(batch)) for batch in make_loader()]
    if not whole:
        raise UsageError("the loader makes no batches")
    expected = Counter(item for batch in whole for item in batch)
    draw = random.Random(seed)
    for _ in range(stops):
        at = draw.randrange(1, len(whole) + 1)
        seen = Counter(_resumed(make_loader, rows, at))
        if seen != expected:
            lost, repeated = (expected - seen).total(), (seen - expected).total()
            raise MismatchError(
                f"an epoch that stops after batch {at} of {len(whole)} and resumes loses {lost} items and repeats "
                f"{repeated}",
                remedy="Save the loader's state with each checkpoint (snapshot_every_n_steps=1), and seed its order.",
            )


def _resumed(make: Callable[[], Resumable], rows: Callable[[Any], Iterable[Hashable]], at: int) -> Iterator[Hashable]:
    """The items of an epoch that is stopped after `at` batches."""
    loader = make()
    if not hasattr(loader, "state_dict"):
        raise UsageError("the loader has no state_dict()", remedy="Make a torchdata StatefulDataLoader.")
    batches = iter(loader)
    for _ in range(at):
        yield from rows(next(batches))
    state, after = loader.state_dict(), make()
    after.load_state_dict(state)
    for batch in after:
        yield from rows(batch)


def _rows(batch: Any) -> list[bytes]:
    """A digest of each row of the arrays in a batch."""
    arrays = [np.asarray(leaf) for leaf in _leaves(batch)]
    counts = {len(array) for array in arrays if array.ndim}
    if len(counts) != 1:
        raise UsageError(
            "the items of a batch are not known: its arrays differ in length",
            remedy="Pass items=, a function that returns the items of a batch.",
        )
    return [blake2b(b"".join(array[row].tobytes() for array in arrays)).digest() for row in range(counts.pop())]


def _leaves(batch: Any) -> Iterator[Any]:
    """The tensors, arrays and lists of values in a batch."""
    if isinstance(batch, Mapping):
        batch = list(batch.values())
    if isinstance(batch, Sequence) and not isinstance(batch, str | bytes) and any(_is_array(one) for one in batch):
        for one in batch:
            yield from _leaves(one)
    else:
        yield batch


def _is_array(one: Any) -> bool:
    return hasattr(one, "shape") or isinstance(one, Mapping | list | tuple)
