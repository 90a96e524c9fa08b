"""Read a pickle of plain values without loading it.

Loading a pickle executes it. This module interprets only the instructions that build plain values, which suffice for dumps
of the Flight Recorder, and refuses all others: nothing is imported or called.
"""

import pickletools
from collections.abc import Callable
from typing import Any

_MAX_VALUES = 5_000_000
"""Maximum number of values, with shared ones counted at each use: by sharing, a small file could expand without limit."""
_DEEPEST = 32
"""Maximum nesting depth of containers; a dump of the Flight Recorder has five levels."""
_MAX_INT = 1 << 63

_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_LITERALS = frozenset(
    ("BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8")
)
_TUPLES = {"EMPTY_TUPLE": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}
_GETS = frozenset(("BINGET", "LONG_BINGET"))
_PUTS = frozenset(("BINPUT", "LONG_BINPUT", "MEMOIZE"))
_NOTHING = frozenset(("PROTO", "FRAME"))


class NotPlain(ValueError):
    """The pickle is corrupt or contains other than plain values."""


_MARK = object()


def read_plain_pickle(data: bytes) -> Any:
    """Return the value of a pickle of dicts, lists, tuples, strings, numbers, booleans and None.

    Raises NotPlain if it is corrupt, contains other instructions (an import, a call) or itself, or exceeds the limits on
    depth and size.
    """
    reader = _Reader()
    try:
        for opcode, argument, at in pickletools.genops(data):
            if opcode.name == "STOP":
                return reader.whole()
            reader.take(opcode.name, argument, at or 0)
    except NotPlain:
        raise
    except (
        ValueError,
        IndexError,
        KeyError,
        TypeError,
    ) as error:  # From genops and the stack, for bytes that are not a pickle.
        raise NotPlain(f"is a broken or truncated pickle ({str(error) or type(error).__name__})") from error
    raise NotPlain("is a truncated pickle")


class _Reader:
    def __init__(self) -> None:
        self._stack: list[Any] = []
        self._memo: dict[int, Any] = {}
        self._measures: dict[int, tuple[int, int]] = {}
        """Number of values and nesting depth of each container, by its `id`."""
        self._kept: list[Any] = []
        """All containers: a reference to each keeps its `id` unique."""
        self._finished: set[int] = set()
        """Containers that were fetched from the memo. If one grew afterwards, it could contain itself."""

    def take(self, name: str, argument: Any, at: int) -> None:
        """Execute one instruction, at byte `at`."""
        if len(self._stack) + len(self._memo) > _MAX_VALUES:
            raise NotPlain(f"is a pickle of more than {_MAX_VALUES} values")
        if name in _LITERALS:
            self._literal(argument)
        elif name in _CONSTANTS:
            self._stack.append(_CONSTANTS[name])
        elif name in _GETS:
            self._get(argument)
        elif name in _PUTS:
            self._memo[len(self._memo) if argument is None else argument] = self._top()
        elif name in _TUPLES:
            self._tuple(self._pop(_TUPLES[name]))
        elif name in _GROWTH:
            _GROWTH[name](self)
        elif name == "MARK":
            self._stack.append(_MARK)
        elif name not in _NOTHING:
            raise NotPlain(f"is a pickle that holds more than plain values ({name} at byte {at}), and is never loaded")

    def whole(self) -> Any:
        if len(self._stack) != 1:
            raise NotPlain("is a broken pickle: it does not end in one value")
        return self._top()

    def new(self, container: Any) -> None:
        self._kept.append(container)
        self._measures[id(container)] = (1, 1)
        self._stack.append(container)

    def append(self) -> None:
        (item,) = self._pop(1)
        self._extend([item])

    def appends(self) -> None:
        self._extend(self._since_mark())

    def set_item(self) -> None:
        self._update(self._pop(2))

    def set_items(self) -> None:
        self._update(self._since_mark())

    def tuple_since_mark(self) -> None:
        self._tuple(self._since_mark())

    def _literal(self, value: Any) -> None:
        if isinstance(value, int) and not -_MAX_INT <= value < _MAX_INT:
            raise NotPlain("holds a number of more than 64 bits")
        if isinstance(value, str):
            value = value.encode("utf-8", "replace").decode()  # A lone surrogate cannot be written.
        self._stack.append(value)

    def _get(self, key: int) -> None:
        value = self._memo[key]
        if isinstance(value, list | dict):
            self._finished.add(id(value))
        self._stack.append(value)

    def _top(self) -> Any:
        if self._stack[-1] is _MARK:
            raise NotPlain("is a broken pickle: a value is missing")
        return self._stack[-1]

    def _pop(self, count: int) -> list[Any]:
        start = len(self._stack) - count
        taken = self._stack[max(start, 0) :]
        if start < 0 or any(value is _MARK for value in taken):
            raise NotPlain("is a broken pickle: a value is missing")
        del self._stack[start:]
        return taken

    def _since_mark(self) -> list[Any]:
        values = []
        while (value := self._stack.pop()) is not _MARK:
            values.append(value)
        return values[::-1]

    def _tuple(self, values: list[Any]) -> None:
        self.new(tuple(values))
        self._grow(self._top(), values)

    def _extend(self, values: list[Any]) -> None:
        target = self._growing(list)
        target.extend(values)
        self._grow(target, values)

    def _update(self, values: list[Any]) -> None:
        target = self._growing(dict)
        keys, items = values[::2], values[1::2]
        if len(keys) != len(items) or not all(isinstance(key, str | int) for key in keys):
            raise NotPlain("is a broken pickle: a dict has a key without a value, or one that is no text or number")
        target.update(zip(keys, items, strict=True))
        self._grow(target, items)

    def _growing(self, kind: type) -> Any:
        target = self._top()
        if type(target) is not kind:
            raise NotPlain(f"is a broken pickle: it adds to a {type(target).__name__} as to a {kind.__name__}")
        if id(target) in self._finished:
            raise NotPlain(f"is a pickle in which a {kind.__name__} changes after it was used, or contains itself")
        return target

    def _grow(self, container: Any, added: list[Any]) -> None:
        """Update the measures of a container to which `added` was added."""
        values, depth = self._measures[id(container)]
        measures = [self._measures.get(id(one), (1, 0)) for one in added]
        values += sum(measure[0] for measure in measures)
        depth = max([depth, *(measure[1] + 1 for measure in measures)])
        if depth > _DEEPEST:
            raise NotPlain(f"is a pickle that is nested more than {_DEEPEST} deep")
        if values > _MAX_VALUES:
            raise NotPlain(f"is a pickle that stands for more than {_MAX_VALUES} values")
        self._measures[id(container)] = (values, depth)


_GROWTH: dict[str, Callable[[_Reader], None]] = {
    "EMPTY_DICT": lambda reader: reader.new({}),
    "EMPTY_LIST": lambda reader: reader.new([]),
    "TUPLE": _Reader.tuple_since_mark,
    "APPEND": _Reader.append,
    "APPENDS": _Reader.appends,
    "SETITEM": _Reader.set_item,
    "SETITEMS": _Reader.set_items,
}
