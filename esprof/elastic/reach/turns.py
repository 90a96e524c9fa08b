"""Values that EST steps change in attributes, closures and globals, such as a counter, a queue or a generator.

Under DistributedDataParallel each rank has its own; here each EST does. They move with it and are in checkpoints, and a step
that runs twice changes them once.
"""

import warnings
from collections.abc import Iterable, Set
from operator import is_not
from typing import Any

from torch import Tensor, nn

from esprof.core.assignment import Est
from esprof.core.errors import UsageError
from esprof.core.types import Bytes
from esprof.elastic.reach.places import ABSENT, EntryPlace, Place
from esprof.elastic.reach.values import (
    MAX_ITEMS_OF_EST,
    can_change_in_place,
    can_move_with_est,
    copied,
    is_long,
    made,
    note,
    same,
    size,
    write_into,
)
from esprof.elastic.reach.walk import Reached
from esprof.elastic.runtime.attributes import ModuleAttributes

Own = dict[str, Any]
"""Name of a place -> (whether its object is the one that it held at the start, copy of the value), or ABSENT."""

_MAX_KEPT: Bytes = 64 << 20
"""Tensors up to this size altogether are copied, so that an EST may change them in place."""

_OUTGROWN = (
    "has become too long to move with ESTs: from here on each process has its own, and no checkpoint has it. Proofs show "
    "whether results depend on it."
)
_KEEP_REMEDY = (
    "State that moves with an EST is a number, a string, a generator of random numbers, a tensor of at most 64 MiB, or a "
    "list, dict, set or deque of these. Change other objects between two steps, or in Updates(after_step=…)."
)


class EstValues:
    """Gives each EST the values that it has changed, for the time of its step.

    Attributes of the model that hold objects of other kinds stay as they are: if results depend on them, a step that runs
    twice shows it."""

    def __init__(self, model: nn.Module, reached: Reached) -> None:
        self._modules = ModuleAttributes(model)
        self._reached = reached
        self._in_model: object = None
        """Attributes of the model as they were found last."""
        self._places: dict[str, Place] = {}
        self._first: dict[str, Any] = {}
        """Objects that can change in place, as they were first found."""
        self._kept: dict[str, tuple[object, Any]] = {}
        """Note and copy of each of these."""
        self._kept_bytes = 0
        self._base: Own = {}
        """Value before the change of each place that an EST has changed: all other ESTs still have it."""
        self._shown: dict[str, object] = {}
        """Notes of these places as the last step left them to the script."""
        self._names: list[str] = []
        self._entries: list[tuple[dict[str, Any], str]] = []
        self._others: list[Place] = []
        """Names of the places in the order in which `_values` reads them: entries of dicts, then others."""
        self._before: list[Any] = []
        """All values at the start of the EST step."""
        self._notes: dict[int, object] = {}
        """Notes of those that can change in place, by index."""
        self._size = 0
        self._outgrown: set[str] = set()
        """Places whose containers are too long to move by now."""
        self.set_by_script: set[str] = set()
        """Of the places that ESTs have changed, those that the script has set between two steps."""

    def begin(self, ests: Iterable[Own]) -> None:
        """Start a step. `ests` are the values of the ESTs of this rank."""
        self._find()
        self.adopt(ests)
        for name, value in self._first.items():
            if name not in self._base:
                self._keep(name, value)

    def adopt(self, ests: Iterable[Own]) -> None:
        """Let all ESTs of this rank have what the script has set between two steps."""
        changed = [name for name, shown in self._shown.items() if not same(_note(self._value(name)), shown)]
        for name in changed:
            value = self._value(name)
            self._base[name] = self._saved(name, value)
            self._shown[name] = _note(value)
        self.set_by_script.update(changed)
        for own in ests:
            for name in own.keys() & set(changed):
                del own[name]

    def enter(self, own: Own) -> None:
        """Start an EST step with the values of the EST."""
        for name in own.keys() - self._base.keys():  # Another rank has run the EST till now.
            self._base[name] = self._saved(name, self._value(name))
        self._put(self._base | own)
        if self._attributes() != self._size:
            self._find()
        values = self._values()
        if len(values) != len(self._before) or any(map(is_not, values, self._before)):
            self._notes = {i: None for i, value in enumerate(values) if can_change_in_place(value)}
        self._before = values
        self._notes = {i: _note(values[i]) for i in self._notes}

    def leave(self, est: Est) -> Own:
        """End an EST step. Returns the values that it has changed. Raises UsageError for one that cannot move."""
        if self._attributes() != self._size:
            before, notes = dict(zip(self._names, self._before, strict=True)), self._notes
            noted = {self._names[i]: one for i, one in notes.items()}
            self._find()
            self._before = [before.get(name, ABSENT) for name in self._names]
            self._notes = {i: noted[name] for i, name in enumerate(self._names) if name in noted}
        values = self._values()
        changed = [i for i, noted in self._notes.items() if not same(_note(values[i]), noted)]
        if any(map(is_not, values, self._before)):
            pairs = enumerate(zip(values, self._before, strict=True))
            changed += [
                i for i, (a, b) in pairs if a is not b and i not in self._notes and not same(_note(a), _note(b))
            ]
        found: Own = {}
        for i in changed:
            name, now = self._names[i], values[i]
            if now is not ABSENT and can_move_with_est(now) and self._set_base(name, now, self._before[i]):
                found[name] = self._saved(name, now)
            elif is_long(now):
                self._let_be(name)
            elif not name.startswith("model."):
                self._refuse(est, name, now)
        return found

    def finish(self, own: Own) -> None:
        """End a step: leave the values of an EST to the script, as a rank of DistributedDataParallel has them."""
        self._put(self._base | own)
        self._shown = {name: _note(self._value(name)) for name in self._base}

    @property
    def moved(self) -> Set[str]:
        """Names of the places that ESTs have changed."""
        return self._base.keys()

    def base(self, name: str) -> Any:
        """What ESTs have that have not changed a place: (whether in place, copy), ABSENT, or None if no EST has."""
        return self._base.get(name)

    def _find(self) -> None:
        """Find the places again if there are other attributes than before."""
        entries, size = self._modules.places(), self._attributes()
        if entries is self._in_model and size == self._size:
            return
        self._in_model, self._size = entries, size
        self._places = {entry[0]: EntryPlace(*entry) for entry in entries} | self._reached.by_name()
        in_dicts = [one for one in self._places.values() if isinstance(one, EntryPlace) and type(one.holder) is dict]
        self._entries = [(place.holder, place.key) for place in in_dicts]
        self._others = [place for place in self._places.values() if place not in set(in_dicts)]
        self._names = [place.name for place in [*in_dicts, *self._others]]
        for name, value in zip(self._names, self._values(), strict=True):
            if can_change_in_place(value) and can_move_with_est(value):
                self._first.setdefault(name, value)

    def _values(self) -> list[Any]:
        return [entries.get(key, ABSENT) for entries, key in self._entries] + [place.get() for place in self._others]

    def _attributes(self) -> int:
        """Number of all attributes."""
        return self._modules.size() + sum(map(len, self._reached.owners.values()))

    def _keep(self, name: str, value: Any) -> None:
        """Copy a value before an EST may change it in place, unless the copy that there is still holds."""
        noted = _note(value)
        if name in self._kept and same(self._kept[name][0], noted):
            return
        before = size(self._kept[name][1]) if name in self._kept else 0
        if can_move_with_est(value) and self._kept_bytes + size(value) - before <= _MAX_KEPT:
            self._kept_bytes += size(value) - before
            self._kept[name] = noted, copied(value)

    def _set_base(self, name: str, now: Any, before: Any) -> bool:
        """Store the value that a place had before an EST changed it first. Returns whether that is known."""
        if name in self._base:
            return True
        if before is ABSENT:
            self._base[name] = ABSENT
        elif name in self._kept and before is self._first.get(name):
            self._base[name] = True, self._kept[name][1]
        elif before is not now and can_move_with_est(before):
            self._base[name] = False, copied(before)
        else:
            return False
        return True

    def _saved(self, name: str, value: Any) -> Any:
        """What the place holds; ABSENT also for what cannot move."""
        can = value is not ABSENT and can_move_with_est(value)
        return (value is self._first.get(name, ABSENT), copied(value)) if can else ABSENT

    def _put(self, own: Own) -> None:
        for name, saved in own.items():
            place = self._place(name)
            if place is None or name in self._outgrown:
                continue
            if saved is ABSENT:
                place.set(ABSENT)
                continue
            is_first, copy = saved
            value = self._first.get(name) if is_first else None
            if value is None or not write_into(value, copy):
                value = made(copy)
            if place.get() is not value:
                place.set(value)

    def _value(self, name: str) -> Any:
        place = self._place(name)
        return ABSENT if place is None else place.get()

    def _place(self, name: str) -> Place | None:
        """The place of this name. It is made here if an EST has made it on another rank; None if its object is unknown."""
        if name not in self._places:
            owner, _, key = name.rpartition(".")
            attributes = self._modules.owners().get(owner)
            place = EntryPlace(name, attributes, key) if attributes is not None else self._reached.place(name)
            if place is None:
                return None
            self._places[name] = place
        return self._places[name]

    def _let_be(self, name: str) -> None:
        if name not in self._outgrown:
            self._outgrown.add(name)
            warnings.warn(f"{name} {_OUTGROWN}", stacklevel=2)

    def _refuse(self, est: Est, name: str, now: Any) -> None:
        if isinstance(now, Tensor) and now.grad_fn is not None:
            return  # It belongs to the call that has computed it.
        what = "nothing" if now is ABSENT else f"a {type(now).__name__}"
        raise UsageError(f"EST {est} changed {name}, {what}, which cannot move with it", remedy=_KEEP_REMEDY)


def _note(value: object) -> object:
    return note(value, MAX_ITEMS_OF_EST)
