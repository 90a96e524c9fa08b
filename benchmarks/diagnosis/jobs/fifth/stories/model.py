"""A small language model: blocks with causal attention."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

WORDS, WIDTH, HEADS, LAYERS, LENGTH = 1000, 128, 4, 4, 64


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.ask, self.join = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.think = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, hidden: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
        batch, length, _ = hidden.shape
        asked = self.ask(self.before(hidden)).view(batch, length, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        heard = F.scaled_dot_product_attention(*asked, attn_mask=mask, is_causal=mask is None)
        hidden = hidden + self.join(heard.transpose(1, 2).reshape(batch, length, WIDTH))
        return hidden + self.think(self.after(hidden))


class Teller(nn.Module):
    def __init__(self, fault: str, strength: float) -> None:
        super().__init__()
        self.fault, self.strength = fault, round(strength)
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False)

    def forward(self, words: torch.Tensor, story: torch.Tensor) -> torch.Tensor:
        """`story` numbers the stories that are packed into a row."""
        hidden = self.words(words) + self.places(torch.arange(words.shape[1]))
        mask = None
        if self.fault == "drawn_mask":
            mask = drawn_mask(story, self.strength)
        for number, block in enumerate(self.blocks):
            # FAULT thrift
            if self.fault == "thrift" and number < self.strength:
                hidden = checkpoint(block, hidden, mask, use_reentrant=False)
            # END FAULT
            else:
                hidden = block(hidden, mask)
        return self.out(self.norm(hidden))


# FAULT drawn_mask
def drawn_mask(story: torch.Tensor, rows: int) -> torch.Tensor:
    """Who may look at whom: only back, and only within a story. Word for word for the first rows of the batch."""
    batch, length = story.shape
    mask = torch.ones(batch, 1, length, length, dtype=torch.bool).tril()
    stories = story.tolist()
    for row in range(min(rows, batch)):
        allowed = []
        for here in range(length):
            line = []
            for there in range(length):
                line.append(there <= here and stories[row][here] == stories[row][there])
            allowed.append(line)
        mask[row, 0] = torch.tensor(allowed)
    return mask


# END FAULT
