"""An elastic job of three ranks that is well, though rank 0 waits long for the others, who are in calls of their own."""

import ctypes
import sys
import time

import torch
import torch.distributed as dist

from esprof.elastic import Data, ElasticTrainer, Updates
from tests.cases.elastic import MODELS, OPTIMIZERS, Samples, loss_fn

LONG_S = 10
"""Longer than a rank may be in a call of torch.distributed before it counts as lost, if nobody is left that could come."""

STEPS = 3

dist.init_process_group("gloo")
rank = dist.get_rank()
pair = dist.new_group([1, 2])
model = MODELS["mlp"]()


def slow_at_last(step):
    if (rank, step) == (1, STEPS - 1):
        time.sleep(LONG_S)  # The others have long ended.


trainer = ElasticTrainer(
    model,
    OPTIMIZERS["sgd"](model.parameters()),
    loss_fn,
    Data(Samples(64, tokens=False), batch_size=2),
    3,
    updates=Updates(before_update=slow_at_last),
)
trainer.step()
if rank == 2:
    time.sleep(2)
    dist.all_reduce(torch.ones(1), group=pair)  # Rank 1 comes late, so that this one is seen in here, ...
    ctypes.PyDLL(None).sleep(LONG_S)  # ... and then no thread of it can tell that it has left it.
elif rank == 1:
    time.sleep(4)
    dist.all_reduce(torch.ones(1), group=pair)
if rank > 0:
    dist.all_reduce(torch.ones(1), group=pair)  # Rank 1 waits here for rank 2.
for _ in range(STEPS - 1):
    trainer.step()
print("well", flush=True)
dist.destroy_process_group()
sys.exit(0)
