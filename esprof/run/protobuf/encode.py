"""Write the wire format of Protocol Buffers (https://protobuf.dev/programming-guides/encoding), field by field."""

import numpy as np

from esprof.run.protobuf.wire import BYTES, FIXED64, MAX_VARINT, MORE, VARINT

_BITS = 64
_BITS_A_BYTE = 7


def varint(value: int) -> bytes:
    """A number of up to 64 bits; a negative one as the two's complement."""
    value &= (1 << _BITS) - 1
    if value < MORE:
        return bytes((value,))
    found = bytearray()
    while value >= MORE:
        found.append(value & (MORE - 1) | MORE)
        value >>= _BITS_A_BYTE
    found.append(value)
    return bytes(found)


def varints(values: np.ndarray) -> list[bytes]:
    """`varint` of each of many numbers (int64), faster than one by one."""
    parts = values.astype(np.uint64)[:, None] >> np.arange(0, _BITS, _BITS_A_BYTE, dtype=np.uint64)
    sizes = np.maximum((parts != 0).sum(axis=1), 1)
    more = np.arange(MAX_VARINT) < (sizes - 1)[:, None]
    text = np.where(more, parts | MORE, parts & (MORE - 1)).astype(np.uint8).tobytes()
    begins = range(0, len(text), MAX_VARINT)
    return [text[begin : begin + size] for begin, size in zip(begins, sizes.tolist(), strict=True)]


def tag(field: int, kind: int) -> bytes:
    """What stands before the value of a field; `kind` is `VARINT`, `FIXED64` or `BYTES`."""
    return varint(field << 3 | kind)


def number(field: int, value: int) -> bytes:
    """A field of type int32, int64, uint32, uint64, bool or enum."""
    return tag(field, VARINT) + varint(value)


def fixed64(field: int, value: int) -> bytes:
    """A field of type fixed64."""
    return tag(field, FIXED64) + value.to_bytes(8, "little")


def data(field: int, value: bytes) -> bytes:
    """A field of type bytes, or of a message."""
    return tag(field, BYTES) + varint(len(value)) + value


def text(field: int, value: str) -> bytes:
    """A field of type string."""
    return data(field, value.encode("utf-8", "replace"))
