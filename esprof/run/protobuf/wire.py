"""The wire format of Protocol Buffers (https://protobuf.dev/programming-guides/encoding), read strictly.

Messages are read field by field. Time and memory are linear in the bytes; nesting is as deep as the caller's schema.
"""

import struct
from collections.abc import Iterator

from esprof.core.types import Bytes

VARINT, FIXED64, BYTES, _FIXED32 = 0, 1, 2, 5
_WIDTHS: dict[int, Bytes] = {FIXED64: 8, _FIXED32: 4}
MAX_VARINT: Bytes = 10
MORE = 0x80
"""The bit of a byte that says that its number goes on."""
_MASK = (1 << 64) - 1
_SIGN = 1 << 63

Value = int | memoryview


class MalformedMessage(ValueError):
    """The bytes are no message."""


def fields(data: memoryview) -> Iterator[tuple[int, Value]]:
    """Yield (number, value) of the fields of a message: an unsigned number of 64 or 32 bits, or bytes.

    Raises MalformedMessage.
    """
    at, end = 0, len(data)
    while at < end:
        # Most numbers are of one byte, and most of the time goes here.
        tag = data[at]
        if tag < MORE:
            at += 1
        else:
            tag, at = _varint(data, at)
        number, kind = tag >> 3, tag & 7
        if not number:
            raise MalformedMessage("a field has number 0")
        if kind == VARINT:
            if at < end and data[at] < MORE:
                yield number, data[at]
                at += 1
            else:
                value, at = _varint(data, at)
                yield number, value
            continue
        if kind == BYTES:
            size, at = _varint(data, at)
        elif kind in _WIDTHS:
            size = _WIDTHS[kind]
        else:
            raise MalformedMessage(f"field {number} has the unknown type {kind}")
        if size > end - at:
            raise MalformedMessage(f"field {number} ends behind its message")
        content = data[at : at + size]
        at += size
        yield number, content if kind == BYTES else int.from_bytes(content, "little")


def message(value: Value) -> Iterator[tuple[int, Value]]:
    """The fields of a message inside another. Raises MalformedMessage, also for a number."""
    if isinstance(value, int):
        raise MalformedMessage("a number stands where a message should")
    return fields(value)


def delimited(data: memoryview) -> Iterator[memoryview]:
    """Yield the messages of a file that writes the size of each one before it. Raises MalformedMessage."""
    at = 0
    while at < len(data):
        size, at = _varint(data, at)
        if size > len(data) - at:
            raise MalformedMessage("the file ends inside a message")
        yield data[at : at + size]
        at += size


def packed(value: Value) -> Iterator[int]:
    """The numbers of a repeated field, packed or not. Raises MalformedMessage."""
    if isinstance(value, int):
        yield value
        return
    at = 0
    while at < len(value):
        number, at = _varint(value, at)
        yield number


def text(value: Value) -> str:
    """A string; empty for a number."""
    return "" if isinstance(value, int) else str(value, "utf-8", "replace")


def signed(value: Value) -> int:
    """A number of type int32, int64 or enum; 0 for bytes."""
    if not isinstance(value, int):
        return 0
    return value - (1 << 64) if value & _SIGN else value


def zigzag(value: Value) -> int:
    """A number of type sint32 or sint64; 0 for bytes."""
    return (value >> 1) ^ -(value & 1) if isinstance(value, int) else 0


def double(value: Value) -> float:
    """A number of type double; 0 for bytes."""
    found: float = struct.unpack("<d", value.to_bytes(8, "little"))[0] if isinstance(value, int) else 0.0
    return found


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    """(an unsigned number of at most 64 bits, the position behind it)."""
    value = shift = 0
    for byte in data[at : at + MAX_VARINT]:
        at += 1
        if byte < MORE:
            return (value | byte << shift) & _MASK, at
        value |= (byte & 0x7F) << shift
        shift += 7
    raise MalformedMessage("a number does not end")
