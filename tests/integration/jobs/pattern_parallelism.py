"""Ways to share a step out: none, DDP, FSDP2, micro-batches; in full and in half precision, interpreted and compiled."""

from collections.abc import Iterator
from contextlib import nullcontext

import torch
from pattern_parts import batches, loss_of, mlp, parallel, plain_steps
from torch import nn
from torch.distributed.fsdp import fully_shard


def ddp(steps: int) -> Iterator[float]:
    """One process where there is no process group."""
    model = parallel(mlp())
    yield from plain_steps(model, torch.optim.AdamW(model.parameters()), steps)


def fsdp(steps: int) -> Iterator[float]:
    model = mlp()
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer)
    fully_shard(model)
    yield from plain_steps(model, torch.optim.AdamW(model.parameters()), steps)


def accumulation(steps: int) -> Iterator[float]:
    """Three micro-batches a step; only the last one's gradients are reduced."""
    model = parallel(mlp())
    optimizer = torch.optim.AdamW(model.parameters())
    loss = torch.zeros(())
    for number, batch in enumerate(batches(3 * steps)):
        is_last = number % 3 == 2
        with nullcontext() if is_last else model.no_sync():
            loss = loss_of(model, batch) / 3
            loss.backward()
        if is_last:
            optimizer.step()
            optimizer.zero_grad()
            yield loss.item()


def amp(steps: int) -> Iterator[float]:
    """Autocast to bfloat16, which needs no scaling of gradients."""
    model = parallel(mlp())
    optimizer = torch.optim.AdamW(model.parameters())
    for batch in batches(steps):
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16):
            loss = loss_of(model, batch)
        loss.backward()
        optimizer.step()
        yield loss.item()


def compiled(steps: int) -> Iterator[float]:
    """In buckets as DDP makes them: where it compiles, PyTorch 2.13 knows no smaller ones."""
    model = parallel(torch.compile(mlp()), bucket_cap_mb=25)
    yield from plain_steps(model, torch.optim.AdamW(model.parameters()), steps)
