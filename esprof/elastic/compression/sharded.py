"""Gradients of FSDP2 that travel as 16-bit floats and are added as 32-bit ones.

A reduce-scatter in bf16 (`MixedPrecisionPolicy(reduce_dtype=torch.bfloat16)`) adds in bf16, too, and loses more the more
ranks there are. Here each rank gets its shard of all ranks' gradients by an all-to-all, and adds them in 32 bits: as many
bytes.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from esprof.errors import UsageError


def compress_sharded(model: nn.Module) -> "NarrowReduceScatter":
    """Let all gradients of `model`, which `fully_shard` has been applied to, travel as bf16.

    Raises UsageError where nothing of it is sharded, or this torch lets nobody else carry out the reduce-scatter.
    """
    sharded: list[Any] = [module for module in model.modules() if hasattr(module, "set_requires_gradient_sync")]
    if not sharded:
        raise UsageError(
            "no module of this model is sharded", remedy="Call it after torch.distributed.fsdp.fully_shard."
        )
    if not hasattr(sharded[0], "set_custom_reduce_scatter"):
        raise UsageError(f"torch {torch.__version__} has no set_custom_reduce_scatter", remedy="Use a newer one.")
    made = NarrowReduceScatter()
    for module in sharded:
        # Sums alone: other operations are NCCL's own.
        module.set_force_sum_reduction_for_comms(True)
        module.set_custom_reduce_scatter(made)
    return made


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
            raise UsageError(f"gradients that travel as bf16 are added, and cannot be reduced by {op}")
        world = dist.get_world_size(group)
        narrow = input_tensor.to(torch.bfloat16)
        received = torch.empty_like(narrow)
        dist.all_to_all_single(received, narrow, group=group)
        self.sent_bytes += narrow.nbytes * (world - 1) // world
        torch.sum(received.view(world, -1), dim=0, dtype=output_tensor.dtype, out=output_tensor)
