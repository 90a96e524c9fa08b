"""What a training script reaches besides its model: listed at start, watched while it trains, saved in checkpoints."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from math import inf
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from esprof.core import readable
from esprof.core.types import Rank
from esprof.elastic.checkpoint.extra import extra_states
from esprof.elastic.options import Data, Updates
from esprof.elastic.reach.places import ABSENT, CellPlace, Place
from esprof.elastic.reach.values import PLAIN, can_move, can_move_with_est, is_container, is_generator, note, same
from esprof.elastic.reach.walk import walk
from esprof.elastic.verify.content import content

_MAX_LISTED = 8
"""Things that are listed at start."""

_MAX_ITEMS_IN_DATA = 1000
"""Longer containers of a dataset, such as lists of files, are compared by identity and length."""


class ReachedState:
    """Three groups: what EST steps reach (model and losses), what updates reach (optimizers, schedulers, callbacks), and
    what makes batches."""

    def __init__(
        self,
        model: nn.Module,
        losses: Sequence[object],
        optimizers: Sequence[Optimizer],
        updates: Updates,
        data: Data,
    ) -> None:
        self._model = model
        own = list((updates.state or {}).values())  # The script has them saved itself.
        of_turns = {"model": model, **_numbered("loss", losses)}
        of_updates = {**_numbered("optimizer", optimizers), **_numbered("scheduler", updates.schedulers)}
        of_updates |= {"before_update": updates.before_update, "after_step": updates.after_step}
        self.turns, self.updates = walk([of_turns, of_updates], model, own)
        self._roots_of_data = {"dataset": data.dataset, "collate_fn": data.collate_fn, "sampler": data.sampler}
        self._find_data()
        self.first = {place.name: note(place.get()) for place in self.places.values()}
        """Notes of all values as the script has made them."""
        self.first_of_modules = {name: self.noted(name) for name in self.modules}
        self.restored: set[str] = set()
        """Places and modules that a checkpoint has set."""
        self.set_in_data: set[str] = set()
        """Places of the dataset that the script has set between two steps."""
        self._counted: set[str] = set()
        """Places of the dataset that have changed when a sample was made."""
        self.mark()

    @property
    def places(self) -> dict[str, Place]:
        """All places, by name."""
        return self.data.by_name() | self.updates.by_name() | self.turns.by_name()

    def place(self, name: str) -> Place | None:
        """The place of this name, also where an object has no such attribute yet; None if there is no such object."""
        return next(filter(None, (group.place(name) for group in (self.turns, self.updates, self.data))), None)

    @property
    def modules(self) -> dict[str, nn.Module]:
        """All modules outside of the model, by name."""
        return self.updates.modules | self.turns.modules

    def mark(self) -> None:
        """Store the values of the data as those with which the script gets them."""
        self._left = self._notes_of_data()

    def note(self) -> bool:
        """Note what the script has changed in the data since `mark`. Returns whether there is anything."""
        now = self._notes_of_data()
        changed = {name for name in {**self._left, **now} if not same(self._left.get(name), now.get(name))}
        if changed:
            self.set_in_data |= changed
            self._find_data()
        return bool(changed)

    @contextmanager
    def makes_samples(self, rank: Rank) -> Iterator[None]:
        """In this block samples are made. Rank 0 tells of numbers that change: each process and loader has its own."""
        before = self._numbers_of_data()
        yield
        changed = {name for name, value in self._numbers_of_data().items() if not same(before.get(name), value)}
        if (new := changed - self._counted) and rank == 0:
            sys.stderr.write(
                f"esprof: making a sample changes {', '.join(sorted(new))}, of which each process and loader worker has its "
                "own; samples that depend on it differ with the number of processes\n"
            )
        self._counted |= changed

    def noted(self, module: str) -> dict[str, object]:
        """What shows whether a module outside of the model has changed: versions, and a hash of its buffers, which kernels
        of BatchNorm change unnoted."""
        found = self.modules[module]
        versions: dict[str, object] = {name: note(parameter) for name, parameter in found.named_parameters()}
        rest = {**dict(found.named_buffers()), **extra_states(found)}
        return versions | {"rest": content(rest)}

    def read_by_code(self) -> list[Place]:
        """Places that the code of losses and forward passes names."""
        names = self.turns.names
        return [place for place in self.turns.places if place.key in names or isinstance(place, CellPlace)]

    def contents(self) -> dict[str, str]:
        """Hashes of the values that EST steps reach besides the model, by name."""
        values = {name: place.get() for name, place in self.turns.by_name().items()}
        return {
            name: content(value) for name, value in values.items() if value is not ABSENT and can_move_with_est(value)
        }

    def listing(self) -> str:
        """What was found besides plain values, for a person; empty if there is nothing."""
        found = [f"module {name} ({_tensors_of(module)})" for name, module in self.modules.items()]
        for place in [*self.turns.places, *self.updates.places]:
            value = place.get()
            is_empty = is_container(value) and not value
            if value is not ABSENT and type(value) not in PLAIN and not is_empty and can_move(value, inf):
                what = "generator" if is_generator(value) else type(value).__name__.lower()
                found.append(f"{what} {place.name}")
        return readable.listed(found, _MAX_LISTED)

    def announce(self, rank: Rank) -> str:
        """A clause for the job's history of what was found, empty if there is nothing; rank 0 prints it, too."""
        found = self.listing()
        if found and rank == 0:
            sys.stderr.write(f"esprof: besides the model the script reaches {found}: docs/how-to/elastic-bits.md\n")
        return f"; besides the model the script reaches {found}" if found else ""

    def _find_data(self) -> None:
        (self.data,) = walk([self._roots_of_data], self._model)

    def _numbers_of_data(self) -> dict[str, object]:
        values = {name: place.get() for name, place in self.data.by_name().items()}
        return {name: value for name, value in values.items() if type(value) in PLAIN}

    def _notes_of_data(self) -> dict[str, object]:
        return {name: note(place.get(), _MAX_ITEMS_IN_DATA) for name, place in self.data.by_name().items()}


def _numbered(name: str, items: Sequence[object]) -> dict[str, Any]:
    return {name: items[0]} if len(items) == 1 else {f"{name} {number}": item for number, item in enumerate(items)}


def _tensors_of(module: nn.Module) -> str:
    tensors: Mapping[str, Tensor] = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    mib = sum(tensor.nbytes for tensor in tensors.values()) / (1 << 20)
    return f"{len(tensors)} tensors, {mib:.1f} MiB"
