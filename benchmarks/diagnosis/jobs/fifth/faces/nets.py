"""A generator of small faces and its critic."""

import torch
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm

NOISE, CHANNELS, SIDE = 48, 24, 32


class Generator(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        c = CHANNELS
        self.start = nn.Linear(NOISE, 4 * c * 16)
        self.grow = nn.Sequential(
            nn.Unflatten(1, (4 * c, 4, 4)),
            nn.BatchNorm2d(4 * c),
            nn.ReLU(),
            nn.ConvTranspose2d(4 * c, 2 * c, 4, 2, 1),
            nn.BatchNorm2d(2 * c),
            nn.ReLU(),
            nn.ConvTranspose2d(2 * c, c, 4, 2, 1),
            nn.BatchNorm2d(c),
            nn.ReLU(),
            nn.ConvTranspose2d(c, 3, 4, 2, 1),
            nn.Tanh(),
        )

    def forward(self, noise: torch.Tensor) -> torch.Tensor:
        return self.grow(self.start(noise))


class Critic(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        c = CHANNELS
        self.look = nn.Sequential(
            spectral_norm(nn.Conv2d(3, c, 4, 2, 1)),
            nn.LeakyReLU(0.2),
            spectral_norm(nn.Conv2d(c, 2 * c, 4, 2, 1)),
            nn.LeakyReLU(0.2),
            spectral_norm(nn.Conv2d(2 * c, 4 * c, 4, 2, 1)),
            nn.LeakyReLU(0.2),
            nn.Flatten(),
            spectral_norm(nn.Linear(4 * c * 16, 1)),
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.look(images).squeeze(1)
