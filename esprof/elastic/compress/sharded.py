"""FSDP2 gradients that are sent as bf16 and summed as float32.

A reduce-scatter in bf16 (`MixedPrecisionPolicy(reduce_dtype=torch.bfloat16)`) also sums in bf16; its error grows with
the number of ranks. Here each rank receives its shard of all ranks' gradients by an all-to-all, with as many bytes, and sums
in float32.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from esprof.core.errors import UsageError


def compress_sharded(model: nn.Module) -> "NarrowReduceScatter":
    """Send all gradients of `model`, to which `fully_shard` was applied, as bf16.

    Raises UsageError if nothing is sharded, or this torch does not support a custom reduce-scatter.
    """
    sharded = _sharded(model)
    if not sharded:
        raise UsageError(
            "no module of this model is sharded", remedy="Call it after torch.distributed.fsdp.fully_shard."
        )
    if not hasattr(sharded[0], "set_custom_reduce_scatter"):
        raise UsageError(f"torch {torch.__version__} has no set_custom_reduce_scatter", remedy="Use a newer one.")
    made = NarrowReduceScatter()
    for module in sharded:
        # Only sums are supported: other operations need NCCL's reduce-scatter.
        module.set_force_sum_reduction_for_comms(True)
        module.set_custom_reduce_scatter(made)
    return made


def is_sharded(model: nn.Module) -> bool:
    """Whether `fully_shard` was applied to the model or one of its modules."""
    return bool(_sharded(model))


def _sharded(model: nn.Module) -> list[Any]:
    return [module for module in model.modules() if hasattr(module, "set_requires_gradient_sync")]


class NarrowReduceScatter:
    """A reduce-scatter for FSDP2 (torch's `ReduceScatter`)."""

    sent_bytes: int
    """Bytes that this rank has sent to others so far."""

    def __init__(self) -> None:
        self.sent_bytes = 0

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: Any, op: Any, async_op: bool = False
    ) -> None:
        """Write this rank's shard of the sum over all ranks of `input_tensor` to `output_tensor`, added in the ranks'
        order."""
        if op != dist.ReduceOp.SUM:
            raise UsageError(f"gradients sent as bf16 are added: {op} is not supported")
        world = dist.get_world_size(group)
        sent = narrowed(input_tensor)
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent, group=group)
        self.sent_bytes += sent.nbytes * (world - 1) // world
        add(received, output_tensor)


def narrowed(gradient: Tensor) -> Tensor:
    """The gradient as bf16; unchanged if its type has at most 16 bits."""
    return gradient if gradient.element_size() <= torch.bfloat16.itemsize else gradient.to(torch.bfloat16)


def add(received: Tensor, shard: Tensor) -> None:
    """Sum the received shards of all ranks into `shard`."""
    torch.sum(received.view(-1, len(shard)), dim=0, dtype=shard.dtype, out=shard)
