"""What a batch holds, told by its shape alone."""

from collections.abc import Iterable, Mapping
from itertools import islice
from typing import Any

import torch

_PARTS = 8


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
        parts = batch[:_PARTS]
    elif isinstance(batch, Mapping):
        parts = islice(batch.values(), _PARTS)
    for part in parts:
        tensor = _first_tensor(part, depth - 1)
        if tensor is not None:
            return tensor
    return None
