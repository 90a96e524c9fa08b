"""What the training patterns share: a model, its batches, and one plain step."""

from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

WIDTH, CLASSES, BATCH = 128, 16, 64


def rank() -> int:
    return dist.get_rank() if dist.is_initialized() else 0


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(WIDTH, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, CLASSES))


def parallel(model: nn.Module, bucket_cap_mb: float = 0.2) -> nn.Module:
    """`model` under DDP, by default in small buckets; as it is where there is no process group."""
    return DistributedDataParallel(model, bucket_cap_mb=bucket_cap_mb) if dist.is_initialized() else model


def batches(count: int) -> Iterator[tuple[Tensor, Tensor]]:
    """`count` batches, each rank's own, and the same at every call."""
    source = torch.Generator().manual_seed(1 + rank())
    for _ in range(count):
        yield torch.randn(BATCH, WIDTH, generator=source), torch.randint(CLASSES, (BATCH,), generator=source)


def loss_of(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    inputs, labels = batch
    return nn.functional.cross_entropy(model(inputs), labels)


def plain_steps(model: nn.Module, optimizer: torch.optim.Optimizer, count: int) -> Iterator[float]:
    """Forward, backward, step."""
    for batch in batches(count):
        optimizer.zero_grad()
        loss = loss_of(model, batch)
        loss.backward()
        optimizer.step()
        yield loss.item()
