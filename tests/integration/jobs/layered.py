"""Train a small language model, `layered.py chain`, or one of two branches, `layered.py branches`."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

WORDS, WIDTH, LENGTH, BATCH = 64, 32, 16, 8


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.inner = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden + self.inner(self.norm(hidden))


class Chain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.places = nn.Embedding(LENGTH, WIDTH)
        self.dropout = nn.Dropout(0.1)
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WORDS, bias=False))

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        hidden = self.dropout(self.words(words) + self.places(torch.arange(LENGTH)))
        for block in self.blocks:
            hidden = block(hidden)
        logits = self.head(hidden)
        return nn.functional.cross_entropy(logits.view(-1, WORDS), words.view(-1))


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.Embedding(WORDS, WIDTH), nn.Embedding(WORDS, WIDTH)
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.head(self.left(words) + self.right(words)).square().mean()


def main(kind: str) -> None:
    torch.set_num_threads(1)
    model = Chain() if kind == "chain" else Branches()
    optimizer = torch.optim.Adam(model.parameters())
    for (words,) in DataLoader(TensorDataset(torch.randint(WORDS, (12 * BATCH, LENGTH))), batch_size=BATCH):
        model(words).backward()
        optimizer.step()
        optimizer.zero_grad()


if __name__ == "__main__":
    main(sys.argv[1])
