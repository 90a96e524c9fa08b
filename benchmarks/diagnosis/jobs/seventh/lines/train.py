"""Learns to read written lines of many lengths from letter to letter, by DDP.

torchrun --nproc-per-node 2 train.py
"""

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from data import Batches, Lines
from model import Reader
from torch.nn.parallel import DistributedDataParallel
from torchdata.stateful_dataloader import StatefulDataLoader

from benchmarks.diagnosis.jobs.common import leave, read_arguments

BATCH = 32


# FAULT edits
def edits(said, true):
    """How many letters are to be changed, added or left out to make one of the other."""
    table = np.zeros((len(said) + 1, len(true) + 1), dtype=int)
    table[:, 0], table[0] = np.arange(len(said) + 1), np.arange(len(true) + 1)
    for row, letter in enumerate(said, 1):
        for column, other in enumerate(true, 1):
            kept = table[row - 1, column - 1] + (letter != other)
            table[row, column] = min(kept, table[row - 1, column] + 1, table[row, column - 1] + 1)
    return int(table[-1, -1])


# END FAULT


def main():
    options = read_arguments(steps=70)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(options.seed)
    torch.set_num_threads(1)
    seed = options.seed
    # FAULT own_order
    if options.fault == "own_order":
        seed += rank
    # END FAULT
    lines = Lines(BATCH, rank, options)
    loader = StatefulDataLoader(lines, sampler=Batches(seed), batch_size=None, num_workers=1)
    how = {}
    # FAULT small_buckets
    if options.fault == "small_buckets":
        how = {"bucket_cap_mb": options.strength}
    # END FAULT
    model = DistributedDataParallel(Reader(options), **how)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    wrong = 0
    for _, (pictures, text) in zip(range(options.steps), loader, strict=False):
        optimizer.zero_grad()
        scores = model(pictures, F.pad(text[:, :-1], (1, 0), value=1))
        loss = F.cross_entropy(scores.flatten(0, 1), text.flatten())
        loss.backward()
        optimizer.step()
        # FAULT edits
        if options.fault == "edits":
            said = scores.argmax(dim=2).tolist()
            wrong += sum(map(edits, said[: round(options.strength)], text.tolist()))
        # END FAULT
    if rank == 0:
        print(f"loss {loss.item():.3f}, {wrong} letters wrong")
    leave()


if __name__ == "__main__":
    main()
