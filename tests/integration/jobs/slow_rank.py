"""Data-parallel training with one rank that sleeps in the forward pass; it needs PyTorch alone: slow_rank.py RANK SECONDS.

Each rank prints a line of JSON: its rank, the ranks of the job, the loss, what is loaded of esprof, and its steps in s.
"""

import json
import sys
import time

import torch
import torch.distributed as dist
from torch import nn

SLOW, LATE_S = int(sys.argv[1]), float(sys.argv[2])


class Late(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if dist.get_rank() == SLOW:
            time.sleep(LATE_S)
        return x


def main() -> None:
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Linear(16, 64), nn.BatchNorm1d(64), Late(), nn.Linear(64, 64), nn.Linear(64, 8))
    # The buffers of the batch norm are broadcast before each step, and the gradients are two buckets.
    model = nn.parallel.DistributedDataParallel(layers, bucket_cap_mb=0.01)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    x, took = torch.randn(8, 16), []
    for number in range(12):
        began = time.perf_counter()
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        took.append(time.perf_counter() - began)
        if number == 8:
            dist.all_reduce(torch.ones(123))  # Outside of the recorded steps.
    dist.barrier()
    loaded = sorted(name for name in sys.modules if name.split(".")[0] == "esprof")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    print(json.dumps({"rank": rank, "ranks": ranks, "loss": loss.item(), "loaded": loaded, "steps": took}), flush=True)
    dist.destroy_process_group()
    time.sleep(0.5)  # gloo's threads need Python's lock once more, or PyTorch 2.13 may abort the process


if __name__ == "__main__":
    main()
