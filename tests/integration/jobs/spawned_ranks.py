"""Two ranks that one Python process starts itself, without a launcher."""

import os
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from steps import losses, model_and_optimizer
from torch.nn.parallel import DistributedDataParallel


def train(rank: int, store: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    model, _ = model_and_optimizer()
    model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in losses(model, 20):
        optimizer.step()
    os._exit(0)  # Ends at once: gloo's threads abort an ordinary exit of a spawned process now and then.


if __name__ == "__main__":
    mp.start_processes(train, (sys.argv[1],), nprocs=2, start_method=sys.argv[2])
