"""Train on samples that a sleep stands for the reading of: `reads.py WORKERS`, or `reads.py WORKERS stateful`."""

import sys
import time

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

import esprof

STEPS, BATCH = 40, 4


class Slow(Dataset[Tensor]):
    """Samples that take 15 ms to read."""

    def __len__(self) -> int:
        return STEPS * BATCH

    def __getitem__(self, index: int) -> Tensor:
        with esprof.stage("read"):
            time.sleep(0.015)
        return torch.full((8,), float(index))


if "stateful" in sys.argv:
    from torchdata.stateful_dataloader import StatefulDataLoader as DataLoader

model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for batch in DataLoader(Slow(), batch_size=BATCH, num_workers=int(sys.argv[1])):
    optimizer.zero_grad()
    model(batch).mean().backward()
    optimizer.step()
