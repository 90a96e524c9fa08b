"""Train in one process; before each step, `augment` sleeps for as many ms as the argument says."""

import sys
import time

import torch
from torch import nn


def augment(batch: torch.Tensor) -> torch.Tensor:
    time.sleep(float(sys.argv[1]) / 1000)
    return batch


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for _ in range(80):
    optimizer.zero_grad()
    model(augment(torch.randn(32, 64))).mean().backward()
    optimizer.step()
