"""Trains a character model that continues sequences of numbers, by DDP; samples are made as they are needed.

torchrun --nproc-per-node 2 gpt.py
"""

import random
import subprocess
import sys
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.diagnosis.jobs.common import leave, read_arguments

VOCABULARY = 64
WIDTH = 96
BATCH = 12
LENGTH = 48


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.places = nn.Embedding(2 * LENGTH, WIDTH)
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True) for _ in range(3)
        )
        self.head = nn.Linear(WIDTH, VOCABULARY)
        self.clip = None

    def forward(self, numbers):
        length = numbers.shape[1]
        x = self.embed(numbers) + self.places(torch.arange(length))
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        for block in self.blocks:
            x = block(x, src_mask=mask, is_causal=True)
            if self.clip and x.requires_grad:
                x.register_hook(self.clip)
        return self.head(x)


def sequences(rows, length):
    first, step = torch.randint(VOCABULARY, (rows, 1)), torch.randint(1, 5, (rows, 1))
    return (first + step * torch.arange(length + 1)) % VOCABULARY


# FAULT python_hook
def log_activations(share):
    def hook(module, inputs, output):
        values = output.flatten().tolist()
        values = values[: int(share * len(values))]
        mean = sum(values) / len(values)
        module.spread = sum((value - mean) ** 2 for value in values) / len(values)

    return hook


# END FAULT


# FAULT slow_backward
def clip_by_quantile(times):
    def hook(gradient):
        for _ in range(times):
            ordered = sorted(gradient.abs().flatten().tolist())
        limit = ordered[int(0.999 * len(ordered))]
        return gradient.clamp(-limit, limit)

    return hook


# END FAULT


def main():
    options = read_arguments(steps=64)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(options.seed)
    is_faulty = rank == options.rank
    net = Model()
    # FAULT python_hook
    if options.fault == "python_hook":
        for block in net.blocks:
            block.register_forward_hook(log_activations(options.strength))
    # END FAULT
    # FAULT slow_backward
    if options.fault == "slow_backward" and is_faulty:
        net.clip = clip_by_quantile(round(options.strength))
    # END FAULT
    model = DistributedDataParallel(net)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    mine = random.Random(1000 * options.seed + rank)
    # FAULT hog
    if options.fault == "hog" and rank == 0:
        busy = "import os\nparent = os.getppid()\nwhile os.getppid() == parent: sum(range(10000))"
        for _ in range(round(options.strength)):
            subprocess.Popen([sys.executable, "-S", "-c", busy])
    # END FAULT
    for step in range(options.steps):
        rows, length = BATCH, LENGTH
        # FAULT more_work
        if options.fault == "more_work" and is_faulty:
            rows = round(options.strength * BATCH)
        # END FAULT
        # FAULT uneven
        if options.fault == "uneven":
            length += round(mine.choice((-1, 1)) * options.strength)
        # END FAULT
        batch = sequences(rows, length)
        optimizer.zero_grad()
        # FAULT sleeps_often
        if options.fault == "sleeps_often" and is_faulty and step % 7:
            time.sleep(options.strength / 1000)
        # END FAULT
        loss = F.cross_entropy(model(batch[:, :-1]).transpose(1, 2), batch[:, 1:])
        # FAULT transient
        if options.fault == "transient" and is_faulty and 32 <= step < 52:
            time.sleep(options.strength / 1000)
        # END FAULT
        # FAULT occasional
        if options.fault == "occasional" and mine.random() < 0.05:
            time.sleep(options.strength / 1000)
        # END FAULT
        loss.backward()
        optimizer.step()
    if rank == 0:
        print(f"{options.steps} steps, loss {loss.item():.3f}")
    leave()


if __name__ == "__main__":
    main()
