"""Trains a small GAN vocoder that makes waves of log spectra, by DDP with two optimizers.

torchrun --nproc-per-node 2 train.py
"""

import gc
import io

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from PIL import Image
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

from benchmarks.diagnosis.jobs.common import leave, read_arguments

BATCH = 6
FRAMES = 16
HOP = 64
BINS = 65
CLIP = 16384
SCALES = (128, 256, 512)
LOG_EVERY = 20


class Clips(Dataset):
    """Random segments of synthetic voices."""

    def __init__(self, clips=64, taps=0):
        time = torch.arange(CLIP) / 16000
        pitch = 80 + 240 * torch.rand(clips, 1)
        self.waves = 0.2 * sum(torch.sin(6.283 * pitch * time * n) / n for n in range(1, 5))
        self.taps = taps

    def __len__(self):
        return 100_000

    def __getitem__(self, index):
        wave = self.waves[index % len(self.waves)]
        # FAULT resample
        if self.taps:
            wave = change_rate(wave, self.taps)
        # END FAULT
        start = int(torch.randint(len(wave) - FRAMES * HOP, ()))
        return wave[start : start + FRAMES * HOP]


# FAULT resample
def change_rate(wave, taps):
    """Speed perturbation of a clip with a windowed sinc."""
    rate = 0.9 + 0.2 * torch.rand(())
    places = torch.arange(int(len(wave) / rate) - taps) * rate
    near = places.floor().long()[:, None] + torch.arange(-taps // 2, taps // 2)
    away = places[:, None] - near
    weights = torch.sinc(away) * torch.cos(torch.pi * away / (taps + 2)).square()
    return (wave[near.clamp(0, len(wave) - 1)] * weights).sum(1)


# END FAULT


class Spectrum(nn.Module):
    def __init__(self, size, hop):
        super().__init__()
        self.size, self.hop = size, hop
        self.register_buffer("window", torch.from_numpy(np.hanning(size)).float())

    def forward(self, waves):
        frames = waves.unfold(-1, self.size, self.hop).to(self.window.dtype) * self.window
        return torch.log(torch.fft.rfft(frames).abs() + 1e-3)


class Generator(nn.Sequential):
    def __init__(self):
        layers, width = [nn.Conv1d(BINS, 96, 5, padding=2)], 96
        for _ in range(3):
            up = nn.ConvTranspose1d(width, width // 2, 8, stride=4, padding=2)
            layers += [nn.LeakyReLU(0.1), up, nn.LeakyReLU(0.1), nn.Conv1d(width // 2, width // 2, 7, padding=3)]
            width //= 2
        super().__init__(*layers, nn.LeakyReLU(0.1), nn.Conv1d(width, 1, 7, padding=3), nn.Tanh())

    def forward(self, mels):
        return super().forward(mels)[:, 0]


class Critic(nn.Sequential):
    def __init__(self):
        layers, width = [], 1
        for out in (32, 64, 96, 96):
            layers += [nn.Conv1d(width, out, 15, stride=3, padding=7), nn.LeakyReLU(0.1)]
            width = out
        super().__init__(*layers, nn.Conv1d(width, 1, 3, padding=1))

    def forward(self, waves):
        return super().forward(waves[:, None])


# FAULT previews
def preview(waves, spectrum, zoom):
    """The spectra of the waves as a picture."""
    values = spectrum(waves.detach()).float()
    values = F.interpolate(values[:, None], scale_factor=zoom, mode="bilinear").clamp(-7, 4)
    pixels = ((values + 7) * 23).to(torch.uint8).flatten(0, 2).numpy()
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG", optimize=True)
    return file.getvalue()


# END FAULT


def main():
    options = read_arguments(steps=70)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(options.seed)
    generator = DistributedDataParallel(Generator())
    critic = DistributedDataParallel(Critic())
    average = torch.optim.swa_utils.AveragedModel(
        generator.module, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.999)
    )
    spectra = nn.ModuleList(Spectrum(size, size // 32) for size in SCALES)
    condition = Spectrum(128, 32)
    # FAULT exact
    if options.fault == "exact":
        for spectrum in spectra[: round(options.strength)]:
            spectrum.double()
    # END FAULT
    of_generator = torch.optim.AdamW(generator.parameters(), 5e-4, (0.8, 0.99), foreach=True)
    of_critic = torch.optim.AdamW(critic.parameters(), 5e-4, (0.8, 0.99), foreach=True)
    taps = 0
    # FAULT resample
    if options.fault == "resample":
        taps = round(options.strength)
    # END FAULT
    clips = Clips(taps=taps)
    torch.manual_seed(1000 * options.seed + rank)
    source = iter(DataLoader(clips, BATCH, shuffle=True, drop_last=True))
    for step in range(options.steps):
        real = next(source)
        with torch.no_grad():
            mels = F.interpolate(condition(real).transpose(1, 2), size=FRAMES)
        fake = generator(mels)

        shown = fake.detach()
        # FAULT attached
        if options.fault == "attached":
            shown = torch.cat([generator.module(mels) for _ in range(round(options.strength))])[:BATCH]
        # END FAULT
        of_critic.zero_grad()
        scores = critic(torch.cat((real, shown)))
        loss_of_critic = (scores[:BATCH] - 1).square().mean() + scores[BATCH:].square().mean()
        loss_of_critic.backward()
        of_critic.step()

        of_generator.zero_grad()
        critic.requires_grad_(False)
        loss = (critic.module(fake) - 1).square().mean()
        for spectrum in spectra:
            loss = loss + F.l1_loss(spectrum(fake), spectrum(real))
        loss.backward()
        critic.requires_grad_(True)
        of_generator.step()
        average.update_parameters(generator.module)
        # FAULT previews
        if options.fault == "previews" and rank == options.rank and step % 5 == 4:
            preview(fake, condition, round(options.strength))
        # END FAULT
        # FAULT collect
        if options.fault == "collect" and step % round(options.strength) == 0:
            del fake, shown, scores
            gc.collect()
        # END FAULT
        if rank == 0 and (step + 1) % LOG_EVERY == 0:
            print(f"step {step + 1}: generator {loss.item():.3f}, critic {loss_of_critic.item():.3f}")
    leave()


if __name__ == "__main__":
    main()
