"""Size and padding of a batch, from the shapes of its tensors and its attention mask."""

import ctypes
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

import numpy as np
import torch

_MAX_ITEMS = 8

_MASK = "attention_mask"
"""Name that tokenizers give the tensor (B x T) that is 0 for padding tokens."""

_MAX_MASK_ELEMENTS = 1 << 20
"""Largest mask that is counted, in elements, which takes less than a millisecond."""

_UNSIGNED: dict[int, Any] = {1: ctypes.c_uint8, 2: ctypes.c_uint16, 4: ctypes.c_uint32, 8: ctypes.c_uint64}
"""Element size in bytes -> integer type."""


def padding(batch: Any) -> int | None:
    """Number of padding tokens in a batch, from its attention mask; None without a mask in CPU memory.

    The mask is read directly from memory: any operation of torch, even `Tensor.numpy`, would appear in the job's trace.
    """
    mask = _mask_in(batch, depth=3)
    if (
        # Reading a subclass may have side effects.
        type(mask) is not torch.Tensor
        or mask.device.type != "cpu"
        or mask.layout is not torch.strided
        or mask.dim() != 2
        or mask.is_floating_point()
        or mask.is_complex()
        or not 0 < mask.numel() <= _MAX_MASK_ELEMENTS
        or not mask.is_contiguous()
    ):
        return None
    memory = (_UNSIGNED[mask.element_size()] * mask.numel()).from_address(mask.data_ptr())
    return mask.numel() - int(np.count_nonzero(np.ctypeslib.as_array(memory)))


def _mask_in(batch: Any, depth: int) -> Any:
    if isinstance(batch, Mapping) and _MASK in batch:
        return batch[_MASK]
    own = getattr(batch, "__dict__", None)
    if isinstance(own, dict) and _MASK in own:
        return own[_MASK]
    if depth and isinstance(batch, list | tuple):
        for item in batch[:_MAX_ITEMS]:
            mask = _mask_in(item, depth - 1)
            if mask is not None:
                return mask
    return None


def size(batch: Any) -> tuple[int | None, int | None]:
    """(samples, tokens) of a batch, from its first tensor: its length and, for B x T integers, its number of elements.

    None for an unknown value.
    """
    tensor = _first_tensor(batch, depth=3)
    if tensor is None or tensor.dim() == 0:
        return None, None
    is_tokens = tensor.dim() == 2 and not tensor.is_floating_point() and tensor.dtype != torch.bool
    return tensor.shape[0], tensor.numel() if is_tokens else None


def _first_tensor(batch: Any, depth: int) -> torch.Tensor | None:
    if isinstance(batch, torch.Tensor):
        return batch
    if not depth:
        return None
    items: Iterable[Any] = ()
    if isinstance(batch, list | tuple):
        items = batch[:_MAX_ITEMS]
    elif isinstance(batch, Mapping):
        items = islice(batch.values(), _MAX_ITEMS)
    elif _mask_in(batch, 0) is not None:  # An object with the output of a tokenizer.
        items = islice(vars(batch).values(), _MAX_ITEMS)
    for item in items:
        tensor = _first_tensor(item, depth - 1)
        if tensor is not None:
            return tensor
    return None
