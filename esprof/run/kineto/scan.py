"""Scan the text of a trace: one pass over its rows into cells, without a Python object for a row or a value.

A cell is a number, MISSING, or FIRST_TEXT + n: the n-th distinct value that was kept as text. A trace repeats itself, so
distinct texts are few, and each is decoded once only.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import msgspec
import numpy as np

from esprof.core.compiled import compiled
from esprof.core.types import Bytes
from esprof.run.kineto.fields import FIELDS, CellForm, Field
from esprof.run.kineto.interning import Interned, begin_of, intern, number_of
from esprof.run.kineto.json_text import (
    BROKEN,
    COLON,
    COMMA,
    LIST,
    LIST_END,
    OBJECT,
    OBJECT_END,
    PADDING,
    QUOTE,
    after_space,
    byte,
    is_null,
    put,
    short_integer,
    string_end,
    thousandths,
    value_end,
    word,
)

MISSING = int(np.iinfo(np.int64).min)
FIRST_TEXT = MISSING + 1

_BYTES_A_ROW: Bytes = 8 * len(FIELDS)
_BYTES_A_TEXT: Bytes = 128
"""Bytes of memory that a distinct text takes beside its characters."""
_BLOCK = 2048
"""Rows that are scanned at a time: so few that their cells stay in the processor's cache."""
_ABSENT = 0
"""Returned instead of an address where the document has no rows."""


def _fields(which: Callable[[Field], bool]) -> int:
    """A set of fields: bit i for FIELDS[i]."""
    return sum(1 << i for i, field in enumerate(FIELDS) if which(field))


_NUMBERS = _fields(lambda field: field.form is CellForm.NUMBER)
_TIMES = _fields(lambda field: field.form is CellForm.TIME)
_NESTED = _fields(lambda field: field.nested)
_PHASE, _COUNT = 0, len(FIELDS)
_ARGS, _ROWS = _COUNT, _COUNT + 1
"""Numbers of the keys `args` and `traceEvents`: the two after those of the fields."""
_COMPLETE, _THREE_BYTES = int.from_bytes(b'"X"', "little"), 0xFFFFFF


class NotJson(ValueError):
    """The text is no JSON; the message says where."""


class NoRows(ValueError):
    """The text is JSON, but neither a list nor an object with a list of `traceEvents`."""


class TooLarge(ValueError):
    """The rows take more memory than the caller has room for."""


@dataclass(frozen=True)
class Scan:
    """The complete events (phase `X`) of a trace, and what stands around them.

    `cells` is int64, a line for each of FIELDS and a column for each event; `texts` are the values that cells refer to, as
    they are written; `frame` is the document with `null` in place of its rows.
    """

    cells: np.ndarray
    texts: list[bytes]
    frame: bytes


def scan(text: bytearray, room: Bytes) -> Scan:
    """Scan a document, or a bare list of rows. Raises NotJson, NoRows, or TooLarge where its cells take more than `room`.

    Within nested values that are not kept, strings and brackets are checked and nothing else. Meanwhile `text` is padded in
    place, since a copy would take too much memory.
    """
    text += bytes(PADDING)
    try:
        return _scan_padded(text, room)
    finally:
        del text[-PADDING:]


def _scan_padded(text: bytearray, room: Bytes) -> Scan:
    known = _keys()  # Held, because compiled code only has its address.
    base, keys = np.frombuffer(text, np.uint8).ctypes.data, known[0].address
    begin = at = _rows_begin(base, keys)
    if begin == _ABSENT:
        _check(text)
        raise NoRows
    texts, blocks = Interned(4096), [np.empty((len(FIELDS), 0), np.int64)]
    while at != BROKEN and text[at - base] != LIST_END:
        if len(texts) + len(FIELDS) > texts.capacity:
            texts = texts.grown()
        block = np.full((len(FIELDS), _BLOCK), MISSING)
        at, count = _scan_block(at, block.ctypes.data, texts.address, texts.capacity, keys)
        blocks.append(block[:, :count])
        room -= count * _BYTES_A_ROW
        if room < len(texts) * _BYTES_A_TEXT:
            raise TooLarge
    if at == BROKEN:
        _check(text)
        raise NotJson("an event is malformed")
    return Scan(
        cells=np.concatenate(blocks, axis=1),
        texts=[bytes(text[start - base : end - base]) for start, end in texts.places()],
        frame=b" null ".join((text[: begin - base], text[at + 1 - base : -PADDING])),
    )


def _check(text: bytearray) -> None:
    """Raise NotJson where `text` is no JSON."""
    try:
        msgspec.json.decode(memoryview(text)[:-PADDING], type=msgspec.Raw)
    except (msgspec.DecodeError, RecursionError) as error:
        raise NotJson(str(error)) from error


@cache
def _keys() -> tuple[Interned, np.ndarray]:
    """The table of the keys that are read, numbered as FIELDS, then `args` and `traceEvents`; and their text, which must
    stay in memory."""
    keys = [field.key.encode() for field in FIELDS] + [b"args", b"traceEvents"]
    text = np.frombuffer(b"".join(keys) + bytes(PADDING), np.uint8)
    table, at = Interned(64), text.ctypes.data
    for key in keys:
        intern(table.address, at, at + len(key))
        at += len(key)
    return table, text


@compiled
def _rows_begin(at: int, keys: int) -> int:
    """The bracket that opens the list of rows; ABSENT or BROKEN where there is none."""
    at = after_space(at)
    if byte(at) == LIST:
        return at
    if byte(at) != OBJECT:
        return _ABSENT
    at = after_space(at + 1)
    while byte(at) != OBJECT_END:
        key, at = _key(at, keys)
        if at == BROKEN or (key == _ROWS and byte(at) == LIST):
            return at
        at = value_end(at)
        if at == BROKEN:
            return BROKEN
        at = after_space(at)
        if byte(at) == COMMA:
            at = after_space(at + 1)
    return _ABSENT


@compiled
def _key(at: int, keys: int) -> tuple[int, int]:
    """The number of the key here (-1 for one that is not read) and the address of its value, or BROKEN."""
    if byte(at) != QUOTE:
        return -1, BROKEN
    end = string_end(at)
    if end == BROKEN:
        return -1, BROKEN
    colon = after_space(end)
    if byte(colon) != COLON:
        return -1, BROKEN
    return number_of(keys, at + 1, end - 1), after_space(colon + 1)


@compiled
def _scan_block(at: int, cells: int, texts: int, capacity: int, keys: int) -> tuple[int, int]:
    """Scan rows until the block is full, the table of texts could overflow, or the list ends.

    `at` is where the list begins, or the comma from which to go on. Returns the comma from which to go on, the end of the
    list or BROKEN, and the number of rows.
    """
    rows = 0
    while rows < _BLOCK and word(texts) + _COUNT <= capacity:
        is_first = byte(at) == LIST
        at = after_space(at + 1)
        if byte(at) == OBJECT:
            at = _scan_row(at + 1, cells + 8 * rows, texts, keys)
        elif not (is_first and byte(at) == LIST_END):
            at = value_end(at)  # An item that is no object is skipped.
        if at == BROKEN:
            return BROKEN, rows
        if _is_complete(cells + 8 * rows, texts):
            rows += 1
        else:
            _clear(cells + 8 * rows)
        at = after_space(at)
        if byte(at) != COMMA:
            return (at if byte(at) == LIST_END else BROKEN), rows
    return at, rows


@compiled
def _scan_row(at: int, cells: int, texts: int, keys: int) -> int:
    """Fill the cells of the row whose members begin here. Returns the address behind it, or BROKEN."""
    nested, first = False, True
    while True:
        at = after_space(at)
        if byte(at) == OBJECT_END:
            at += 1
            if not nested:
                return at
            nested, first = False, False
            continue
        if not first:
            if byte(at) != COMMA:
                return BROKEN
            at = after_space(at + 1)
        key, at = _key(at, keys)
        if at == BROKEN:
            return BROKEN
        first = key == _ARGS and not nested and byte(at) == OBJECT
        if first:
            nested = True
            at += 1
            continue
        if 0 <= key < _COUNT and (_NESTED >> key & 1) == nested:
            cell, at = _scan_value(at, key, texts)
            put(cells + 8 * _BLOCK * key, cell)
        else:
            at = value_end(at)
        if at == BROKEN:
            return BROKEN


@compiled
def _scan_value(at: int, key: int, texts: int) -> tuple[int, int]:
    """The cell for the value here, and the address behind it or BROKEN."""
    if is_null(at):
        return MISSING, at + 4
    number, end = 0, BROKEN
    if _NUMBERS >> key & 1:
        number, end = short_integer(at)
    elif _TIMES >> key & 1:
        number, end = thousandths(at)
    if end != BROKEN:
        return number, end
    end = value_end(at)
    return (MISSING if end == BROKEN else FIRST_TEXT + intern(texts, at, end)), end


@compiled
def _is_complete(cells: int, texts: int) -> bool:
    phase = word(cells + 8 * _BLOCK * _PHASE)
    return phase >= FIRST_TEXT and word(begin_of(texts, phase - FIRST_TEXT)) & _THREE_BYTES == _COMPLETE


@compiled
def _clear(cells: int) -> None:
    for i in range(_COUNT):
        put(cells + 8 * _BLOCK * i, MISSING)
