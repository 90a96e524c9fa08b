"""Trains, and says whether a profiler is on at the end."""

import torch
from steps import losses, model_and_optimizer

model, optimizer = model_and_optimizer()
for _ in losses(model, 60):
    optimizer.step()
print("profiled at the end:", torch.autograd._profiler_enabled())
