"""Numbers that modules count in attributes while they compute, such as calls in `forward`.

Under DistributedDataParallel each rank counts for itself; here each EST does. Its numbers move with it and are in
checkpoints, and a step that runs twice counts once.
"""

from collections.abc import Iterable
from typing import Any

from torch import nn

from esprof.elastic.runtime.attributes import ModuleAttributes

Numbers = dict[str, Any]
"""Attribute, such as `model.body.0.calls` -> its number, or `_ABSENT`."""

_KINDS = (int, float)
_ABSENT = object()


class EstCounters:
    """Switches the numbers of ESTs in the attributes of modules. Other values are left alone: booleans say what a process
    has done once, and tensors that a module keeps are found where a step runs twice."""

    def __init__(self, model: nn.Module) -> None:
        self._modules = ModuleAttributes(model)
        self._places: dict[str, tuple[dict[str, Any], str]] = {}
        """Number, such as `model.body.0.calls` -> the attributes of its module, and its key there."""
        self._base: Numbers = {}
        """Of each number that an EST has changed, the one before: that of ESTs that have not."""
        self._shown: Numbers = {}
        """These numbers as the last step left them to the script."""
        self._before: Numbers = {}
        self._size = 0

    def begin(self, ests: Iterable[Numbers]) -> None:
        """Start a step. `ests` are the numbers of the ESTs of this rank."""
        self._find()
        self.adopt(ests)

    def adopt(self, ests: Iterable[Numbers]) -> None:
        """Where the script has set a number between two steps, let all ESTs of this rank have it."""
        changed = {name: now for name, shown in self._shown.items() if (now := self._value(name)) != shown}
        self._base |= changed
        self._shown |= changed
        for numbers in ests:
            for name in changed.keys() & numbers.keys():
                del numbers[name]

    def enter(self, own: Numbers) -> None:
        """Start an EST step with the numbers of the EST."""
        self._set(self._base | own)
        self._before = {name: attributes.get(key, _ABSENT) for name, (attributes, key) in self._places.items()}
        self._size = self._modules.size()

    def leave(self) -> Numbers:
        """End an EST step. Returns the numbers that it has changed."""
        if self._modules.size() != self._size:
            self._find()
        found: Numbers = {}
        for name, (attributes, key) in self._places.items():
            now, before = attributes.get(key), self._before.get(name, _ABSENT)
            if (
                now is not before
                and now != before
                and type(now) in _KINDS
                and (before is _ABSENT or type(before) in _KINDS)
            ):
                self._base.setdefault(name, before)
                found[name] = now
        return found

    def finish(self, own: Numbers) -> None:
        """End a step: leave the numbers of an EST to the script, as a rank of DistributedDataParallel has them."""
        self._shown = self._base | own
        self._set(self._shown)

    def _find(self) -> None:
        self._places |= {
            name: (attributes, key)
            for name, attributes, key in self._modules.places()
            if type(attributes.get(key)) in _KINDS
        }

    def _set(self, values: Numbers) -> None:
        owners = self._modules.owners() if values else {}
        for name, value in values.items():
            owner, _, key = name.rpartition(".")
            attributes = owners.get(owner, {})
            self._places[name] = attributes, key
            if value is _ABSENT:
                attributes.pop(key, None)
            else:
                attributes[key] = value

    def _value(self, name: str) -> Any:
        owner, _, key = name.rpartition(".")
        return self._modules.owners().get(owner, {}).get(key, _ABSENT)
