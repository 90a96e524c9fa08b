"""Trains a model of FSDP2, each of its layers sharded: plainly, with gradients reduced in bf16, or as a plan's file says.

shards.py [bf16 | PLAN.json]
"""

import sys
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

from esprof import apply_plan

STEPS, HIDDEN = 24, 256


def main(how):
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    model = nn.Sequential(
        *(nn.Sequential(nn.Linear(HIDDEN, HIDDEN), nn.ReLU()) for _ in range(2)), nn.Linear(HIDDEN, 1)
    )
    policy = MixedPrecisionPolicy(reduce_dtype=torch.bfloat16) if how == "bf16" else MixedPrecisionPolicy()
    for part in (*model, model):
        fully_shard(part, mp_policy=policy)
    if how.endswith(".json"):
        model = apply_plan(model, how)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(STEPS):
        model(torch.randn(64, HIDDEN)).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    dist.destroy_process_group()
    time.sleep(0.5)  # Gloo's threads outlive the group, and must not meet an interpreter on its way out.


if __name__ == "__main__":
    main(*sys.argv[1:] or ["plainly"])
