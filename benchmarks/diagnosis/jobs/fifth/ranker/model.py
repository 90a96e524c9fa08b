"""Click-through rate from categories and a history of items: embeddings, attention over the history, an MLP."""

import torch
from torch import nn

FIELDS, VOCABULARY, ITEMS, WIDTH = 12, 1500, 4000, 24


class Ranker(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fields = nn.ModuleList(nn.EmbeddingBag(VOCABULARY, WIDTH, mode="mean") for _ in range(FIELDS))
        self.items = nn.Embedding(ITEMS, WIDTH, padding_idx=0)
        self.judge = nn.Sequential(nn.Linear(3 * WIDTH, 48), nn.GELU(), nn.Linear(48, 1))
        inside = FIELDS * WIDTH + 2 * WIDTH + 13
        self.top = nn.Sequential(
            nn.Linear(inside, 384),
            nn.ReLU(),
            nn.Linear(384, 192),
            nn.ReLU(),
            nn.Linear(192, 64),
            nn.ReLU(),
            nn.Linear(64, 1),
        )

    def forward(self, batch: dict[str, torch.Tensor]) -> torch.Tensor:
        fields = [bag(batch["ids"][n], batch["offsets"][n]) for n, bag in enumerate(self.fields)]
        target = self.items(batch["target"])
        history = self.items(batch["history"])
        beside = target[:, None, :].expand_as(history)
        weight = self.judge(torch.cat([history, beside, history * beside], 2)).squeeze(2)
        weight = weight.masked_fill(batch["history"] == 0, -1e4).softmax(1)
        interest = torch.einsum("bl,blw->bw", weight, history)
        return self.top(torch.cat([*fields, target, interest, batch["numbers"]], 1)).squeeze(1)
