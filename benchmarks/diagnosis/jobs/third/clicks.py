"""Ranks items for users by bags of what they clicked; a loop with callbacks trains it. Plain DDP.

torchrun --nproc-per-node 2 clicks.py
"""

import os
import random
import select
import statistics
import subprocess
import time
import zlib
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.diagnosis.jobs.common import leave, read_arguments

ITEMS, BAG, ROWS = 1500, 24, 480


class Clicks(NamedTuple):
    history: torch.Tensor
    candidate: torch.Tensor
    clicked: torch.Tensor


class TwoTowers(nn.Module):
    def __init__(self):
        super().__init__()
        self.history = nn.EmbeddingBag(ITEMS, 48, mode="mean")
        self.candidate = nn.Embedding(ITEMS, 48)
        self.deep = nn.Sequential(
            nn.Linear(96, 384), nn.ReLU(), nn.Linear(384, 384), nn.ReLU(), nn.Linear(384, 128), nn.ReLU()
        )
        self.top = nn.Linear(128, 1)

    def forward(self, history, candidate):
        features = torch.cat([self.history(history), self.candidate(candidate)], dim=1)
        return self.top(self.deep(features)).squeeze(1)


def draw(rows):
    history = torch.randint(ITEMS, (rows, BAG))
    candidate = torch.randint(ITEMS, (rows,))
    return Clicks(history, candidate, (candidate < history.float().mean(1)).float())


class Callback:
    """Is told by the loop how far a step has come."""

    def on_fit(self, loop): ...

    def on_batch(self, loop): ...

    def on_scores(self, loop): ...

    def on_update(self, loop): ...


class RunningLoss(Callback):
    def on_fit(self, loop):
        self.total = torch.zeros(())

    def on_update(self, loop):
        self.total += loop.loss.detach()


class Loop:
    def __init__(self, options, callbacks):
        self.options = options
        self.rank, self.world = dist.get_rank(), dist.get_world_size()
        self.is_hit = self.rank == options.rank
        self.callbacks = callbacks
        self.net = TwoTowers()
        self.model = DistributedDataParallel(self.net)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3)
        self.step, self.rows = 0, ROWS

    def tell(self, event):
        for callback in self.callbacks:
            getattr(callback, event)(self)

    def fit(self):
        self.tell("on_fit")
        while self.step < self.options.steps:
            self.batch = draw(self.rows)
            self.tell("on_batch")
            self.scores = self.model(self.batch.history, self.batch.candidate)
            self.loss = nn.functional.binary_cross_entropy_with_logits(self.scores, self.batch.clicked)
            self.tell("on_scores")
            self.optimizer.zero_grad()
            self.loss.backward()
            self.optimizer.step()
            self.tell("on_update")
            self.step += 1


# FAULT polling
class FeatureStore(Callback):
    """Asks again and again until the features of the batch are said to be there."""

    def on_batch(self, loop):
        asked = 0
        while loop.is_hit and loop.step % 6 and asked < loop.options.strength:
            time.sleep(0.002)
            asked += 1


# END FAULT


# FAULT fingerprints
class Fingerprints(Callback):
    """Knows which batches were seen before, by the checksums of their rows."""

    def on_fit(self, loop):
        self.seen = set()

    def on_batch(self, loop):
        if loop.is_hit:
            for salt in range(round(loop.options.strength)):
                for row in loop.batch.history.tolist():
                    self.seen.add(zlib.crc32(",".join(str(item + salt) for item in row).encode()))


# END FAULT


# FAULT second_opinion
class SecondOpinion(Callback):
    """Scores the batch again with other candidates, to compare."""

    def on_update(self, loop):
        with torch.no_grad():
            for _ in range(round(loop.options.strength) if loop.is_hit else 0):
                loop.net(loop.batch.history, loop.batch.candidate.flip(0))


# END FAULT


# FAULT gradient_medians
class GradientMedians(Callback):
    def on_fit(self, loop):
        self.medians = []
        if loop.is_hit:
            self.share = loop.options.strength
            loop.net.deep[2].weight.register_post_accumulate_grad_hook(self.look)

    def look(self, weight):
        values = weight.grad.flatten()[: round(self.share * 10_000)].tolist()
        self.medians.append(statistics.median(values))


# END FAULT


# FAULT hard_negatives
class HardNegatives(Callback):
    """One rank a step, drawn anew each time, has hard negatives added to its batch."""

    def on_fit(self, loop):
        self.chance = random.Random(loop.options.seed)

    def on_update(self, loop):
        is_next = self.chance.randrange(loop.world) == loop.rank
        loop.rows = round(ROWS * loop.options.strength) if is_next else ROWS


# END FAULT


# FAULT pairwise_auc
class PairwiseAuc(Callback):
    def on_scores(self, loop):
        said = list(zip(loop.scores.tolist(), loop.batch.clicked.tolist(), strict=True))
        good = [score for score, clicked in said if clicked]
        bad = [score for score, clicked in said if not clicked] * round(loop.options.strength)
        self.auc = sum(1 for one in good for other in bad if one > other) / max(1, len(good) * len(bad))


# END FAULT


# FAULT refresh
class Refresh(Callback):
    """For a while, candidates are scored anew after each step."""

    def on_update(self, loop):
        if 30 <= loop.step < 46:
            with torch.no_grad():
                for _ in range(round(loop.options.strength)):
                    fresh = draw(ROWS)
                    loop.net(fresh.history, fresh.candidate)


# END FAULT


# FAULT hiccup
class Hiccup(Callback):
    def on_fit(self, loop):
        chance = random.Random(1 + 10 * loop.options.seed + loop.rank)
        self.steps = chance.sample(range(loop.options.steps), max(1, loop.options.steps // 25))

    def on_scores(self, loop):
        if loop.step in self.steps:
            select.select([], [], [], loop.options.strength / 1000)


# END FAULT


# FAULT busy_shells
class BusyShells(Callback):
    def on_fit(self, loop):
        script = "while kill -0 $0; do i=0; while [ $i -lt 9999 ]; do i=$((i+1)); done; done"
        for _ in range(round(loop.options.strength) if loop.rank == 0 else 0):
            command = ["sh", "-c", script, str(os.getpid())]
            subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


# END FAULT

FAULTS = {
    "polling": FeatureStore,
    "fingerprints": Fingerprints,
    "second_opinion": SecondOpinion,
    "gradient_medians": GradientMedians,
    "hard_negatives": HardNegatives,
    "pairwise_auc": PairwiseAuc,
    "refresh": Refresh,
    "hiccup": Hiccup,
    "busy_shells": BusyShells,
}


def main():
    options = read_arguments(steps=64)
    dist.init_process_group("gloo")
    torch.manual_seed(100 * options.seed + dist.get_rank())
    running = RunningLoss()
    loop = Loop(options, [running, *([FAULTS[options.fault]()] if options.fault in FAULTS else [])])
    loop.fit()
    if loop.rank == 0:
        print(f"mean loss {running.total.item() / options.steps:.4f}")
    leave()


if __name__ == "__main__":
    main()
