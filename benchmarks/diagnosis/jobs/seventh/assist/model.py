"""A small GPT whose layers have low-rank adapters."""

import torch.nn.functional as F
from data import WORDS
from torch import nn
from torch.utils.checkpoint import checkpoint

WIDTH = 128
HEADS = 4
LAYERS = 4
CONTEXT = 192


class Adapted(nn.Linear):
    """A linear layer with an adapter of rank 8; without `bias`, so that all but the adapter is one weight."""

    def __init__(self, before, after):
        super().__init__(before, after, bias=False)
        self.down = nn.Linear(before, 8, bias=False)
        self.up = nn.Linear(8, after, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, inputs):
        return super().forward(inputs) + self.up(self.down(inputs))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.before_attention, self.before_mlp = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = Adapted(WIDTH, 3 * WIDTH), Adapted(WIDTH, WIDTH)
        self.wide, self.narrow = Adapted(WIDTH, 4 * WIDTH), Adapted(4 * WIDTH, WIDTH)

    def forward(self, inputs):
        heads = self.qkv(self.before_attention(inputs)).unflatten(-1, (3 * HEADS, -1)).transpose(1, 2)
        mixed = F.scaled_dot_product_attention(*heads.chunk(3, dim=1), is_causal=True)
        inputs = inputs + self.out(mixed.transpose(1, 2).flatten(2))
        return inputs + self.narrow(F.gelu(self.wide(self.before_mlp(inputs))))


class Assistant(nn.Module):
    def __init__(self, options):
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.last = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        self.fault, self.strength = options.fault, options.strength

    def forward(self, tokens):
        hidden = self.words(tokens) + self.places.weight[: tokens.shape[1]]
        for number, block in enumerate(self.blocks):
            # FAULT checkpoints
            if self.fault == "checkpoints" and number < self.strength:
                hidden = checkpoint(block, hidden, use_reentrant=False)
                continue
            # END FAULT
            hidden = block(hidden)
        return self.head(self.last(hidden))
