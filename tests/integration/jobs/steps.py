"""What the other jobs share: a small model, and plain steps of it."""

from collections.abc import Iterator

import torch
from torch import nn


def model_and_optimizer() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 1))
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def losses(model: nn.Module, count: int) -> Iterator[torch.Tensor]:
    """`count` losses, each with its gradients in place."""
    for i in range(count):
        model.zero_grad()
        loss = model(torch.linspace(0, i, 64).view(4, 16)).square().mean()
        loss.backward()
        yield loss
