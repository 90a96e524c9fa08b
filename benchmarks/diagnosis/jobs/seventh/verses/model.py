"""Stages of a GPT that writes verses."""

import torch
import torch.nn.functional as F
from torch import nn

WIDTH = 128
HEADS = 4
WORDS = 256
LENGTH = 64


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.before_attention, self.before_mlp = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, inputs):
        heads = self.qkv(self.before_attention(inputs)).unflatten(-1, (3 * HEADS, -1)).transpose(1, 2)
        mixed = F.scaled_dot_product_attention(*heads.chunk(3, dim=1), is_causal=True)
        inputs = inputs + self.out(mixed.transpose(1, 2).flatten(2))
        return inputs + self.mlp(self.before_mlp(inputs))


class Embedding(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)

    def forward(self, tokens):
        return self.words(tokens) + self.places(torch.arange(tokens.shape[1]))


def stages(layers):
    """The module of each stage, with as many layers as are given for it."""
    made = [[Block() for _ in range(count)] for count in layers]
    made[0].insert(0, Embedding())
    made[-1] += [nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS)]
    return [nn.Sequential(*some) for some in made]
