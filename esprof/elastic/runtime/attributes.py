"""Plain attributes of modules that a script sets between two steps, such as `training`."""

from collections.abc import Mapping
from operator import is_not
from typing import Any

from torch import nn

from esprof.core.errors import MismatchError
from esprof.elastic.verify.second_run import ATTRIBUTES_OF_ALL_MODULES
from esprof.elastic.verify.steplog import Scalar

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
    """The numbers, strings, booleans and Nones that a script has set in attributes of its model."""

    def __init__(self, model: nn.Module) -> None:
        self._modules = ModuleAttributes(model)
        self.changed: dict[str, Scalar] = {}
        """Each plain attribute that the script has changed since the job began, and its value, by name."""
        self._left: list[Any] = []
        self._names: list[str] = []

    def mark(self) -> None:
        """Store the present values as those with which the script gets the model."""
        places = self._modules.places()
        self._names = [name for name, _, _ in places]
        self._left = [attributes.get(key) for _, attributes, key in places]

    def note(self) -> None:
        """Note what the script has changed since `mark`."""
        places = self._modules.places()
        now = [attributes.get(key) for _, attributes, key in places]
        if len(now) == len(self._left) and not any(map(is_not, now, self._left)):
            return
        found = {name: value for (name, _, _), value in zip(places, now, strict=True) if _is_plain(value)}
        self.changed |= _changes(dict(zip(self._names, self._left, strict=True)), found)

    def restore(self, saved: Mapping[str, Scalar]) -> None:
        """Set the attributes of a checkpoint. Raises MismatchError where an object that had one is missing."""
        owners = self._modules.owners()
        for name, value in saved.items():
            owner, _, key = name.rpartition(".")
            if owner not in owners:
                raise MismatchError(
                    f"the script had set {name} to {value!r} before the checkpoint, and there is no {owner} now",
                    remedy="Build the same model as before.",
                )
            owners[owner][key] = value
        self.changed = dict(saved)


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
