"""Outlines shadows on scans by a U-Net, by DDP on two hosts.

torchrun --nproc-per-node 2 train.py
"""

import itertools

import torch
import torch.distributed as dist
import torch.nn.functional as F
from data import Scans
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler

from benchmarks.diagnosis.jobs.common import leave, read_arguments

BATCH = 6
WIDTHS = (8, 16, 32, 64)


def block(before, after):
    layers = [nn.Conv2d(before, after, 3, padding=1), nn.GroupNorm(4, after), nn.ReLU()]
    return nn.Sequential(*layers, nn.Conv2d(after, after, 3, padding=1), nn.GroupNorm(4, after), nn.ReLU())


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        before = (1, *WIDTHS[:-1])
        self.down = nn.ModuleList(block(*some) for some in zip(before, WIDTHS, strict=True))
        self.up = nn.ModuleList(block(low + high, high) for high, low in itertools.pairwise(WIDTHS))
        self.last = nn.Conv2d(WIDTHS[0], 1, 1)

    def forward(self, scans):
        kept, hidden = [], scans
        for number, down in enumerate(self.down):
            hidden = down(F.max_pool2d(hidden, 2) if number else hidden)
            kept.append(hidden)
        for up, side in zip(reversed(self.up), reversed(kept[:-1]), strict=True):
            hidden = up(torch.cat([F.interpolate(hidden, scale_factor=2), side], dim=1))
        return self.last(hidden)


def main():
    options = read_arguments(steps=60)
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(options.seed)
    torch.set_num_threads(1)
    scans = Scans(options)
    sampler = DistributedSampler(scans, seed=options.seed)
    batches = BatchSampler(sampler, BATCH, drop_last=True)
    loader = DataLoader(scans, sampler=batches, batch_size=None, num_workers=1, persistent_workers=True)
    model = UNet()
    if options.fault != "by_hand":
        model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, fused=True)
    done = epoch = 0
    while done < options.steps:
        sampler.set_epoch(epoch)
        for inputs, shadows in loader:
            optimizer.zero_grad()
            loss = F.binary_cross_entropy_with_logits(model(inputs), shadows)
            loss.backward()
            # FAULT by_hand
            if options.fault == "by_hand":
                for parameter in model.parameters():
                    dist.all_reduce(parameter.grad)
                    parameter.grad /= ranks
            # END FAULT
            optimizer.step()
            done += 1
            if done == options.steps:
                break
        epoch += 1
    if rank == 0:
        print(f"{done} steps, loss {loss.item():.3f}")
    leave()


if __name__ == "__main__":
    main()
