"""What a batch holds, told by its shape alone."""

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

import torch


def size(batch: Any) -> tuple[int | None, int | None]:
    """Samples and tokens of a batch, by its first tensor: its length, and its size where it is B x T integers."""
    tensor = next(_tensors(batch, depth=3), None)
    if tensor is None or tensor.dim() == 0:
        return None, None
    is_tokens = tensor.dim() == 2 and not tensor.is_floating_point() and tensor.dtype != torch.bool
    return tensor.shape[0], tensor.numel() if is_tokens else None


def _tensors(batch: Any, depth: int) -> Iterator[torch.Tensor]:
    if isinstance(batch, torch.Tensor):
        yield batch
    elif depth and isinstance(batch, Mapping | list | tuple):
        for part in islice(batch.values() if isinstance(batch, Mapping) else batch, 8):
            yield from _tensors(part, depth - 1)
