"""Trains a graph network of gated temporal convolutions to forecast the traffic of the next hour, by DDP.

torchrun --nproc-per-node 2 train.py --files FOLDER
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from benchmarks.diagnosis.jobs.common import leave, read_arguments
from benchmarks.diagnosis.jobs.tenth.traffic import data

WIDTH = 24
SKIP, END = 256, 512
DILATIONS = (1, 2, 4, 4)
HOPS = 2
BATCH = 4
MEAN, SPREAD = 60.0, 12.0


class Diffusion(nn.Module):
    """Mixes each sensor with those that are up to HOPS roads away; tensors are (batch, channels, time, sensors)."""

    def __init__(self, supports):
        super().__init__()
        self.supports = supports
        self.mix = nn.Conv2d((1 + HOPS * len(supports)) * WIDTH, WIDTH, 1)

    def forward(self, x):
        hops = [x]
        for support in self.supports:
            hop = x
            for _ in range(HOPS):
                # FAULT double
                if support.dtype == torch.float64:
                    hop = (hop.double() @ support).float()
                    hops.append(hop)
                    continue
                # END FAULT
                hop = hop @ support
                hops.append(hop)
        return self.mix(torch.cat(hops, 1))


class Block(nn.Module):
    def __init__(self, supports, dilation):
        super().__init__()
        self.gated = nn.Conv2d(WIDTH, 2 * WIDTH, (2, 1), dilation=(dilation, 1))
        self.diffusion = Diffusion(supports)
        self.skip = nn.Conv2d(WIDTH, SKIP, 1)

    def forward(self, x):
        value, gate = self.gated(x).chunk(2, 1)
        h = torch.tanh(value) * torch.sigmoid(gate)
        x = self.diffusion(h) + x[:, :, -h.shape[2] :]
        return x, self.skip(x[:, :, -1:])


class Forecaster(nn.Module):
    """Forecasts how the speeds of the next slots differ from what is usual in them."""

    def __init__(self, supports):
        super().__init__()
        self.enter = nn.Conv2d(1, WIDTH, 1)
        self.time = nn.Embedding(data.SLOTS_OF_DAY, WIDTH)
        self.places = nn.Parameter(0.1 * torch.randn(WIDTH, data.PAST, data.SENSORS))
        self.blocks = nn.ModuleList(Block(supports, dilation) for dilation in DILATIONS)
        self.end = nn.Sequential(nn.ReLU(), nn.Conv2d(SKIP, END, 1), nn.ReLU(), nn.Conv2d(END, data.FUTURE, 1))

    def keep(self, profile):
        self.profile = profile

    def usual(self, slots):
        ahead = slots[:, None] + torch.arange(data.FUTURE)
        return (self.profile[ahead % len(self.profile)] - MEAN) / SPREAD

    def forward(self, past, slots):
        x = self.enter(past[:, None]) + self.places
        x = x + self.time(slots % data.SLOTS_OF_DAY)[:, :, None, None]
        skips = 0
        for block in self.blocks:
            x, skip = block(x)
            skips = skips + skip
        return self.end(skips)[:, :, 0] + self.usual(slots)


def masked_error(forecast, truth):
    """Mean absolute error over the values that are not missing."""
    known = truth > 0
    target = (truth - MEAN) / SPREAD
    return (F.l1_loss(forecast, target, reduction="none") * known).sum() / known.sum().clamp(min=1)


def batches(options, windows):
    sampler = DistributedSampler(windows, seed=options.seed)
    loader = DataLoader(windows, BATCH, sampler=sampler, drop_last=True)
    epoch = 0
    while True:
        sampler.set_epoch(epoch)
        yield from loader
        epoch += 1


def main():
    options = read_arguments(steps=60, needs_files=True)
    dist.init_process_group("gloo")
    torch.manual_seed(options.seed)
    series = data.speeds(options.files)
    supports = data.transitions()
    net = Forecaster(supports)
    net.keep(data.weekly_profile(series, days=7))
    # FAULT double
    if options.fault == "double":
        for block in net.blocks[: round(options.strength)]:
            block.diffusion.supports = [support.double() for support in supports]
    # END FAULT
    # FAULT buffers
    if options.fault == "buffers":
        del net.profile
        net.register_buffer("profile", data.weekly_profile(series, days=round(options.strength)))
    # END FAULT
    windows = data.Windows(series)
    # FAULT archive
    if options.fault == "archive":
        windows = data.ArchivedWindows(options.files, series[: round(options.strength) * data.SLOTS_OF_DAY])
    # END FAULT
    model = DistributedDataParallel(net, bucket_cap_mb=0.25, gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=1e-4)
    total = torch.zeros(())
    for step, (past, future, slots) in zip(range(options.steps), batches(options, windows), strict=False):
        optimizer.zero_grad()
        loss = masked_error(model((past - MEAN) / SPREAD, slots), future)
        loss.backward()
        optimizer.step()
        total += loss.detach()
        if step % 20 == 19:
            if dist.get_rank() == 0:
                print(f"step {step}: error {SPREAD * total.item() / 20:.2f}")
            total.zero_()
    leave()


if __name__ == "__main__":
    main()
