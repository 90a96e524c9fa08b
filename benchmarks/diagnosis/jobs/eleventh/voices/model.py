"""Log-mel spectrograms and a small residual network with attentive pooling."""

import torch
import torch.nn.functional as F
from torch import nn

WINDOW = 256
HOP = 80
MELS = 40


def mel_bank(rate=8000):
    """Triangular filters, [frequency, mel]."""
    top = 2595 * torch.log10(torch.tensor(1 + rate / 2 / 700))
    centers = 700 * (10 ** (torch.linspace(0, 1, MELS + 2) * top / 2595) - 1)
    frequencies = torch.linspace(0, rate / 2, WINDOW // 2 + 1)[:, None]
    rising = (frequencies - centers[:-2]) / (centers[1:-1] - centers[:-2])
    falling = (centers[2:] - frequencies) / (centers[2:] - centers[1:-1])
    return torch.minimum(rising, falling).clamp(min=0)


class LogMel(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("window", torch.hann_window(WINDOW), persistent=False)
        self.register_buffer("bank", mel_bank(), persistent=False)

    def forward(self, waves):
        spectrum = torch.stft(waves, WINDOW, HOP, window=self.window, return_complex=True)
        power = spectrum.abs().square().transpose(1, 2)
        mels = torch.log(power @ self.bank + 1e-5).transpose(1, 2)
        return mels - mels.mean(dim=2, keepdim=True)


class Block(nn.Module):
    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.first = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm = nn.GroupNorm(4, outputs)
        self.second = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.skip = nn.Conv2d(inputs, outputs, 1, stride, bias=False)

    def forward(self, x):
        x = x.to(self.skip.weight.dtype)
        return F.relu(self.skip(x) + self.second(F.relu(self.norm(self.first(x)))))


class AttentivePooling(nn.Module):
    """Weighted means and deviations over time."""

    def __init__(self, channels, hidden):
        super().__init__()
        self.score = nn.Sequential(nn.Conv1d(channels, hidden, 1), nn.Tanh(), nn.Conv1d(hidden, channels, 1))

    def forward(self, x):
        weights = self.score(x).softmax(dim=2)
        mean = (weights * x).sum(dim=2)
        variance = (weights * x.square()).sum(dim=2) - mean.square()
        return torch.cat((mean, variance.clamp(min=1e-6).sqrt()), dim=1)


class Encoder(nn.Module):
    def __init__(self, width=16, size=128):
        super().__init__()
        self.features = LogMel()
        self.blocks = nn.Sequential(
            nn.Conv2d(1, width, 3, 2, 1),
            Block(width, width, 1),
            Block(width, 2 * width, 2),
            Block(2 * width, 4 * width, 2),
        )
        channels = 4 * width * MELS // 8
        self.pooling = AttentivePooling(channels, 128)
        self.embed = nn.Linear(2 * channels, size)

    def forward(self, waves):
        x = self.blocks(self.features(waves)[:, None]).flatten(1, 2)
        return F.normalize(self.embed(self.pooling(x)).float(), dim=1)
