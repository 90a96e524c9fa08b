"""Places that hold a value which a script may change: an attribute, a global, a variable of a closure, an item.

Reading and writing a place calls no code of the script: neither properties nor `__getattr__`.
"""

from dataclasses import dataclass
from types import CellType
from typing import Any, Protocol

ABSENT: Any = object()
"""What a place holds that has gone, or is not there yet."""


class Place(Protocol):
    @property
    def name(self) -> str:
        """Where a person finds it, such as `loss.weights` or `train.STEPS`."""

    @property
    def key(self) -> Any:
        """Its name within what holds it."""

    def get(self) -> Any:
        """The value, or ABSENT."""

    def set(self, value: Any) -> None:
        """Write a value; ABSENT removes it."""


@dataclass(frozen=True, eq=False)
class EntryPlace:
    """An attribute in the `vars` of an object, a global, or an item of a dict, list or tuple."""

    name: str
    holder: Any
    key: Any

    def get(self) -> Any:
        try:
            return self.holder[self.key]
        except (KeyError, IndexError):
            return ABSENT

    def set(self, value: Any) -> None:
        if value is not ABSENT:
            self.holder[self.key] = value
        elif self.get() is not ABSENT:
            del self.holder[self.key]


@dataclass(frozen=True, eq=False)
class CellPlace:
    """A variable of a closure, which `nonlocal` changes."""

    name: str
    cell: CellType
    key: str

    def get(self) -> Any:
        try:
            return self.cell.cell_contents
        except ValueError:
            return ABSENT

    def set(self, value: Any) -> None:
        if value is not ABSENT:
            self.cell.cell_contents = value
        elif self.get() is not ABSENT:
            del self.cell.cell_contents


@dataclass(frozen=True, eq=False)
class ClassPlace:
    """An attribute of a class, which all its objects share."""

    name: str
    owner: type
    key: str

    def get(self) -> Any:
        return vars(self.owner).get(self.key, ABSENT)

    def set(self, value: Any) -> None:
        if value is not ABSENT:
            type.__setattr__(self.owner, self.key, value)
        elif self.get() is not ABSENT:
            type.__delattr__(self.owner, self.key)


@dataclass(frozen=True, eq=False)
class SlotPlace:
    """An attribute of an object whose class has `__slots__`."""

    name: str
    owner: object
    key: str
    slot: Any
    """The member descriptor of its class."""

    def get(self) -> Any:
        try:
            return self.slot.__get__(self.owner)
        except AttributeError:
            return ABSENT

    def set(self, value: Any) -> None:
        if value is not ABSENT:
            self.slot.__set__(self.owner, value)
        elif self.get() is not ABSENT:
            self.slot.__delete__(self.owner)
