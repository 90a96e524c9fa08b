"""Trains a neural operator that forecasts ocean currents, with the physics of the flow in its loss."""

import random

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader

from benchmarks.diagnosis.jobs.common import read_arguments
from benchmarks.diagnosis.jobs.eleventh.currents.data import CHANNELS, GRID, SNAPSHOTS, Basin, open_basin, write

BATCH = 8
WIDTH = 24
MODES = 12
BLOCKS = 4
TRAINED = 200
VALIDATE_EVERY = 35
LEADS = 4
DIVERGENCE_WEIGHT = 0.1


class Spectral(nn.Module):
    """Multiplies the lowest modes by weights of their own."""

    def __init__(self):
        super().__init__()
        shape = (2, WIDTH, WIDTH, MODES, MODES, 2)
        self.weights = nn.Parameter(torch.randn(shape) / WIDTH)

    def forward(self, x):
        low, high = torch.view_as_complex(self.weights).unbind(0)
        modes = torch.fft.rfft2(x, norm="ortho")
        upper = torch.einsum("bihw,iohw->bohw", modes[:, :, :MODES, :MODES], low)
        lower = torch.einsum("bihw,iohw->bohw", modes[:, :, -MODES:, :MODES], high)
        between = x.shape[-2] - 2 * MODES
        kept = torch.cat([F.pad(upper, (0, 0, 0, between)), lower], dim=2)
        return torch.fft.irfft2(F.pad(kept, (0, modes.shape[-1] - MODES)), s=x.shape[-2:], norm="ortho")


# FAULT exact
class Exact(nn.Module):
    """A module that computes in double precision, for transforms without rounding errors."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner.double()

    def forward(self, x):
        return self.inner(x.double()).float()


# END FAULT


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.spectral = Spectral()
        self.local = nn.Conv2d(WIDTH, WIDTH, 1)

    def forward(self, x):
        return x + F.gelu(self.spectral(x) + self.local(x))


class Operator(nn.Module):
    """A Fourier neural operator that predicts the change of the state."""

    def __init__(self):
        super().__init__()
        self.lift = nn.Conv2d(CHANNELS, WIDTH, 1)
        self.blocks = nn.Sequential(*(Block() for _ in range(BLOCKS)))
        self.project = nn.Sequential(nn.Conv2d(WIDTH, 2 * WIDTH, 1), nn.GELU(), nn.Conv2d(2 * WIDTH, CHANNELS, 1))

    def forward(self, state):
        return state + self.project(self.blocks(self.lift(state)))


def divergence(state, widths):
    """Central differences on a periodic grid whose cells are `widths` wide, by latitude."""
    u, v = state[:, 0], state[:, 1]
    eastward = (u.roll(-1, 2) - u.roll(1, 2)) / (2 * widths[:, None])
    return eastward + (v.roll(-1, 1) - v.roll(1, 1)) / 2


# FAULT bands
def divergence_by_band(state, widths, bands):
    """The same, one band of latitudes after the other."""
    fields = []
    for u, v, _ in state:
        found = []
        for rows in torch.arange(GRID).tensor_split(bands):
            eastward = (u[rows].roll(-1, 1) - u[rows].roll(1, 1)) / (2 * widths[rows, None])
            found.append(eastward + (v[(rows + 1) % GRID] - v[(rows - 1) % GRID]) / 2)
        fields.append(torch.cat(found))
    return torch.stack(fields)


# END FAULT


class Loss:
    """The error of the forecast, and how much water it makes or loses."""

    def __init__(self, options):
        self.options = options
        self.widths = 1 - 0.5 * torch.linspace(0.2, 0.8, GRID) ** 2

    def divergence(self, state):
        # FAULT bands
        if self.options.fault == "bands":
            return divergence_by_band(state, self.widths, round(self.options.strength))
        # END FAULT
        return divergence(state, self.widths)

    def __call__(self, forecast, target):
        made = self.divergence(forecast) - self.divergence(target)
        return F.mse_loss(forecast, target) + DIVERGENCE_WEIGHT * made.square().mean()


@torch.no_grad()
def rollout(model, states, leads):
    """Errors of forecasts that begin with the first of `states` and go on from their own results."""
    state, errors = states[:, 0], []
    for lead in range(1, leads + 1):
        state = model(state)
        errors.append(F.mse_loss(state, states[:, lead]))
    return torch.stack(errors)


# FAULT skill
@torch.no_grad()
def skill(model, state, target):
    """By how much the forecast is better than that nothing changes."""
    return 1 - F.mse_loss(model(state), target) / F.mse_loss(state, target)


@torch.no_grad()
def bias(model, state, target):
    return (model(state) - target).mean(dim=(0, 2, 3))


MEASURES = (skill, bias)


# END FAULT


def held_out(file):
    """Sequences of snapshots after those that are trained on, as (rows, time, …)."""
    basin = Basin(file, range(TRAINED, SNAPSHOTS - 1))
    return torch.stack([state for state, _ in basin]).unfold(0, 16, 8).movedim(-1, 1)


def main():
    options = read_arguments(steps=70, needs_files=True)
    torch.manual_seed(options.seed)
    chance = random.Random(options.seed)
    file = write(options.files, options)
    rows = [chance.randrange(TRAINED) for _ in range(options.steps * BATCH)]
    loader = DataLoader(open_basin(file, rows, options), batch_size=BATCH, num_workers=1, prefetch_factor=4)
    validation = held_out(file)
    model = Operator()
    # FAULT exact
    if options.fault == "exact":
        for block in model.blocks[: round(options.strength)]:
            block.spectral = Exact(block.spectral)
    # END FAULT
    loss_of, scores = Loss(options), []
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=options.steps)
    for step, (state, target) in enumerate(loader, start=1):
        forecast = model(state)
        loss = loss_of(forecast, target)
        optimizer.zero_grad()
        loss.backward()
        # FAULT skill
        if options.fault == "skill":
            scores.append([measure(model, state, target) for measure in MEASURES[: round(options.strength)]])
        # END FAULT
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if step % VALIDATE_EVERY == 0:
            scores.append(rollout(model, validation, LEADS).tolist())
            print(f"step {step}: loss {loss.item():.5f}, after {LEADS} days {scores[-1][-1]:.5f}")
        # FAULT rollouts
        if options.fault == "rollouts" and step % 3 == 0:
            scores.append(rollout(model, validation, round(options.strength)).tolist())
        # END FAULT
    print(f"{options.steps} steps, loss {loss.item():.5f}")


if __name__ == "__main__":
    main()
