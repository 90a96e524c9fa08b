"""Two ranks, each with a DataLoader worker, that one Python process starts itself: a whole job in a few seconds."""

import os
import sys
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, TensorDataset


def train(rank: int, store: str, steps: int, pause: float) -> None:
    torch.manual_seed(0)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    data = TensorDataset(torch.linspace(0, 1, 64 * steps).view(-1, 16))
    for step, (x,) in enumerate(DataLoader(data, batch_size=4, num_workers=1)):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        time.sleep(pause)
        optimizer.step()
        if rank == 0:
            print(f"step {step} loss {loss.item().hex()}", flush=True)
    # gloo's threads let go of a tensor after its wait has returned; one that does so while Python shuts down aborts.
    time.sleep(0.2)
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    print("parent", os.getpid(), flush=True)
    mp.start_processes(train, (sys.argv[1], int(sys.argv[2]), float(sys.argv[3])), nprocs=2, start_method="fork")
    print("done", flush=True)
