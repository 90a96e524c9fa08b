"""Plain attributes that a script sets between two steps, such as `training` of a module or `level` of a dataset."""

from collections.abc import Iterator, Mapping
from operator import is_not
from types import FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
from torch import Tensor, nn

from esprof.core.errors import MismatchError
from esprof.elastic.verify.second_run import ATTRIBUTES_OF_ALL_MODULES
from esprof.elastic.verify.steplog import Scalar

_MAX_DEPTH = 4
"""How deep objects in a dataset are looked into: `Subset(ConcatDataset([...]))` with transforms needs three."""

_MAX_ITEMS = 64
"""Objects of a list that are looked into, such as the transforms of a `Compose`."""

_CLOSED = (type, Tensor, nn.Module, np.ndarray, ModuleType, FunctionType, MethodType)
"""Kinds of objects in a dataset that are not looked into."""

_SKIPPED = ATTRIBUTES_OF_ALL_MODULES - {"training"}

Owners = dict[str, dict[str, Any]]
"""Name of an object -> its attributes, as in `vars`."""


Place = tuple[str, dict[str, Any], str]
"""Name of an attribute, such as `model.body.0.p`; the attributes of its object, and its key among them."""


class ModuleAttributes:
    """The attributes of a model's modules but those that all modules have; `training` is one of them.

    Walking through a model takes long, so its modules are found again only when one has come, gone or been replaced, and
    attributes when their number has changed.
    """

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self._modules: list[nn.Module] = []
        self._owners: Owners = {}
        self._places: list[Place] = []
        self._seen: object = None

    def owners(self) -> Owners:
        """Name of a module -> its attributes."""
        self.places()
        return self._owners

    def places(self) -> list[Place]:
        """The attributes that there are now."""
        if self._seen is None or self._seen != self._shape():
            named = {f"model.{name}".rstrip("."): module for name, module in self._model.named_modules()}
            self._modules, self._owners = list(named.values()), {name: vars(module) for name, module in named.items()}
            self._places = [
                (f"{owner}.{key}", attributes, key)
                for owner, attributes in self._owners.items()
                for key in attributes
                if key not in _SKIPPED
            ]
            self._seen = self._shape()
        return self._places

    def size(self) -> int:
        """Number of attributes of all modules."""
        return sum(map(len, self._owners.values()))

    def _shape(self) -> tuple[list[int], int]:
        return [id(child) for module in self._modules for child in module._modules.values()], self.size()


class Attributes:
    """What a script has changed in attributes of its model and its dataset.

    Numbers, strings, booleans and None are noted by value. Of other values of a dataset a change is noted if another
    object took their place, or if a list, dict or tensor shows it by its length or its version.
    """

    def __init__(self, model: nn.Module, dataset: object) -> None:
        self._modules, self._dataset = ModuleAttributes(model), dataset
        self.changed: dict[str, Scalar] = {}
        """Each plain attribute that the script has changed since the job began, and its value, by name."""
        self._left: list[Any] = []
        self._names: list[str] = []
        self._left_in_dataset: dict[str, Any] = {}

    def mark(self) -> None:
        """Store the present values as those with which the script gets model and dataset."""
        places = self._modules.places()
        self._names = [name for name, _, _ in places]
        self._left = [attributes.get(key) for _, attributes, key in places]
        self._left_in_dataset = _in_dataset(self._of_dataset())

    def note(self) -> bool:
        """Note what the script has changed since `mark`. Returns whether the dataset has changed."""
        in_model = self._changes_of_model()
        in_dataset = _changes(self._left_in_dataset, _in_dataset(self._of_dataset()))
        self.changed |= {name: value for name, value in {**in_model, **in_dataset}.items() if _is_plain(value)}
        return bool(in_dataset)

    def restore(self, saved: Mapping[str, Scalar]) -> None:
        """Set the attributes of a checkpoint. Raises MismatchError where an object that had one is missing."""
        owners = self._modules.owners() | self._of_dataset()
        for name, value in saved.items():
            owner, _, key = name.rpartition(".")
            if owner not in owners:
                raise MismatchError(
                    f"the script had set {name} to {value!r} before the checkpoint, and there is no {owner} now",
                    remedy="Build the same model and dataset as before.",
                )
            owners[owner][key] = value
        self.changed = dict(saved)

    def _changes_of_model(self) -> dict[str, Any]:
        places = self._modules.places()
        now = [attributes.get(key) for _, attributes, key in places]
        if len(now) == len(self._left) and not any(map(is_not, now, self._left)):
            return {}
        found = {name: value for (name, _, _), value in zip(places, now, strict=True) if _is_plain(value)}
        return _changes(dict(zip(self._names, self._left, strict=True)), found)

    def _of_dataset(self) -> Owners:
        return dict(_objects("dataset", self._dataset, set(), 0))


def _objects(name: str, value: object, seen: set[int], depth: int) -> Iterator[tuple[str, dict[str, Any]]]:
    """An object with attributes, and those that it holds."""
    if depth > _MAX_DEPTH or id(value) in seen or isinstance(value, _CLOSED) or not hasattr(value, "__dict__"):
        return
    seen.add(id(value))
    yield name, vars(value)
    for key, held in list(vars(value).items()):
        if isinstance(held, list | tuple):
            for number, item in enumerate(held[:_MAX_ITEMS]):
                yield from _objects(f"{name}.{key}[{number}]", item, seen, depth + 1)
        else:
            yield from _objects(f"{name}.{key}", held, seen, depth + 1)


def _in_dataset(owners: Owners) -> dict[str, Any]:
    """All attributes of the objects of a dataset, by name."""
    return {
        f"{owner}.{key}": value if _is_plain(value) else _HeldValue(value)
        for owner, attributes in owners.items()
        for key, value in attributes.items()
    }


class _HeldValue:
    """A value that is compared by identity, and what it shows of changes in place."""

    def __init__(self, value: object) -> None:
        self._value = value  # Held, so that no other object gets its id.
        is_sized = isinstance(value, list | tuple | dict | set)
        self._shows = value._version if isinstance(value, Tensor) else len(value) if is_sized else 0  # type: ignore[arg-type]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _HeldValue) and self._value is other._value and self._shows == other._shows

    __hash__ = None  # type: ignore[assignment]


def _changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> dict[str, Any]:
    return {
        name: value
        for name, value in now.items()
        if name not in before or not (before[name] is value or _is_same(before[name], value))
    }


def _is_same(a: object, b: object) -> bool:
    return type(a) is type(b) and a == b


def _is_plain(value: object) -> bool:
    return type(value) in (bool, int, float, str, type(None))
