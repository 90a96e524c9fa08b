"""A deep perceptron cut into a stage a rank, which hand activations on and gradients back by isend and irecv.

All micro-batches of a step go forward, then all go back.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from benchmarks.jobs.memory import run

WIDTH = 768
MICRO_BATCHES = 3
MICRO_BATCH = 64


@dataclass(frozen=True)
class Stage:
    """One rank's part of the model, between the ranks before and after."""

    layers: nn.Module
    rank: int
    last: int

    def forward(self, inputs: Tensor, sending: list[dist.Work | None]) -> tuple[Tensor, Tensor]:
        """What goes in and what comes out, for one micro-batch: on the first stage `inputs` go in."""
        if self.rank > 0:
            inputs = torch.empty_like(inputs)
            receive(inputs, self.rank - 1)
            inputs.requires_grad_()
        outputs: Tensor = self.layers(inputs)
        if self.rank < self.last:
            sending.append(dist.isend(outputs.detach(), self.rank + 1))
        return inputs, outputs

    def backward(self, inputs: Tensor, outputs: Tensor, targets: Tensor, sending: list[dist.Work | None]) -> float:
        """Returns the micro-batch's loss on the last stage, 0 on others."""
        loss = 0.0
        if self.rank == self.last:
            error = F.mse_loss(outputs, targets) / MICRO_BATCHES
            error.backward()
            loss = error.item()
        else:
            gradient = torch.empty_like(outputs)
            receive(gradient, self.rank + 1)
            outputs.backward(gradient)
        if self.rank > 0:
            assert inputs.grad is not None
            sending.append(dist.isend(inputs.grad, self.rank - 1))
        return loss


def receive(into: Tensor, rank: int) -> None:
    work = dist.irecv(into, rank)
    assert work is not None
    work.wait()


def train() -> Iterator[float]:
    """Yields each step's loss, on the last stage alone; the others know none."""
    rank, stages = dist.get_rank(), dist.get_world_size()
    layers = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH), nn.ReLU())
    stage = Stage(layers, rank, stages - 1)
    optimizer = torch.optim.AdamW(layers.parameters(), lr=1e-3)
    while True:
        batches = [torch.randn(MICRO_BATCH, WIDTH) for _ in range(MICRO_BATCHES)]
        sending: list[dist.Work | None] = []
        passed = [stage.forward(batch, sending) for batch in batches]
        losses = [
            stage.backward(inputs, outputs, batch.abs(), sending)
            for (inputs, outputs), batch in zip(passed, batches, strict=True)
        ]
        for work in sending:
            assert work is not None
            work.wait()
        optimizer.step()
        optimizer.zero_grad()
        yield sum(losses)


if __name__ == "__main__":
    run("pipeline", __doc__, train)
