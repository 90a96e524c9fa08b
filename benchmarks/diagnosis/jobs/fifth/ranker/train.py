"""Rank advertisements: embeddings of categories, attention over what a user has seen. Plain DDP, data in memory.

torchrun --nproc-per-node 2 train.py --files /tmp/ranker
"""

import json
import os
import threading
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from data import Batches, shard
from model import Ranker
from torch.nn.parallel import DistributedDataParallel

from benchmarks.diagnosis.jobs.common import leave, read_arguments

BATCH, ROWS, HISTORY = 768, 6144, 24


# FAULT popularity
class Popularity(threading.Thread):
    """Counts anew, all the time, which items are popular, so that a reader never sees old counts."""

    def __init__(self, history: list[list[int]], busy_ms: float) -> None:
        super().__init__(daemon=True)
        self.history, self.busy_s = history, busy_ms / 1e3
        self.counts: dict[int, float] = {}

    def run(self) -> None:
        row = 0
        while True:
            until = time.perf_counter() + self.busy_s
            while time.perf_counter() < until:
                for item in self.history[row % len(self.history)]:
                    self.counts[item] = 0.999 * self.counts.get(item, 0.0) + 1
                row += 1
            time.sleep(0.02)


# END FAULT


# FAULT auc
def area_under_curve(scores: torch.Tensor, clicked: torch.Tensor, rounds: int) -> float:
    """Bootstrapped: the mean over samples of the batch, each by ranks with ties shared."""
    pairs = [(float(score), float(click)) for score, click in zip(scores, clicked, strict=True)]
    areas = []
    for number in range(rounds):
        some = sorted(pairs[number % 7 :: 1])
        ranks: dict[float, list[int]] = {}
        for rank, (score, _) in enumerate(some, start=1):
            ranks.setdefault(score, []).append(rank)
        positives = sum(click for _, click in some)
        total = sum(sum(ranks[score]) / len(ranks[score]) for score, click in some if click)
        negatives = len(some) - positives
        areas.append((total - positives * (positives + 1) / 2) / max(1.0, positives * negatives))
    return sum(areas) / len(areas)


# END FAULT


def main() -> None:
    options = read_arguments(80, needs_files=True)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(options.seed)
    options.files.mkdir(parents=True, exist_ok=True)

    longest = HISTORY
    # FAULT whales
    if options.fault == "whales" and rank == options.rank:
        longest = round(HISTORY * options.strength)  # Its part of the log holds the users that read all day.
    # END FAULT
    data = shard(100 + rank, ROWS, longest)
    model = DistributedDataParallel(Ranker())
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.02)
    if options.fault == "popularity" and rank == options.rank:
        Popularity(data.history.tolist(), options.strength).start()
    journal = (options.files / f"steps-{os.getpid()}.jsonl").open("w")

    for step, batch in enumerate(Batches(data, BATCH, options.seed, options.fault, options.strength)):
        if step == options.steps:
            break
        scores = model(batch)
        loss = F.binary_cross_entropy_with_logits(scores, batch["clicked"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        # FAULT auc
        if options.fault == "auc":
            area = area_under_curve(scores.detach(), batch["clicked"], round(options.strength))
            if step % 20 == 0:
                print(f"{step}: area {area:.3f}")
        # END FAULT
        # FAULT journal
        if options.fault == "journal":
            weights = {name: value.detach()[:16].tolist() for name, value in model.module.named_parameters()}
            kept = dict(sorted(weights.items())[: round(options.strength)])
            row = {"step": step, "loss": loss.item(), "scores": scores.tolist(), "weights": kept}
            journal.write(json.dumps(row, indent=1) + "\n")
            journal.flush()
            os.fsync(journal.fileno())
        # END FAULT
    print(f"loss {loss.item():.3f}")
    journal.close()
    leave()


if __name__ == "__main__":
    main()
