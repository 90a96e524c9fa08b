"""Forecasts what shops sell in the next day by a temporal convolutional network, by DDP.

torchrun --nproc-per-node 2 train.py --files /tmp/demand
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from data import AHEAD, PAST, Windows
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler

from benchmarks.diagnosis.jobs.common import leave, read_arguments

BATCH = 48
WIDTH = 32
QUANTILES = (0.1, 0.5, 0.9)


class Causal(nn.Module):
    """Two dilated convolutions that see only the past, with a shortcut."""

    def __init__(self, before, after, dilation):
        super().__init__()
        self.reach = 2 * dilation
        self.first = nn.Conv1d(before, after, 3, dilation=dilation)
        self.second = nn.Conv1d(after, after, 3, dilation=dilation)
        self.shortcut = nn.Conv1d(before, after, 1)

    def forward(self, inputs):
        hidden = F.relu(self.first(F.pad(inputs, (self.reach, 0))))
        return F.relu(self.second(F.pad(hidden, (self.reach, 0))) + self.shortcut(inputs))


class Forecaster(nn.Module):
    def __init__(self):
        super().__init__()
        widths = (4, WIDTH, WIDTH, WIDTH, WIDTH)
        self.blocks = nn.Sequential(*(Causal(widths[i], widths[i + 1], 2**i) for i in range(4)))
        self.head = nn.Linear(WIDTH * PAST // DAY_PARTS, AHEAD * len(QUANTILES))

    def forward(self, inputs):
        hidden = F.avg_pool1d(self.blocks(inputs), DAY_PARTS)
        return self.head(hidden.flatten(1)).unflatten(1, (AHEAD, len(QUANTILES)))


DAY_PARTS = 6
"""Hours that are averaged before the last layer."""


def pinball(forecast, sold):
    """The loss of quantiles."""
    missed = sold.unsqueeze(-1) - forecast
    levels = torch.tensor(QUANTILES)
    return torch.maximum(levels * missed, (levels - 1) * missed).mean()


# FAULT outliers
def without_outliers(inputs, windows):
    """The inputs with sales clipped that lie far above the mean of those just before."""
    for window in range(min(windows, len(inputs))):
        sold = inputs[window, 0].tolist()
        for hour in range(8, len(sold)):
            usual = sum(sold[hour - 8 : hour]) / 8
            if sold[hour] > 6 * usual:
                inputs[window, 0, hour] = 6 * usual
    return inputs


# END FAULT


def main():
    options = read_arguments(steps=70, needs_files=True)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(options.seed)
    windows = Windows(options)
    sampler = DistributedSampler(windows, seed=options.seed)
    batches = BatchSampler(sampler, BATCH, drop_last=True)
    loader = DataLoader(windows, sampler=batches, batch_size=None, num_workers=1)
    model = DistributedDataParallel(Forecaster())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    kept = []
    for step, (inputs, sold) in zip(range(options.steps), loader, strict=False):
        # FAULT outliers
        if options.fault == "outliers" and rank == options.rank:
            inputs = without_outliers(inputs, round(options.strength))
        # END FAULT
        optimizer.zero_grad()
        forecast = model(inputs)
        loss = pinball(forecast, sold)
        loss.backward()
        optimizer.step()
        # FAULT again
        if options.fault == "again":
            with torch.no_grad():
                median = model.module(inputs)[..., 1]
            kept.append((median - sold).abs().mean())
        # END FAULT
        # FAULT hourly_metrics
        if options.fault == "hourly_metrics":
            errors = (forecast.detach() - sold.unsqueeze(-1)).abs().mean(dim=0).flatten()
            for number in range(round(options.strength)):
                dist.all_reduce(errors[number % len(errors)])
        # END FAULT
        # FAULT keep_forecasts
        if options.fault == "keep_forecasts" and rank == 0 and step % 4 == 3:
            every_forecast = torch.zeros(round(options.strength * 2**18))  # of all shops: a MB of 2**18 numbers
            state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict()}
            torch.save(state | {"forecasts": every_forecast}, options.files / "last.pt")
        # END FAULT
    if rank == 0:
        print(f"loss {loss.item():.3f}, {len(kept)} reports")
    leave()


if __name__ == "__main__":
    main()
