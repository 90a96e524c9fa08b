"""Trains a click-through model of hashed features with large embedding tables, on a stream of impressions.

python train.py --files FOLDER
"""

import threading
from collections import Counter
from itertools import combinations, pairwise

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader

from benchmarks.diagnosis.jobs.common import read_arguments
from benchmarks.diagnosis.jobs.tenth.ads import data

WIDTH = 16
CONTEXT_WIDTH = 8
PICTURE, CREATIVE = 256, 32
HIDDEN = 256


def bag(rows):
    table = nn.EmbeddingBag(rows, WIDTH, mode="sum", sparse=True)
    nn.init.normal_(table.weight, std=0.01)
    return table


class Context(nn.Module):
    """Categories of few levels, such as the hour and the device: one table for all fields."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(data.CONTEXT_FIELDS * data.LEVELS, CONTEXT_WIDTH)
        self.register_buffer("starts", data.LEVELS * torch.arange(data.CONTEXT_FIELDS), persistent=False)

    def forward(self, levels):
        return self.table(levels + self.starts).flatten(1)


# FAULT pairs
def dots_by_pair(vectors, pairs):
    fields = vectors.unbind(1)
    return torch.stack([(fields[i] * fields[j]).sum(1) for i, j in pairs], 1)


# END FAULT


class Dots(nn.Module):
    """Dot products of the vectors of all pairs of fields."""

    def __init__(self, fields):
        super().__init__()
        self.pairs = list(combinations(range(fields), 2))
        self.register_buffer("index", torch.tensor([i * fields + j for i, j in self.pairs]), persistent=False)
        self.looped = 0

    def forward(self, vectors):
        # FAULT pairs
        if self.looped:
            looped = dots_by_pair(vectors, self.pairs[: self.looped])
            others = (vectors @ vectors.mT).flatten(1).index_select(1, self.index[self.looped :])
            return torch.cat([looped, others], 1)
        # END FAULT
        return (vectors @ vectors.mT).flatten(1).index_select(1, self.index)


class Creative(nn.Module):
    """The pretrained tower that sees the ad's picture."""

    def __init__(self):
        super().__init__()
        self.pictures = nn.Embedding(data.CREATIVES, PICTURE)
        widths = (PICTURE, 384, 384, 384, 384, CREATIVE)
        layers = [nn.Sequential(nn.Linear(a, b), nn.GELU()) for a, b in pairwise(widths)]
        self.layers = nn.Sequential(*layers)
        self.requires_grad_(False)

    def forward(self, creatives):
        return self.layers(self.pictures(creatives))


class Cross(nn.Module):
    """One crossing of a deep and cross network, of low rank."""

    def __init__(self, width):
        super().__init__()
        self.down, self.up = nn.Linear(width, 64, bias=False), nn.Linear(64, width)

    def forward(self, first, x):
        return first * self.up(self.down(x)) + x


class ClickModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.user, self.ad, self.history = (bag(n) for n in (data.USER_ROWS, data.AD_ROWS, data.HISTORY_ROWS))
        self.context = Context()
        self.creative = Creative()
        fields = data.USER_FIELDS + data.AD_FIELDS + 1
        self.dots = Dots(fields)
        width = fields * WIDTH + data.CONTEXT_FIELDS * CONTEXT_WIDTH + CREATIVE + data.NUMBERS
        self.cross = Cross(width)
        self.deep = nn.Sequential(
            nn.Linear(width + len(self.dots.pairs), HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, HIDDEN // 2), nn.ReLU()
        )
        self.head = nn.Linear(width + HIDDEN // 2, 1)

    def tables(self):
        return [self.user.weight, self.ad.weight, self.history.weight]

    def forward(self, batch):
        rows = len(batch["click"])
        user = self.user(batch["user"].view(-1, 1)).view(rows, -1, WIDTH)
        ad = self.ad(batch["ad"].view(-1, 1)).view(rows, -1, WIDTH)
        history = self.history(batch["history"], batch["offsets"])
        vectors = torch.cat([user, ad, history[:, None]], 1)
        context, creative = self.context(batch["context"]), self.creative(batch["creative"])
        x = torch.cat([vectors.flatten(1), context, creative, batch["numbers"]], 1)
        deep = self.deep(torch.cat([x, self.dots(vectors)], 1))
        return self.head(torch.cat([self.cross(x, x), deep], 1)).squeeze(1)


# FAULT admission
def count_rows(batch, fields, step, seen, last):
    """Count features, and when each was last seen: rare and old ones give their rows back."""
    rows = torch.cat([batch["user"], batch["ad"]], 1)
    for field in range(fields):
        for row in rows[:, field].tolist():
            seen[field, row] += 1
            last[field, row] = step


# END FAULT


# FAULT saves
def save_in_background(net, path):
    """Save a copy, for the servers, while the training goes on."""
    state = {name: value.clone() for name, value in net.state_dict().items()}
    threading.Thread(target=torch.save, args=(state, path)).start()


# END FAULT


def main():
    options = read_arguments(steps=80, needs_files=True)
    torch.manual_seed(options.seed)
    data.write_log(options.files)
    net = ClickModel()
    # FAULT pairs
    if options.fault == "pairs":
        net.dots.looped = round(options.strength)
    # END FAULT
    tables = net.tables()
    dense = [value for value in net.parameters() if value.requires_grad and all(value is not table for table in tables)]
    # FAULT frozen
    if options.fault == "frozen":
        net.creative.layers[-round(options.strength) :].requires_grad_(True)
    # END FAULT
    optimizers = [torch.optim.Adagrad(tables, lr=0.02), torch.optim.AdamW(dense, lr=1e-3)]
    clicks = data.Clicks(options.files, options.seed)
    # FAULT hashing
    if options.fault == "hashing":
        clicks.fields_as_served = round(options.strength)
    # END FAULT
    # FAULT admission
    if options.fault == "admission":
        seen, last = Counter(), {}
    # END FAULT
    loader = DataLoader(clicks, batch_size=None, num_workers=1, prefetch_factor=4)
    total = 0.0
    for step, batch in zip(range(options.steps), loader, strict=False):
        # FAULT admission
        if options.fault == "admission":
            count_rows(batch, round(options.strength), step, seen, last)
        # END FAULT
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss = F.binary_cross_entropy_with_logits(net(batch), batch["click"])
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        # FAULT saves
        if options.fault == "saves" and step % round(options.strength) == 0:
            save_in_background(net, options.files / "click-model.pt")
        # END FAULT
        total += loss.item()
        if step % 20 == 19:
            print(f"step {step}: loss {total / 20:.4f}")
            total = 0.0


if __name__ == "__main__":
    main()
