"""Two towers: who buys, and what is bought. Softmax over the batch and some drawn negatives."""

import gc
import random

import torch
from data import ITEMS, USERS, Purchases, collate
from torch import nn
from torch.nn.functional import cross_entropy, normalize
from torch.utils.data import DataLoader

from benchmarks.diagnosis.jobs.common import read_arguments

DIM = 64
NEGATIVES = 512
BATCH = 384


class TwoTowers(nn.Module):
    def __init__(self):
        super().__init__()
        self.user = nn.EmbeddingBag(USERS, DIM, sparse=True)
        self.bought = nn.EmbeddingBag(ITEMS, DIM, mode="mean", sparse=True)
        self.item = nn.Embedding(ITEMS, DIM, sparse=True)
        self.left = nn.Sequential(
            nn.Linear(2 * DIM, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, DIM)
        )
        self.right = nn.Sequential(nn.Linear(DIM, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, DIM))

    def query(self, users, flat, offsets):
        return normalize(self.left(torch.cat([self.user(users[:, None]), self.bought(flat, offsets)], -1)), dim=-1)

    def catalogue(self, items):
        return normalize(self.right(self.item(items)), dim=-1)

    def forward(self, users, flat, offsets, items):
        return 20 * self.query(users, flat, offsets) @ self.catalogue(items).T


# FAULT fair_negatives
def fair_negatives(histories, each):
    """Items that none of the users bought, drawn for one user after another."""
    drawn = []
    for history in histories:
        mine = []
        while len(mine) < each:
            item = random.randrange(ITEMS)
            if item not in history and item not in mine:
                mine.append(item)
        drawn.extend(mine)
    return torch.tensor(random.sample(drawn, NEGATIVES))


# END FAULT


# FAULT recall
@torch.no_grad()
def recall(model, held_out, top=50):
    model.eval()
    everything = model.catalogue(torch.arange(ITEMS))
    hits = total = 0
    for users, flat, offsets, nexts, _ in held_out:
        best = (model.query(users, flat, offsets) @ everything.T).topk(top).indices
        hits += int((best == nexts[:, None]).any(1).sum())
        total += len(users)
    model.train()
    return hits / total


# END FAULT


class Log:
    """What the dashboard shows."""

    def __init__(self):
        self.rows = []

    def note(self, **row):
        self.rows.append(row)


def train(args):
    torch.manual_seed(args.seed)
    random.seed(args.seed)
    purchases = Purchases(args)
    loader = DataLoader(purchases, batch_size=BATCH, shuffle=True, drop_last=True, collate_fn=collate)
    model = TwoTowers()
    dense = [*model.left.parameters(), *model.right.parameters()]
    sparse = [model.user.weight, model.bought.weight, model.item.weight]
    optimizers = torch.optim.Adam(dense, lr=1e-3), torch.optim.SparseAdam(sparse, lr=1e-2)
    log, step = Log(), 0
    # FAULT collect
    if args.fault == "collect":
        args.graph = [{"user": i, "friends": [i + 1, i + 2]} for i in range(int(args.strength * 1000))]
    # END FAULT
    # FAULT recall
    if args.fault == "recall":
        rows = [purchases[i] for i in range(int(args.strength))]
        held_out = DataLoader(rows, batch_size=100, collate_fn=collate)
    # END FAULT
    while step < args.steps:
        for users, flat, offsets, nexts, histories in loader:
            negatives = torch.randint(ITEMS, (NEGATIVES,))
            # FAULT fair_negatives
            if args.fault == "fair_negatives":
                negatives = fair_negatives(histories, int(args.strength))
            # END FAULT
            scores = model(users, flat, offsets, torch.cat([nexts, negatives]))
            loss = cross_entropy(scores, torch.arange(len(users)))
            # FAULT twice
            if args.fault == "twice":
                again = model(users, flat, offsets, torch.cat([nexts, negatives]))
                right = (again.argmax(1) == torch.arange(len(users))).float().mean()
                log.note(step=step, right=right.item())
            # END FAULT
            for optimizer in optimizers:
                optimizer.zero_grad()
            loss.backward()
            for optimizer in optimizers:
                optimizer.step()
            step += 1
            log.note(step=step, loss=loss.item())
            # FAULT collect
            if args.fault == "collect" and step % 5 == 0:
                gc.collect()
            # END FAULT
            # FAULT recall
            if args.fault == "recall" and step % 5 == 0:
                log.note(step=step, recall=recall(model, held_out))
            # END FAULT
            if step >= args.steps:
                break
        print(f"step {step}: loss {log.rows[-1].get('loss', 0):.3f}", flush=True)


if __name__ == "__main__":
    train(read_arguments(steps=100))
