"""From a clip to a unit vector: spectrogram, energy normalisation, convolutions."""

import torch
import torch.nn.functional as F
from torch import nn

BANDS = 48
FRAME = 256


class Energies(nn.Module):
    """Power in bands of frequencies, of shape (clips, BANDS, frames)."""

    def __init__(self):
        super().__init__()
        centres = torch.linspace(0, FRAME // 2, BANDS).unsqueeze(1)
        self.register_buffer("window", torch.hann_window(FRAME))
        self.register_buffer("bands", (1 - (torch.arange(FRAME // 2 + 1) - centres).abs() / 4).clamp(min=0))

    def forward(self, clips):
        spectrum = torch.stft(clips, FRAME, FRAME // 2, window=self.window, return_complex=True)
        return self.bands @ (spectrum.real**2 + spectrum.imag**2)


class Normalise(nn.Module):
    """Energies relative to their running means, with learnt exponents (per-channel energy normalisation)."""

    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.full((BANDS, 1), -0.1))
        self.root = nn.Parameter(torch.full((BANDS, 1), -0.7))

    def forward(self, energies):
        energies = energies.to(self.gain.dtype)
        frames = torch.arange(energies.shape[-1], dtype=self.gain.dtype)
        decay = 0.9 ** (frames - frames.unsqueeze(1)).clamp(min=0) * (frames >= frames.unsqueeze(1))
        mean = 0.1 * energies @ decay
        root = self.root.exp()
        return (energies * (mean + 1e-6) ** -self.gain.exp() + 2) ** root - 2**root


class Encoder(nn.Module):
    def __init__(self, options):
        super().__init__()
        self.energies = Energies()
        self.normalise = Normalise()
        # FAULT doubles
        if options.fault == "doubles":
            self.normalise = self.normalise.double()  # powers lose digits otherwise
        # END FAULT
        layers = []
        for before, after in ((1, 8), (8, 16), (16, 32)):
            layers += [nn.Conv2d(before, after, 3, stride=2, padding=1), nn.GroupNorm(4, after), nn.ReLU()]
            layers += [nn.Conv2d(after, after, 3, padding=1), nn.GroupNorm(4, after), nn.ReLU()]
        self.layers = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 64))
        self.fault, self.strength = options.fault, options.strength

    def forward(self, clips):
        # FAULT doubles
        if self.fault == "doubles":
            normalised = self.normalise(self.energies(clips)).float()
            return F.normalize(self.layers(normalised.unsqueeze(1)), dim=1)
        # END FAULT
        normalised = self.normalise(self.energies(clips))
        return F.normalize(self.layers(normalised.unsqueeze(1)), dim=1)
