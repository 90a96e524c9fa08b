"""Trains a small U-Net that names the class of each pixel of aerial tiles, by DDP.

torchrun --nproc-per-node 2 train.py --files FOLDER
"""

import random
from itertools import count

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Subset
from torch.utils.data.distributed import DistributedSampler

from benchmarks.diagnosis.jobs.common import leave, read_arguments
from benchmarks.diagnosis.jobs.ninth.tiles.data import CLASSES, CROP, Tiles

BATCH = 6
LOG_EVERY = 20


def block(channels, out):
    return nn.Sequential(
        nn.Conv2d(channels, out, 3, padding=1, bias=False),
        nn.GroupNorm(4, out),
        nn.ReLU(inplace=True),
        nn.Conv2d(out, out, 3, padding=1, bias=False),
        nn.GroupNorm(4, out),
        nn.ReLU(inplace=True),
    )


class UNet(nn.Module):
    def __init__(self, widths=(12, 24, 48)):
        super().__init__()
        self.down = nn.ModuleList(block(*pair) for pair in zip((3, *widths), widths, strict=False))
        self.middle = block(widths[-1], widths[-1])
        above = (*reversed(widths[:-1]), widths[0])
        self.up = nn.ModuleList(block(2 * width, out) for width, out in zip(reversed(widths), above, strict=True))
        self.head = nn.Conv2d(widths[0], CLASSES, 1)

    def forward(self, images):
        x, kept = images, []
        for down in self.down:
            x = down(x)
            kept.append(x)
            x = F.max_pool2d(x, 2)
        x = self.middle(x)
        for up, skip in zip(self.up, reversed(kept), strict=True):
            x = up(torch.cat((F.interpolate(x, size=skip.shape[-2:]), skip), 1))
        return self.head(x)


def confusion(logits, classes):
    """How many pixels of each class (rows) were taken for each class (columns)."""
    pairs = CLASSES * classes.flatten() + logits.argmax(1).flatten()
    return torch.bincount(pairs, minlength=CLASSES**2).view(CLASSES, CLASSES)


def mean_iou(matrix):
    hits = matrix.diagonal()
    return (hits / (matrix.sum(0) + matrix.sum(1) - hits).clamp(min=1)).mean().item()


# FAULT reductions
def class_ious(logits, classes, measured):
    """Intersection over union of each class, over all ranks."""
    found = logits.argmax(1)
    ious = []
    for number in range(measured):
        intersection = ((found == number) & (classes == number)).sum()
        union = ((found == number) | (classes == number)).sum()
        dist.all_reduce(intersection)
        dist.all_reduce(union)
        ious.append(intersection / union.clamp(min=1))
    return torch.stack(ious)


# END FAULT


# FAULT scales
def rescale(images, classes, spread, chance):
    """Multi-scale training: the batch at one of three sizes."""
    size = CROP + chance.choice((-1, 0, 1)) * spread
    images = F.interpolate(images, size=(size, size), mode="bilinear")
    return images, F.interpolate(classes[:, None].float(), size=(size, size))[:, 0].long()


# END FAULT


def make_loader(options):
    warp = 0
    # FAULT elastic
    if options.fault == "elastic":
        warp = round(options.strength)
    # END FAULT
    tiles, keep_workers = Tiles(options.files, warp), True
    # FAULT restarts
    if options.fault == "restarts":
        tiles = Subset(tiles, range(round(options.strength) * BATCH * dist.get_world_size()))
        keep_workers = False
    # END FAULT
    sampler = DistributedSampler(tiles, seed=options.seed, drop_last=True)
    return DataLoader(tiles, BATCH, sampler=sampler, num_workers=1, persistent_workers=keep_workers, drop_last=True)


def batches(loader):
    for epoch in count():
        loader.sampler.set_epoch(epoch)
        yield from loader


def main():
    options = read_arguments(steps=70, needs_files=True)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(options.seed)
    model = DistributedDataParallel(UNet())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4, foreach=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.2, total_steps=options.steps)
    seen = torch.zeros(CLASSES, CLASSES, dtype=torch.long)
    chance = random.Random(100 * options.seed + rank)
    source = batches(make_loader(options))
    for step in range(options.steps):
        images, classes = next(source)
        # FAULT scales
        if options.fault == "scales":
            images, classes = rescale(images, classes, 4 * round(options.strength / 4), chance)
        # END FAULT
        logits = model(images)
        loss = F.cross_entropy(logits, classes)
        logits = logits.detach()
        # FAULT again
        if options.fault == "again":
            with torch.no_grad():
                for _ in range(round(options.strength)):
                    logits = model.module(images)
        # END FAULT
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        schedule.step()
        # FAULT reductions
        if options.fault == "reductions":
            ious = class_ious(logits, classes, round(options.strength))
            if rank == 0 and (step + 1) % LOG_EVERY == 0:
                print(f"step {step + 1}: IoU {' '.join(f'{iou:.2f}' for iou in ious.tolist())}")
        # END FAULT
        seen += confusion(logits, classes)
        if (step + 1) % LOG_EVERY == 0:
            dist.all_reduce(seen)
            if rank == 0:
                print(f"step {step + 1}: loss {loss.item():.3f}, mean IoU {mean_iou(seen):.3f}")
            seen.zero_()
    leave()


if __name__ == "__main__":
    main()
