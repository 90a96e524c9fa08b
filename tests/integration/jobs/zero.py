"""Trains three layers between a stem and a head on each rank: `zero.py ddp`, or `zero.py 2` and `3` by FSDP2, which keeps
the layers' parameters after their forward pass (2) or not (3).
"""

import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

STEPS, HIDDEN, LAYERS = 10, 192, 3


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(64, HIDDEN)
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(HIDDEN, HIDDEN), nn.GELU()) for _ in range(LAYERS))
        self.head = nn.Linear(HIDDEN, 2)

    def forward(self, x):
        x = self.stem(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def main(how):
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = Model()
    if how == "ddp":
        model = DistributedDataParallel(model)
    else:
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        for layer in model.layers:
            fully_shard(layer, mesh=mesh, reshard_after_forward=how == "3")
        fully_shard(model, mesh=mesh)
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(STEPS):
        model(torch.randn(256, 64)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()
    time.sleep(0.5)  # Gloo's threads outlive the group, and must not meet an interpreter on its way out.


if __name__ == "__main__":
    main(sys.argv[1])
