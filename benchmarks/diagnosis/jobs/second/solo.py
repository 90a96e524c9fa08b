"""One process: a graph of words by attention, with a report of each step in a database and records of all samples.

python solo.py --files /tmp/solo
"""

import gc
import logging
import os
import sqlite3
import tempfile
import time
from pathlib import Path

import torch
from torch import nn

from benchmarks.diagnosis.jobs.common import read_arguments

SIZE, LENGTH = 80, 64


class Sample:
    """What is known of one sample."""

    def __init__(self, number):
        self.number = number
        self.tags = [number % 7, number % 11]
        self.owner = self


class Attend(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(SIZE, 4, batch_first=True)
        self.norm = nn.LayerNorm(SIZE)
        self.feed = nn.Sequential(nn.Linear(SIZE, 3 * SIZE), nn.SiLU(), nn.Linear(3 * SIZE, SIZE))

    def forward(self, x):
        x = x + self.attention(x, x, x, need_weights=False)[0]
        return x + self.feed(self.norm(x))


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(300, SIZE)
        self.stack = nn.ModuleList([Attend(), Attend(), Attend()])
        self.guess = nn.Linear(SIZE, 300)

    def forward(self, words):
        x = self.table(words)
        for layer in self.stack:
            x = layer(x)
        return self.guess(x)


def train(options, database):
    model = Words()
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.01)
    known = [Sample(number) for number in range(20_000)]
    logger = logging.getLogger("solo")
    # FAULT log_hook
    if options.fault == "log_hook":

        def log(module, inputs, output):
            for row in output.detach()[: round(options.strength)].flatten(0, 1):
                logger.warning("activation %s", [f"{value:.3f}" for value in row.tolist()])

        for layer in model.stack:
            layer.register_forward_hook(log)
    # END FAULT
    # FAULT tensor_hook
    if options.fault == "tensor_hook":
        peaks = []

        def note_peaks(gradient):
            for row in gradient.tolist() * round(options.strength):
                peaks.append(max(abs(value) for value in row))

        model.guess.weight.register_hook(note_peaks)
    # END FAULT
    # FAULT tidy
    if options.fault == "tidy":
        known += [Sample(number) for number in range(round(options.strength * 100_000))]
    # END FAULT
    seen_in = {}
    total = 0.0
    for step in range(options.steps):
        fresh = [Sample(number) for number in range(2_000)]
        words = torch.randint(300, (16, LENGTH))
        scores = model(words)
        loss = nn.functional.cross_entropy(scores[:, :-1].flatten(0, 1), words[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        total += loss.item() + 0 * len(fresh)
        # FAULT commits
        if options.fault == "commits":
            for part, value in enumerate(model.guess.weight.detach().norm(dim=1)[: round(options.strength)].tolist()):
                database.execute("insert into report values (?, ?, ?)", (step, part, value))
                database.commit()
        # END FAULT
        # FAULT leak
        if options.fault == "leak":
            seen_in[step] = [Sample(number) for number in range(round(options.strength * 1000))]
        # END FAULT
        # FAULT tidy
        if options.fault == "tidy":
            del fresh
            gc.collect()
        # END FAULT
    return total / options.steps + 0 * len(known)


if __name__ == "__main__":
    asked = read_arguments(steps=48, needs_files=True)
    torch.set_num_threads(1)
    torch.manual_seed(asked.seed)
    asked.files.mkdir(parents=True, exist_ok=True)
    logging.basicConfig(filename=os.devnull)
    with tempfile.TemporaryDirectory(dir=asked.files) as folder:
        reports = sqlite3.connect(Path(folder) / "report.db")
        reports.execute("pragma synchronous = full")
        reports.execute("create table report (step, part, value)")
        began = time.time()
        print(f"mean loss {train(asked, reports):.4f} in {time.time() - began:.1f} s")
        reports.close()
