"""A hash of what a value holds, for comparing what cannot be compared otherwise: samples, attributes, gradients."""

import hashlib
import random
from collections.abc import Mapping, Sequence, Set
from typing import Any

import numpy as np
import torch
from torch import Tensor

_MAX_DEPTH = 6
"""How deep containers and objects are looked into."""


def as_numpy(tensor: Tensor) -> np.ndarray[Any, Any]:
    """The values in host memory, contiguous; a type that NumPy lacks, such as bfloat16, as integers of its bits."""
    host = tensor.detach().cpu().contiguous()
    if host.dtype.is_floating_point and host.dtype not in (torch.float16, torch.float32, torch.float64):
        host = host.view({1: torch.int8, 2: torch.int16}[host.dtype.itemsize])
    return host.numpy()


def numbers(value: object) -> object:
    """The tensors and numbers of a batch, without its strings: a path may differ where the data do not."""
    match value:
        case Tensor() | np.ndarray() | np.generic() | bool() | int() | float():
            return value
        case Mapping():
            return [numbers(item) for item in value.values()]
        case list() | tuple():
            return [numbers(item) for item in value]
    return None


def content(value: object) -> str:
    """The hash of a value, 16 digits. Of an object of an unknown kind its attributes count, of one without its type."""
    digest = hashlib.blake2b(digest_size=8)
    _add(digest, value, 0)
    return digest.hexdigest()


def _add(digest: Any, value: object, depth: int) -> None:
    digest.update(type(value).__name__.encode())
    if depth > _MAX_DEPTH:
        return
    match value:
        case None | bool() | int() | float() | complex() | str() | bytes():
            digest.update(repr(value).encode())
        case Tensor():
            _add_tensor(digest, value)
        case np.ndarray() | np.generic():
            digest.update(f"{value.dtype}{value.shape}".encode())
            digest.update(
                repr(value.tolist()).encode() if value.dtype.hasobject else np.ascontiguousarray(value).tobytes()
            )
        case torch.Generator():
            _add(digest, value.get_state(), depth + 1)
        case random.Random():
            _add(digest, value.getstate(), depth + 1)
        case np.random.Generator():
            _add(digest, value.bit_generator.state, depth + 1)
        case np.random.RandomState():
            _add(digest, value.get_state(legacy=False), depth + 1)
        case Mapping():
            for key, item in value.items():
                _add(digest, key, depth + 1)
                _add(digest, item, depth + 1)
        case Set():
            digest.update(repr(sorted(map(content, value))).encode())
        case Sequence():
            for item in value:
                _add(digest, item, depth + 1)
        case _ if depth < 3 and hasattr(value, "__dict__") and not isinstance(value, type | torch.nn.Module):
            _add(digest, vars(value), depth + 1)


def _add_tensor(digest: Any, tensor: Tensor) -> None:
    digest.update(f"{tensor.dtype}{list(tensor.shape)}".encode())
    if tensor.layout is torch.strided and not tensor.is_complex() and not tensor.is_meta and not tensor.is_quantized:
        digest.update(np.ascontiguousarray(as_numpy(tensor)).tobytes())
    else:
        digest.update(repr(tensor).encode())
