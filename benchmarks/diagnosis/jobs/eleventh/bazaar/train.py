"""Trains two towers, of users and of offers, to find what a user opens next, by DDP on two hosts.

torchrun --nproc-per-node 1 --nnodes 2 … train.py --files FOLDER
"""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

from benchmarks.diagnosis.jobs.common import leave, read_arguments
from benchmarks.diagnosis.jobs.eleventh.bazaar.data import (
    CATEGORIES,
    CONTENT,
    ITEMS,
    USERS,
    Clicks,
    content_vectors,
)

BATCH = 512
WIDTH = 32
HIDDEN = 384
OUTPUT = 64
TEMPERATURE = 0.07
REPORT_EVERY = 20


def tower(inputs):
    return nn.Sequential(
        nn.Linear(inputs, HIDDEN),
        nn.ReLU(),
        nn.Linear(HIDDEN, HIDDEN),
        nn.ReLU(),
        nn.Linear(HIDDEN, OUTPUT),
    )


class TwoTowers(nn.Module):
    """Vectors of users and of offers; the table of offers serves the histories too."""

    def __init__(self, category_of, content):
        super().__init__()
        self.category_of = category_of
        self.users = nn.Embedding(USERS, WIDTH)
        self.items = nn.Embedding(ITEMS, WIDTH)
        self.categories = nn.Embedding(CATEGORIES, WIDTH)
        self.content = content
        self.user_tower = tower(2 * WIDTH)
        self.item_tower = tower(2 * WIDTH + content.embedding_dim)

    def forward(self, users, histories, items):
        past = F.embedding_bag(histories, self.items.weight, mode="mean")
        of_users = self.user_tower(torch.cat([self.users(users), past], dim=1))
        features = [self.items(items), self.categories(self.category_of[items]), self.content(items)]
        of_items = self.item_tower(torch.cat(features, dim=1))
        return F.normalize(of_users, dim=1), F.normalize(of_items, dim=1)


def in_batch_scores(of_users, of_items, items, log_share):
    """Scores of all pairs in the batch, corrected for how often an offer is drawn; a copy of the target is no negative."""
    scores = of_users @ of_items.T / TEMPERATURE - log_share[items]
    copies = items[:, None] == items
    return scores.masked_fill(copies.fill_diagonal_(False), float("-inf"))


# FAULT opened
def already_opened(histories, items, users):
    """Where an offer of the batch is in a user's history: it is no negative for that user."""
    candidates = items.tolist()
    mask = torch.zeros(len(histories), len(items), dtype=torch.bool)
    for row, history in enumerate(histories[:users].tolist()):
        opened = set(history)
        mask[row] = torch.tensor([item in opened for item in candidates])
    return mask.fill_diagonal_(False)


# END FAULT


# FAULT snapshots
def save_snapshot(network, optimizer, step, folder):
    """Keep the newest state in the folder, for the service that indexes the offers."""
    if dist.get_rank() == 0:
        state = {"network": network.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
        torch.save(state, folder / "newest.tmp")
        os.replace(folder / "newest.tmp", folder / "newest.pt")
    dist.barrier()


# END FAULT


def trained_parts(network):
    """Parameters of the tables with a rate of their own, and those of the towers."""
    tables = [network.users, network.items, network.categories]
    towers = [network.user_tower, network.item_tower]
    return [
        {"params": [weight for part in tables for weight in part.parameters()], "lr": 5e-3},
        {"params": [weight for part in towers for weight in part.parameters()], "lr": 1e-3},
    ]


def main():
    options = read_arguments(steps=72, needs_files=True)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(options.seed)
    generator = torch.Generator().manual_seed(options.seed)
    clicks = Clicks(60_000, generator)
    content = nn.Embedding.from_pretrained(content_vectors(CONTENT, generator), freeze=True)
    # FAULT pretrained
    if options.fault == "pretrained":
        vectors = content_vectors(round(options.strength), generator)
        content = nn.Embedding(*vectors.shape)
        content.load_state_dict({"weight": vectors})
    # END FAULT
    network = TwoTowers(clicks.category_of, content)
    # FAULT impressions
    if options.fault == "impressions":
        network.register_buffer("impressions", torch.zeros(ITEMS, round(options.strength)))
    # END FAULT
    model = DistributedDataParallel(network, gradient_as_bucket_view=True)
    optimizer = torch.optim.Adam(trained_parts(network), foreach=True)
    batches = clicks.batches(BATCH, rank, world, generator)
    targets = torch.arange(BATCH)
    for step, (users, histories, items) in zip(range(1, options.steps + 1), batches, strict=False):
        of_users, of_items = model(users, histories, items)
        scores = in_batch_scores(of_users, of_items, items, clicks.log_share)
        # FAULT impressions
        if options.fault == "impressions":
            network.impressions[items, step % network.impressions.shape[1]] += 1
        # END FAULT
        # FAULT opened
        if options.fault == "opened":
            scores = scores.masked_fill(already_opened(histories, items, round(options.strength)), float("-inf"))
        # END FAULT
        loss = F.cross_entropy(scores, targets)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        # FAULT snapshots
        if options.fault == "snapshots" and step % round(options.strength) == 0:
            save_snapshot(network, optimizer, step, options.files)
        # END FAULT
        if step % REPORT_EVERY == 0 and rank == 0:
            print(f"step {step}, loss {loss.item():.3f}", flush=True)
    leave()


if __name__ == "__main__":
    main()
