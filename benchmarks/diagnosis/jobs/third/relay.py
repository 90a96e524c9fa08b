"""Rebuilds signals with a deep stack of narrow layers over real links; gradients of two parts of a batch go as one.

torchrun --nproc-per-node 1 --nnodes 2 … relay.py
"""

from contextlib import ExitStack

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.diagnosis.jobs.common import leave, read_arguments

WIDTH, DEPTH, ROWS = 112, 22, (80, 360)


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.inner = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return x + nn.functional.silu(self.inner(self.norm(x)))


class Rebuild(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(*(Layer() for _ in range(DEPTH)))
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        return self.out(self.layers(x))


def wrapped(net, options):
    size = 0.3
    # FAULT confetti
    if options.fault == "confetti":
        size = options.strength / 1024
    # END FAULT
    # FAULT lump
    if options.fault == "lump":
        size = options.strength
    # END FAULT
    return DistributedDataParallel(net, bucket_cap_mb=size, gradient_as_bucket_view=True)


def main():
    options = read_arguments(steps=48)
    dist.init_process_group("gloo")
    torch.manual_seed(options.seed)
    ddp = wrapped(Rebuild(), options)
    optimizer = torch.optim.RMSprop(ddp.parameters(), lr=1e-4)
    holds_back = True
    # FAULT every_part
    if options.fault == "every_part":
        holds_back = False
    # END FAULT
    for _ in range(options.steps):
        clean = torch.randn(sum(ROWS), WIDTH).cumsum(1) / 8
        for number, part in enumerate(clean.split(ROWS)):
            with ExitStack() as stack:
                if holds_back and number == 0:
                    stack.enter_context(ddp.no_sync())
                loss = nn.functional.mse_loss(ddp(part + 0.1 * torch.randn_like(part)), part)
                (loss / 2).backward()
        optimizer.step()
        optimizer.zero_grad()
    if dist.get_rank() == 0:
        print(f"loss {loss.item():.4f}")
    leave()


if __name__ == "__main__":
    main()
