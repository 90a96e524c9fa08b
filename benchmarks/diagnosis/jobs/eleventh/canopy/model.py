"""A masked autoencoder of tiles with several bands."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

PATCH = 8
KEPT = 0.4
WIDTH, DEPTH = 128, 6
DECODER_WIDTH, DECODER_DEPTH = 64, 2


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x):
        q, k, v = self.qkv(self.before_attention(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.mlp(self.before_mlp(x))


def patchify(tiles):
    """Patches of all bands: rows, places, values."""
    return F.pixel_unshuffle(tiles, PATCH).flatten(2).transpose(1, 2)


class MaskedAutoencoder(nn.Module):
    def __init__(self, bands, size):
        super().__init__()
        self.places_count = (size // PATCH) ** 2
        values = bands * PATCH**2
        self.embed = nn.Linear(values, WIDTH)
        self.places = nn.Parameter(0.02 * torch.randn(self.places_count, WIDTH))
        self.encoder = nn.ModuleList(Block(WIDTH, 4) for _ in range(DEPTH))
        self.encoder_norm = nn.LayerNorm(WIDTH)
        self.to_decoder = nn.Linear(WIDTH, DECODER_WIDTH)
        self.mask_token = nn.Parameter(0.02 * torch.randn(DECODER_WIDTH))
        self.decoder_places = nn.Parameter(0.02 * torch.randn(self.places_count, DECODER_WIDTH))
        self.decoder = nn.ModuleList(Block(DECODER_WIDTH, 2) for _ in range(DECODER_DEPTH))
        self.head = nn.Linear(DECODER_WIDTH, values)
        self.recomputed = 0

    def forward(self, tiles):
        """The mean squared error of the hidden patches, each of which is normalised."""
        patches = patchify(tiles)
        order = torch.rand(patches.shape[:2]).argsort(1)
        kept = int(KEPT * self.places_count)
        seen = order[:, :kept, None]
        x = torch.take_along_dim(self.embed(patches) + self.places, seen, 1)
        for number, block in enumerate(self.encoder):
            # FAULT recompute
            if number < self.recomputed:
                x = checkpoint(block, x, use_reentrant=False)
                continue
            # END FAULT
            x = block(x)
        x = self.to_decoder(self.encoder_norm(x))
        hidden = self.mask_token.expand(len(x), self.places_count - kept, -1)
        x = torch.take_along_dim(torch.cat((x, hidden), 1), order.argsort(1)[:, :, None], 1) + self.decoder_places
        for block in self.decoder:
            x = block(x)
        x, target = (torch.take_along_dim(values, order[:, kept:, None], 1) for values in (x, patches))
        target = F.layer_norm(target, target.shape[-1:])
        return F.mse_loss(self.head(x), target)
