"""A table of distinct pieces of text, for compiled code: each new piece gets the next number, from 0."""

from collections.abc import Iterator

import numpy as np

from esprof.core.compiled import compiled
from esprof.run.kineto.json_text import are_same, hash_of, put, word

# The table is one block of words: how many pieces it holds, the mask of its slots, the slots (the number of a piece or -1;
# a piece stands in the first free one from its hash on), and of each piece its hash, begin and end.
_MASK, _SLOTS = 8, 16
_ENTRY = 24


class Interned:
    """A table of distinct pieces of text. It holds addresses: the text itself must stay where it is in memory."""

    def __init__(self, capacity: int) -> None:
        """`capacity` is a power of two."""
        self.capacity = capacity
        self._words = np.full(2 + 2 * capacity + 3 * capacity, -1, np.int64)
        self._words[:2] = 0, 2 * capacity - 1

    def __len__(self) -> int:
        return int(self._words[0])

    @property
    def address(self) -> int:
        """Address of the table, as the compiled functions take it."""
        return self._words.ctypes.data

    def places(self) -> Iterator[tuple[int, int]]:
        """Addresses (begin, end) of each piece, in the order of their numbers."""
        entries = self._words[2 + 2 * self.capacity :].reshape(-1, 3)[: len(self)]
        yield from entries[:, 1:].tolist()

    def grown(self) -> "Interned":
        """A table of twice the capacity, with the same pieces under the same numbers."""
        larger = Interned(2 * self.capacity)
        _copy(self.address, larger.address)
        return larger


@compiled
def intern(table: int, begin: int, end: int) -> int:
    """The number of the text between two addresses. A new text is added, for which the table must have room."""
    hashed = hash_of(begin, end)
    slot = _slot(table, begin, end, hashed)
    number = word(slot)
    if number < 0:
        number = word(table)
        put(table, number + 1)
        put(slot, number)
        entry = _entry(table, number)
        put(entry, hashed)
        put(entry + 8, begin)
        put(entry + 16, end)
    return number


@compiled
def _copy(table: int, larger: int) -> None:
    for number in range(word(table)):
        entry = _entry(table, number)
        intern(larger, word(entry + 8), word(entry + 16))


@compiled
def number_of(table: int, begin: int, end: int) -> int:
    """The number of the text between two addresses, or -1 where it is not in the table."""
    return word(_slot(table, begin, end, hash_of(begin, end)))


@compiled
def begin_of(table: int, number: int) -> int:
    """Address at which a piece begins."""
    return word(_entry(table, number) + 8)


@compiled
def _slot(table: int, begin: int, end: int, hashed: int) -> int:
    """The slot of this text, or the free one that it would take."""
    mask = word(table + _MASK)
    place = hashed & mask
    while True:
        slot = table + _SLOTS + 8 * place
        number = word(slot)
        if number < 0:
            return slot
        entry = _entry(table, number)
        length = word(entry + 16) - word(entry + 8)
        if word(entry) == hashed and length == end - begin and are_same(word(entry + 8), begin, length):
            return slot
        place = (place + 1) & mask


@compiled
def _entry(table: int, number: int) -> int:
    return table + _SLOTS + 8 * (word(table + _MASK) + 1) + _ENTRY * number
