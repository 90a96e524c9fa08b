"""A transformer over residues, whose attention is biased by what is known of each pair of them."""

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.diagnosis.jobs.tenth.protein.data import MASK, RESIDUES

WIDTH = 128
PAIR_WIDTH = 24
HEADS = 4
BLOCKS = 3
FARTHEST = 16
CENTERS = 16


class Pairs(nn.Module):
    """Features of pairs of residues: how far apart they are in the chain, and in space."""

    def __init__(self) -> None:
        super().__init__()
        self.offsets = nn.Embedding(2 * FARTHEST + 1, PAIR_WIDTH)
        self.distances = nn.Linear(CENTERS, PAIR_WIDTH)
        self.mix = nn.Sequential(nn.LayerNorm(PAIR_WIDTH), nn.Linear(PAIR_WIDTH, PAIR_WIDTH), nn.ReLU())
        self.register_buffer("centers", torch.linspace(2.0, 22.0, CENTERS))

    def forward(self, coordinates: torch.Tensor) -> torch.Tensor:
        place = torch.arange(coordinates.shape[1])
        offset = (place[:, None] - place).clamp(-FARTHEST, FARTHEST) + FARTHEST
        distance = torch.cdist(coordinates, coordinates)
        near = torch.exp(-(((distance[..., None] - self.centers) / 1.5) ** 2))
        return self.mix(self.offsets(offset) + self.distances(near))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.bias = nn.Linear(PAIR_WIDTH, HEADS)
        self.out = nn.Linear(WIDTH, WIDTH)
        self.feed = nn.Sequential(
            nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x: torch.Tensor, pairs: torch.Tensor) -> torch.Tensor:
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v, attn_mask=self.bias(pairs).permute(0, 3, 1, 2))
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + self.feed(x)


class Denoiser(nn.Module):
    """Predicts masked residues, and coordinates without their noise."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(MASK + 1, WIDTH)
        self.place = nn.Linear(3, WIDTH)
        self.pairs = Pairs()
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))
        self.norm = nn.LayerNorm(WIDTH)
        self.residue = nn.Linear(WIDTH, RESIDUES)
        self.shift = nn.Linear(WIDTH, 3)
        self.refreshed = 0

    def forward(
        self, seen: torch.Tensor, masked: torch.Tensor, noisy: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        x = self.embed(seen) + self.place(noisy / 10)
        pairs = self.pairs(noisy)
        for number, block in enumerate(self.blocks):
            # FAULT pairs
            if 0 < number <= self.refreshed:
                pairs = self.pairs(noisy)
            # END FAULT
            x = block(x, pairs)
        x = self.norm(x)
        return self.residue(x[masked]), noisy + self.shift(x)
