"""What a batch holds, told by the shapes of its tensors and by its attention mask."""

import ctypes
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

import numpy as np
import torch

_MAX_PARTS = 8

_MASK = "attention_mask"
"""What tokenizers call the tensor (B x T) that is 0 where a token only pads its sequence."""

_MAX_MASK_ELEMENTS = 1 << 20
"""Elements of a mask that are counted, which takes less than a millisecond; of a larger one nothing is noted."""

_UNSIGNED: dict[int, Any] = {1: ctypes.c_uint8, 2: ctypes.c_uint16, 4: ctypes.c_uint32, 8: ctypes.c_uint64}
"""By size in bytes."""


def padding(batch: Any) -> int | None:
    """How many tokens of a batch only pad, by its attention mask; None where it has none in the CPU's memory.

    The mask is counted where it lies in memory: whatever torch did to it would show in the job's trace, `Tensor.numpy` too.
    """
    mask = _mask_in(batch, depth=3)
    if (
        # Of a subclass nobody knows what reading it does.
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
        for part in batch[:_MAX_PARTS]:
            mask = _mask_in(part, depth - 1)
            if mask is not None:
                return mask
    return None


def size(batch: Any) -> tuple[int | None, int | None]:
    """(samples, tokens) of a batch, by its first tensor: the length, and the number of elements where it is B x T integers.

    None stands for what the tensor does not tell.
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
    parts: Iterable[Any] = ()
    if isinstance(batch, list | tuple):
        parts = batch[:_MAX_PARTS]
    elif isinstance(batch, Mapping):
        parts = islice(batch.values(), _MAX_PARTS)
    elif _mask_in(batch, 0) is not None:  # An object with what tokenizers make.
        parts = islice(vars(batch).values(), _MAX_PARTS)
    for part in parts:
        tensor = _first_tensor(part, depth - 1)
        if tensor is not None:
            return tensor
    return None
