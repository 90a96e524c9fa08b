"""Keys of the samples of a batch: what a map-style dataset is asked for."""

import ctypes
from array import array
from binascii import b2a_base64
from hashlib import blake2b
from typing import Any

import numpy as np
import torch

from ....run.raw.sample_keys import FIRST_HASH

_HASH_BYTES = 8


def noted_keys(keys: Any) -> str | None:
    """The keys of a batch as int64 in base64, in the order asked for; None if they are unknown.

    An index is noted as it is, and any other text, number or tuple by a hash that all processes share. Other objects may
    differ between processes, and an iterator would be used up by reading it: such keys are unknown.
    """
    if isinstance(keys, np.ndarray):
        keys = keys.tolist()
    if not isinstance(keys, list | tuple | range):
        return None
    if set(map(type, keys)) - {int} or max(keys, default=0) >= FIRST_HASH:
        keys = [_number(key) for key in keys]
        if None in keys:
            return None
    return b2a_base64(array("q", keys).tobytes(), newline=False).decode()


def length_of(dataset: Any) -> int | None:
    """Number of samples of a dataset; None if it does not say."""
    try:
        return len(dataset)
    except Exception:  # noqa: BLE001  it is the job's own method, which may do anything
        return None


def _number(key: Any) -> int | None:
    if isinstance(key, torch.Tensor):
        key = _element(key)
    if isinstance(key, int | np.integer) and -FIRST_HASH <= key < FIRST_HASH:
        return int(key)
    if not _is_plain(key):
        return None
    digest = blake2b(repr(key).encode(errors="surrogatepass"), digest_size=_HASH_BYTES).digest()
    return FIRST_HASH | int.from_bytes(digest, "little") >> 2


def _element(tensor: torch.Tensor) -> int | None:
    """The number in a tensor of one integer, read from memory: operations of torch would appear in the job's trace."""
    if tensor.device.type != "cpu" or tensor.dtype is not torch.int64 or tensor.dim():
        return None
    return ctypes.c_int64.from_address(tensor.data_ptr()).value


def _is_plain(key: Any) -> bool:
    """Whether the text of a key is the same in all processes."""
    if isinstance(key, tuple):
        return all(map(_is_plain, key))
    return isinstance(key, str | bytes | int | float)
