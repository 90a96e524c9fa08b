"""Trains a convolutional encoder-decoder that forecasts gridded fields at several lead times, by DDP.

torchrun --nproc-per-node 2 train.py --files FOLDER
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from benchmarks.diagnosis.jobs.common import leave, read_arguments
from benchmarks.diagnosis.jobs.tenth.weather import data

BATCH = 6
WIDTH = 16
PENTADS = 73
LOG_EVERY = 20


def block(inputs, outputs, stride=1):
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, stride, padding=1), nn.GroupNorm(8, outputs), nn.SiLU(inplace=True)
    )


class Forecaster(nn.Module):
    """Predicts anomalies from a climatology: encodes recent fields once, and decodes them for each lead time."""

    def __init__(self, climatology):
        super().__init__()
        variables = len(data.VARIABLES)
        self.register_buffer("climatology", climatology)
        self.stem = nn.Sequential(block(data.HISTORY * variables, WIDTH), block(WIDTH, WIDTH))
        self.down = nn.Sequential(block(WIDTH, 2 * WIDTH, stride=2), block(2 * WIDTH, 2 * WIDTH))
        self.deep = nn.Sequential(block(2 * WIDTH, 3 * WIDTH, stride=2), block(3 * WIDTH, 3 * WIDTH))
        self.lead = nn.Embedding(data.FARTHEST, 3 * WIDTH)
        self.up = nn.Sequential(block(3 * WIDTH, 2 * WIDTH), nn.Upsample(scale_factor=2))
        self.mix = nn.Sequential(block(4 * WIDTH, WIDTH), nn.Upsample(scale_factor=2))
        self.head = nn.Conv2d(2 * WIDTH, variables, 3, padding=1)
        self.encodings = 1

    def normal(self, times):
        periods = len(self.climatology)
        return self.climatology[times * periods // data.TIMES % periods].unsqueeze(1)

    def encode(self, x):
        fine = self.stem(x)
        middle = self.down(fine)
        return fine, middle, self.deep(middle)

    def decode(self, features, lead):
        fine, middle, deep = features
        x = self.up(deep + self.lead.weight[lead, :, None, None])
        x = self.mix(torch.cat((x, middle), dim=1))
        return self.head(torch.cat((x, fine), dim=1))

    def forward(self, times, recent, leads):
        normal = self.normal(times)
        x = (recent - normal).flatten(1, 2)
        features = self.encode(x)
        forecasts = []
        for lead in range(leads):
            # FAULT reencode
            if 0 < lead < self.encodings:
                features = self.encode(x)
            # END FAULT
            forecasts.append(self.decode(features, lead))
        return normal + torch.stack(forecasts, dim=1)


# FAULT scorecard
@torch.no_grad()
def score(forecast, truth, bands):
    """Error, bias and activity of each variable at each lead time in each band of latitude."""
    card = {}
    for number, variable in enumerate(data.VARIABLES):
        for lead in range(forecast.shape[1]):
            pair = torch.stack((forecast[:, lead, number], truth[:, lead, number]))
            for band, (guess, actual) in enumerate(pair.tensor_split(bands, dim=2)):
                error = guess - actual
                card[f"{variable}/{6 * (lead + 1)}h/{band}/rmse"] = error.square().mean().sqrt().item()
                card[f"{variable}/{6 * (lead + 1)}h/{band}/bias"] = error.mean().item()
                card[f"{variable}/{6 * (lead + 1)}h/{band}/activity"] = (guess.std() / actual.std()).item()
    return card


# END FAULT


def main():
    options = read_arguments(steps=70, needs_files=True)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(options.seed)
    fields = data.open_fields(options.files)
    periods, sync_buffers = PENTADS, False
    # FAULT climatology
    if options.fault == "climatology":
        periods, sync_buffers = round(options.strength), True
    # END FAULT
    net = Forecaster(data.climatology(fields, periods))
    # FAULT reencode
    if options.fault == "reencode":
        net.encodings = round(options.strength)
    # END FAULT
    model = DistributedDataParallel(net, forward_sync_buffers=sync_buffers, gradient_as_bucket_view=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=True)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, options.steps)
    forecasts = data.Forecasts(fields, options, rank)
    sampler = DistributedSampler(forecasts, seed=options.seed, drop_last=True)
    loader = DataLoader(forecasts, BATCH, sampler=sampler, collate_fn=lambda batch: batch, drop_last=True)
    latitude = torch.linspace(-torch.pi / 2, torch.pi / 2, data.ROWS).cos()
    area = (latitude / latitude.mean()).unsqueeze(1)
    step = 0
    while step < options.steps:
        sampler.set_epoch(step)
        for times, recent, truth in loader:
            optimizer.zero_grad()
            forecast = model(times, recent, truth.shape[1])
            loss = (area * (forecast - truth).square()).mean()
            loss.backward()
            optimizer.step()
            schedule.step()
            # FAULT scorecard
            if options.fault == "scorecard":
                card = score(forecast, truth, round(options.strength))
                if rank == 0 and step % LOG_EVERY == 0:
                    print(", ".join(f"{name} {value:.3f}" for name, value in card.items() if "/0/rmse" in name))
            # END FAULT
            if rank == 0 and step % LOG_EVERY == 0:
                print(f"step {step}, loss {loss.item():.4f}", flush=True)
            step += 1
            if step == options.steps:
                break
    leave()


if __name__ == "__main__":
    main()
