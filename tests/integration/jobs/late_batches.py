"""Train four epochs with a new worker each, which starts slowly, on batches that are slow to collate."""

import time

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

EPOCHS, STEPS = 4, 16


def start(worker: int) -> None:
    time.sleep(0.12)


def collate(samples: list[int]) -> Tensor:
    time.sleep(0.04)
    return torch.tensor(samples, dtype=torch.float32)[:, None].expand(-1, 8)


model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
loader = DataLoader(range(4 * STEPS), batch_size=4, num_workers=1, collate_fn=collate, worker_init_fn=start)
for _ in range(EPOCHS):
    for batch in loader:
        optimizer.zero_grad()
        model(batch).mean().backward()
        optimizer.step()
