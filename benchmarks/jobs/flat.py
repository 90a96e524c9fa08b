"""An autoencoder without DDP: after the backward pass, one all-reduce of all gradients, laid end to end by hand."""

from collections.abc import Iterable, Iterator

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

from benchmarks.jobs.memory import SAMPLES, batches, run

INPUTS = 784
HIDDEN = 512
CODE = 32


def average_gradients(parameters: Iterable[nn.Parameter]) -> None:
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    for gradient, averaged in zip(gradients, flat.split([gradient.numel() for gradient in gradients]), strict=True):
        gradient.copy_(averaged.view_as(gradient))


def train() -> Iterator[float]:
    points = torch.tanh(torch.randn(SAMPLES, CODE) @ torch.randn(CODE, INPUTS) / 4)
    model = nn.Sequential(
        nn.Linear(INPUTS, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, CODE), nn.ReLU(),
        nn.Linear(CODE, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, INPUTS), nn.Tanh(),
    )  # fmt: skip
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    for inputs, targets in batches(points, points, 128):
        optimizer.zero_grad()
        loss = F.mse_loss(model(inputs), targets)
        loss.backward()
        average_gradients(model.parameters())
        optimizer.step()
        yield loss.item()


if __name__ == "__main__":
    run("flat", __doc__, train)
