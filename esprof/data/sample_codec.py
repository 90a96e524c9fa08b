"""Samples as bytes, without pickle: numbers, text, bytes, arrays, CPU tensors, and lists, tuples and dicts of these.

Data sets without tensors need no torch.
"""

import sys
from importlib import import_module
from typing import Any

import msgspec
import numpy as np
from msgspec.msgpack import Ext

from esprof.core.errors import UsageError

_HEADER_BYTES = 4

_KINDS = "biufcmMSU"
"""Kinds of NumPy's types that their text (`dtype.str`) tells whole: numbers, times and text."""


_TUPLE, _ARRAY, _SCALAR, _TENSOR = 1, 2, 3, 4
"""Types of extensions of msgpack."""


def encode(sample: Any) -> bytes:
    """Encode a sample. Raises UsageError with the type that cannot be encoded."""
    return msgspec.msgpack.encode(_packed(sample))


def decode(data: bytes | memoryview) -> Any:
    """Decode what `encode` made: an equal sample that shares no memory with `data`."""
    return msgspec.msgpack.decode(data, ext_hook=_unpacked)


def _packed(value: Any) -> Any:
    kind = type(value)
    if value is None or kind in (bool, float, str, bytes) or (kind is int and -(1 << 63) <= value < 1 << 64):
        return value
    if kind is list:
        return [_packed(one) for one in value]
    if kind is tuple:
        return Ext(_TUPLE, msgspec.msgpack.encode([_packed(one) for one in value]))
    if kind is dict and all(type(key) in (str, int, bytes) for key in value):
        return {key: _packed(one) for key, one in value.items()}
    if kind is np.ndarray and value.dtype.kind in _KINDS:
        return _with_header(_ARRAY, (value.dtype.str, value.shape), value.tobytes())
    if isinstance(value, np.generic) and value.dtype.kind in _KINDS:
        return _with_header(_SCALAR, (value.dtype.str, ()), value.tobytes())
    torch = sys.modules.get("torch")
    if torch is not None and kind is torch.Tensor and _is_plain(value):
        raw = value.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if value.numel() else b""
        return _with_header(_TENSOR, (str(value.dtype).removeprefix("torch."), tuple(value.shape)), raw)
    raise UsageError(
        f"a sample contains {kind.__module__}.{kind.__qualname__}, which the cache cannot hold",
        remedy="Cache a data set of numbers, text, bytes, arrays, CPU tensors, or lists, tuples and dicts of these.",
    )


def _is_plain(tensor: Any) -> bool:
    is_dense = tensor.device.type == "cpu" and str(tensor.layout) == "torch.strided" and not tensor.is_quantized
    return is_dense and not tensor.requires_grad


def _with_header(code: int, header: object, raw: bytes) -> Ext:
    head = msgspec.msgpack.encode(header)
    return Ext(code, len(head).to_bytes(_HEADER_BYTES, "little") + head + raw)


def _unpacked(code: int, data: memoryview) -> Any:
    if code == _TUPLE:
        return tuple(decode(data))
    begin = _HEADER_BYTES + int.from_bytes(data[:_HEADER_BYTES], "little")
    kind, shape = msgspec.msgpack.decode(data[_HEADER_BYTES:begin], type=tuple[str, tuple[int, ...]])
    raw = bytearray(data[begin:])  # a copy that may be written to
    if code == _TENSOR:
        torch = import_module("torch")
        dtype = getattr(torch, kind)
        return torch.frombuffer(raw, dtype=dtype).reshape(shape) if raw else torch.empty(shape, dtype=dtype)
    array = np.frombuffer(raw, kind).reshape(shape)
    return array[()] if code == _SCALAR else array
