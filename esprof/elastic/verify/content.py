"""A hash of what a value holds, for comparing what cannot be compared otherwise: samples, attributes, gradients."""

import hashlib
import random
from collections.abc import Mapping, Sequence, Set
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

_MAX_DEPTH = 6
"""How deep containers and objects are looked into."""

_MIN_SUMMED = 1 << 12
"""Elements from which a tensor is hashed by its checksum: faster than blake2b, and nothing leaves its device."""

_CHUNK_OF_CPU, _CHUNK_OF_DEVICE = 1 << 16, 1 << 22
"""Words that are multiplied at once: what the cache of a CPU holds; what keeps a GPU busy."""

_STEP_OF_CHUNKS = 0x1E3779B97F4A7C15
"""By which the sum so far is multiplied at each chunk: odd, so that no bit is lost."""


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


def checksum(tensor: Tensor) -> int:
    """64 bits that depend on each bit of a strided tensor and its place, computed on its device.

    A multilinear hash (Lemire and Kaser, 2014, arXiv:1202.4961): the sum, modulo 2**64, of words of at most 32 bits, each
    times a random odd weight. Tensors that differ by chance have the same sum with a probability of at most 2**-32.
    """
    flat = tensor.detach().reshape(-1).contiguous()
    words = flat.view({1: torch.int8, 2: torch.int16}.get(flat.itemsize, torch.int32))
    size = _CHUNK_OF_CPU if tensor.is_cpu else _CHUNK_OF_DEVICE
    weights, total = _weights(tensor.device, size), torch.zeros((), dtype=torch.int64, device=tensor.device)
    for part in words.split(size):
        total = total * _STEP_OF_CHUNKS + (part * weights[: len(part)]).sum()
    return int(total)


@cache
def _weights(device: torch.device, size: int) -> Tensor:
    """The weights of a chunk's words, the same in all processes."""
    drawn = torch.randint(-(1 << 63), (1 << 63) - 1, (size,), generator=torch.Generator().manual_seed(0))
    return (drawn | 1).to(device)


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
        is_large = tensor.numel() >= _MIN_SUMMED
        digest.update(str(checksum(tensor)).encode() if is_large else as_numpy(tensor).tobytes())
    else:
        digest.update(repr(tensor).encode())
