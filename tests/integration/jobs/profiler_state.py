"""Trains for two seconds, and says whether a profiler is on at the end."""

import time

import torch
from steps import losses, model_and_optimizer

model, optimizer = model_and_optimizer()
for _ in losses(model, 60):
    optimizer.step()
    time.sleep(0.03)
print("profiled at the end:", torch.autograd._profiler_enabled())
