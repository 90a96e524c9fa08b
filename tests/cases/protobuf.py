"""Messages of Protocol Buffers, made by hand: a field is (number, value), a value an int, text, bytes or a float."""

import struct
from collections.abc import Iterable

Field = tuple[int, int | float | str | bytes]


def message(*fields: Field) -> bytes:
    return b"".join(_field(number, value) for number, value in fields)


def delimited(messages: Iterable[bytes]) -> bytes:
    """Messages with the size of each one before it."""
    return b"".join(varint(len(one)) + one for one in messages)


def varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    found = bytearray()
    while value > 0x7F:
        found.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*found, value])


def _field(number: int, value: int | float | str | bytes) -> bytes:
    if isinstance(value, float):
        return varint(number << 3 | 1) + struct.pack("<d", value)
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    content = value.encode() if isinstance(value, str) else value
    return varint(number << 3 | 2) + varint(len(content)) + content
