"""Trains a detector on radar points gathered into pillars, by DDP."""

import ctypes
from itertools import pairwise

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from benchmarks.diagnosis.jobs.common import leave, read_arguments
from benchmarks.diagnosis.jobs.tenth.radar.data import BATCH, CELL, CELLS, VALUES, Drives, write_drives

WIDTH = 64


class Points(nn.Module):
    """Features of single points, of their values and of where they lie in their pillar."""

    def __init__(self):
        super().__init__()
        widths = (VALUES + 2, 64, 128, WIDTH)
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(inputs, outputs), nn.LayerNorm(outputs), nn.ReLU(inplace=True))
            for inputs, outputs in pairwise(widths)
        )

    def forward(self, points):
        x = torch.cat([points, points[:, :2].remainder(CELL) - CELL / 2], dim=1)
        for layer in self.layers:
            x = layer(x)
        return x


class Detector(nn.Module):
    """Where in the view from above objects have their centres, and their boxes there."""

    def __init__(self):
        super().__init__()
        self.points = Points()
        self.above = nn.Sequential(
            nn.Conv2d(WIDTH, WIDTH, 3, 2, 1, bias=False),
            nn.BatchNorm2d(WIDTH),
            nn.ReLU(inplace=True),
            nn.Conv2d(WIDTH, WIDTH, 3, 1, 1, bias=False),
            nn.BatchNorm2d(WIDTH),
            nn.ReLU(inplace=True),
        )
        self.up = nn.ConvTranspose2d(WIDTH, 32, 2, 2)
        self.centres, self.sizes = nn.Conv2d(32, 1, 1), nn.Conv2d(32, 4, 1)
        nn.init.constant_(self.centres.bias, -3.0)

    def forward(self, points, frames):
        features = self.points(points)
        column, row = (points[:, :2] / CELL).long().clamp(0, CELLS - 1).unbind(dim=1)
        pillars = (frames * CELLS + row) * CELLS + column
        grid = features.new_zeros(BATCH * CELLS * CELLS, WIDTH)
        grid = grid.scatter_reduce(0, pillars[:, None].expand_as(features), features, "amax")
        x = self.up(self.above(grid.view(BATCH, CELLS, CELLS, WIDTH).permute(0, 3, 1, 2)))
        return self.centres(x).flatten(1), self.sizes(x).flatten(2)


# FAULT precise
class Precise(nn.Sequential):
    """Layers whose sums of many cells must not be rounded."""

    def forward(self, x):
        return super().forward(x.double()).float()


# END FAULT


def cells_of(boxes):
    column, row = (boxes[..., :2] / CELL).long().clamp(0, CELLS - 1).unbind(dim=-1)
    return row * CELLS + column


def heat_of(boxes):
    """A bell around the centre of each box."""
    spread = 1 + 2 * boxes[..., 2:4].amax(dim=-1)
    axis = torch.arange(CELLS) + 0.5
    x, y = (torch.exp(-(((axis - boxes[..., i, None] / CELL) / spread[..., None]) ** 2) / 2) for i in (0, 1))
    return (y[..., :, None] * x[..., None, :]).amax(dim=1).flatten(1)


def loss_of(heat, sizes, boxes, wanted):
    """Focal loss of the centres, and how far the boxes are off at them."""
    probability = heat.sigmoid().clamp(1e-4, 1 - 1e-4)
    cells = cells_of(boxes)
    hit = torch.zeros_like(wanted).scatter_(1, cells, 1.0)
    found = hit * (1 - probability) ** 2 * probability.log()
    missed = (1 - hit) * (1 - wanted) ** 4 * probability**2 * (1 - probability).log()
    boxed = sizes.gather(2, cells[:, None].expand(-1, 4, -1)).transpose(1, 2)
    return -(found + missed).sum() / hit.sum() + F.l1_loss(boxed, boxes[..., 2:])


# FAULT templates
class Templates(nn.Module):
    """Bells of some spreads around all cells, made once."""

    def __init__(self, spreads):
        super().__init__()
        row, column = torch.arange(CELLS**2) // CELLS, torch.arange(CELLS**2) % CELLS
        square = (row[:, None] - row) ** 2 + (column[:, None] - column) ** 2
        bells = [torch.exp(-square / (2 * spread**2)) for spread in spreads]
        self.register_buffer("bells", torch.stack(bells))

    def forward(self, boxes):
        spread = (boxes[..., 2:4].amax(dim=-1) * len(self.bells)).long().clamp_max(len(self.bells) - 1)
        return self.bells[spread, cells_of(boxes)].amax(dim=1)


# END FAULT


def main():
    options = read_arguments(steps=70, needs_files=True)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(options.seed)
    torch.set_num_threads(1)
    if rank == 0:
        write_drives(options.files)
    dist.barrier()
    drives = Drives(options.files, rank, dist.get_world_size(), options)
    net = Detector()
    heats = heat_of
    # FAULT precise
    if options.fault == "precise":
        last = 3 * round(options.strength)
        net.above = nn.Sequential(Precise(*net.above[:last]).double(), *net.above[last:])
    # END FAULT
    # FAULT templates
    if options.fault == "templates":
        net.heats = heats = Templates(torch.linspace(1, 3, round(options.strength)))
    # END FAULT
    model = DistributedDataParallel(net)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    batches = iter(DataLoader(drives, batch_size=None))
    for step in range(options.steps):
        points, frames, boxes = next(batches)
        optimizer.zero_grad()
        heat, sizes = model(points, frames)
        loss = loss_of(heat, sizes, boxes, heats(boxes))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 10.0)
        optimizer.step()
        # FAULT trim
        if options.fault == "trim" and step % round(options.strength) == 0:
            ctypes.CDLL("libc.so.6").malloc_trim(0)
        # END FAULT
        if rank == 0 and step % 20 == 0:
            print(f"step {step}, loss {loss.item():.3f}")
    if rank == 0:
        print(f"{options.steps} steps, loss {loss.item():.3f}")
    leave()


if __name__ == "__main__":
    main()
