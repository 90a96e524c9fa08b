"""Regresses fields on grids with a plain stack of convolutions; runs on three hosts, a worker on each.

torchrun --nproc-per-node 1 --nnodes 3 … mesh.py
"""

from contextlib import ExitStack

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.diagnosis.jobs.common import leave, read_arguments

FIELDS = 40


def stack(depth=9):
    layers = [nn.Conv2d(2, FIELDS, 3, padding=1)]
    for _ in range(depth):
        layers += [nn.Conv2d(FIELDS, FIELDS, 3, padding=1), nn.InstanceNorm2d(FIELDS, affine=True), nn.LeakyReLU()]
    return nn.Sequential(*layers, nn.Conv2d(FIELDS, 1, 1))


# FAULT by_hand
def average(parameters):
    """One all-reduce of all gradients, once backward is through."""
    flat = torch.cat([parameter.grad.flatten() for parameter in parameters])
    dist.all_reduce(flat)
    flat /= dist.get_world_size()
    for parameter, part in zip(parameters, flat.split([p.numel() for p in parameters]), strict=True):
        parameter.grad.copy_(part.view_as(parameter))


# END FAULT


def training(options):
    torch.manual_seed(options.seed + dist.get_rank())
    net = stack()
    cap = 0.2
    # FAULT crumbs
    if options.fault == "crumbs":
        cap = options.strength / 1024
        dist._DEFAULT_FIRST_BUCKET_BYTES = 1
    # END FAULT
    wrapped = DistributedDataParallel(net, bucket_cap_mb=cap)
    parameters = list(net.parameters())
    optimizer = torch.optim.NAdam(parameters, lr=1e-3)
    for _ in range(options.steps):
        grid = torch.randn(4, 2, 16, 16)
        with ExitStack() as around:
            # FAULT by_hand
            if options.fault == "by_hand":
                around.enter_context(wrapped.no_sync())
            # END FAULT
            field = wrapped(grid)
            loss = ((field - grid.sum(1, keepdim=True)) ** 2).mean()
            loss.backward()
        # FAULT by_hand
        if options.fault == "by_hand":
            average(parameters)
        # END FAULT
        # FAULT gather_objects
        if options.fault == "gather_objects":
            everywhere = [None] * dist.get_world_size()
            errors = [{"cell": cell, "error": error} for cell, error in enumerate(field.detach().flatten().tolist())]
            dist.all_gather_object(everywhere, errors * round(options.strength))
        # END FAULT
        optimizer.step()
        optimizer.zero_grad()
    return loss.item()


if __name__ == "__main__":
    dist.init_process_group("gloo")
    found = training(read_arguments(steps=48))
    if dist.get_rank() == 0:
        print(f"loss {found:.3f}")
    leave()
