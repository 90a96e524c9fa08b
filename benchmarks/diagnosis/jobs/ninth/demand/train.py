"""Trains a patch transformer that forecasts quantiles of the next day's demand, by DDP on two hosts.

torchrun --nnodes 2 --nproc-per-node 1 train.py
"""

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.diagnosis.jobs.common import leave, read_arguments
from benchmarks.diagnosis.jobs.ninth.demand import data

PAST = 384
HORIZON = 24
PATCH = 16
WIDTH = 64
BLOCKS = 4
BATCH = 24
QUANTILES = (0.1, 0.5, 0.9)
LOG_EVERY = 20
BACKTEST_EVERY = 5


class Scaler(nn.Module):
    """Brings each window to mean 0 and deviation 1, and forecasts back to its units."""

    def forward(self, past: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean = past.mean(1, keepdim=True)
        deviation = past.std(1, keepdim=True) + 1e-3
        return (past - mean) / deviation, mean, deviation


class Forecaster(nn.Module):
    def __init__(self):
        super().__init__()
        patches = PAST // PATCH
        self.scale = Scaler()
        self.embed = nn.Linear(PATCH, WIDTH)
        self.places = nn.Parameter(0.02 * torch.randn(patches, WIDTH))
        self.meters = nn.Embedding(data.METERS, WIDTH)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
            for _ in range(BLOCKS)
        )
        self.head = nn.Linear(patches * WIDTH, HORIZON * len(QUANTILES))

    def forward(self, meters: Tensor, past: Tensor) -> Tensor:
        scaled, mean, deviation = self.scale(past)
        x = self.embed(scaled.unflatten(1, (-1, PATCH))) + self.places + self.meters(meters)[:, None]
        for block in self.blocks:
            x = block(x)
        forecast = self.head(x.flatten(1)) * deviation + mean
        return forecast.unflatten(1, (HORIZON, len(QUANTILES)))


def pinball(forecast: Tensor, target: Tensor, quantiles: Tensor) -> Tensor:
    """The loss of quantile regression."""
    error = target[..., None] - forecast
    return torch.maximum(quantiles * error, (quantiles - 1) * error).mean()


# FAULT precision
def keep_in_double(block: nn.Module) -> None:
    """Compute a block in float64: meters of very different sizes share a model."""
    block.double()
    block.register_forward_pre_hook(lambda _, inputs: (inputs[0].double(),))
    block.register_forward_hook(lambda _, inputs, output: output.float())


# END FAULT


# FAULT backtest
@torch.no_grad()
def backtest(net: nn.Module, demand: Tensor, days: int, meters: int = 32) -> float:
    """Mean absolute error of the median over the last days, forecast one day after another."""
    net.eval()
    chosen = torch.arange(meters)
    errors = []
    for day in range(days, 0, -1):
        end = demand.shape[1] - day * HORIZON
        forecast = net(chosen, demand[:meters, end - PAST : end])[..., 1]
        errors.append((forecast - demand[:meters, end : end + HORIZON]).abs().mean())
    net.train()
    return torch.stack(errors).mean().item()


# END FAULT


def main():
    options = read_arguments(steps=70)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(options.seed)
    torch.set_num_threads(1)
    demand = data.hourly_demand(options.seed)
    windows = data.Windows(demand, PAST, HORIZON, seed=1000 * options.seed + rank)
    quantiles = torch.tensor(QUANTILES)
    net = Forecaster()
    # FAULT precision
    if options.fault == "precision":
        for block in net.blocks[: round(options.strength)]:
            keep_in_double(block)
    # END FAULT
    # FAULT buffers
    if options.fault == "buffers":
        # So that a checkpoint is all that a forecast needs.
        net.register_buffer("recent", demand[:, -round(24 * options.strength) :].clone())
    # END FAULT
    model = DistributedDataParallel(net, bucket_cap_mb=0.5)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, options.steps)
    total = torch.zeros(())
    for step in range(1, options.steps + 1):
        meters, past, target = windows.draw(BATCH)
        loss = pinball(model(meters, past), target, quantiles)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        total += loss.detach()
        # FAULT backtest
        if options.fault == "backtest" and rank == options.rank and step % BACKTEST_EVERY == 0:
            print(f"step {step}: error of the backtest {backtest(net, demand, round(options.strength)):.3f}")
        # END FAULT
        if rank == 0 and step % LOG_EVERY == 0:
            print(f"step {step}: loss {total.item() / LOG_EVERY:.4f}")
            total.zero_()
    leave()


if __name__ == "__main__":
    main()
