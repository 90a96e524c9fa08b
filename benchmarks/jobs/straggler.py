"""Data-parallel training whose work is sleeping, as if devices did it, with one rank that is slower in the forward pass.

Several ranks so share a machine without competing for its cores. Each rank writes the time of each of its steps, ms, to
a file of its own, rank-N.json.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.jobs.loop import timed, worker

WIDTH = 256
LAYERS = 4
BUCKET_MB = 0.3
"""Of gradients: two layers fill a bucket."""


class Pause(torch.autograd.Function):
    """The identity, after a pause in the forward pass and another in the backward pass, ms."""

    @staticmethod
    def forward(context: Any, inputs: Tensor, forward_ms: float, backward_ms: float) -> Tensor:
        context.backward_ms = backward_ms
        time.sleep(forward_ms / 1e3)
        return inputs.view_as(inputs)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        time.sleep(context.backward_ms / 1e3)
        return gradients[0], None, None


class Layer(nn.Module):
    """A linear layer that takes `forward_ms`, and twice as long in the backward pass."""

    def __init__(self, forward_ms: float, late_ms: float) -> None:
        super().__init__()
        self._linear = nn.Linear(WIDTH, WIDTH)
        self._ms = forward_ms, late_ms

    def forward(self, inputs: Tensor) -> Tensor:
        forward_ms, late_ms = self._ms
        outputs: Tensor = Pause.apply(self._linear(inputs), forward_ms + late_ms, 2 * forward_ms)
        return outputs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--layer-ms", type=float, default=15, help="time of a layer in the forward pass")
    parser.add_argument("--slow-rank", type=int, default=2)
    parser.add_argument("--late-ms", type=float, default=200, help="by which that rank is slower in each step")
    parser.add_argument("--times", type=Path, help="folder for the step times")
    options = parser.parse_args()
    with worker(seed=0):
        rank = dist.get_rank()
        late_ms = options.late_ms / LAYERS if rank == options.slow_rank else 0.0
        layers = nn.Sequential(*(Layer(options.layer_ms, late_ms) for _ in range(LAYERS)))
        model = DistributedDataParallel(layers, bucket_cap_mb=BUCKET_MB)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        inputs = torch.randn(8, WIDTH)

        def step() -> float:
            optimizer.zero_grad()
            loss = model(inputs).square().mean()
            loss.backward()
            optimizer.step()
            return loss.item()

        step_ms, _ = timed(step() for _ in range(options.steps))
    if options.times is not None:
        (options.times / f"rank-{rank}.json").write_text(json.dumps(step_ms))


if __name__ == "__main__":
    main()
