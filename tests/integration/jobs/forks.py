"""Trains, and forks a child in each step, which says whether many operations made it grow."""

import os
import resource

import torch
from steps import losses, model_and_optimizer


def in_child() -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    x = torch.ones(3)
    for _ in range(20_000):
        x = x * 1
    grown_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    print("grown by more than 20 MB:", grown_kb > 20_000, flush=True)
    os._exit(0)


model, optimizer = model_and_optimizer()
for _ in losses(model, 18):
    optimizer.step()
    child = os.fork()
    if child == 0:
        in_child()
    os.waitpid(child, 0)
