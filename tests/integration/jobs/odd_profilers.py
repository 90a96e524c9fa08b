"""A rank that profiles by itself in odd ways: with profilers that are switched off, or with two in one step."""

import sys

import torch
import torch.distributed as dist
from steps import losses, model_and_optimizer
from torch.autograd.profiler import profile as old_profile
from torch.profiler import profile

dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
model, optimizer = model_and_optimizer()
for step, _ in enumerate(losses(model, 40)):
    with old_profile(enabled=False):
        dist.all_reduce(torch.ones(1))
    if sys.argv[1] == "twice" and step == 30:
        for _ in range(2):
            with profile() as one:
                with old_profile(enabled=False):
                    pass
                torch.ones(3).sum()
            assert one.key_averages()
    optimizer.step()
dist.destroy_process_group()
