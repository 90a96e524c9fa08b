"""A pipeline of a stage a rank, by torch.distributed.pipelining over gloo."""

import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

STEPS = int(sys.argv[1])
SCHEDULE = {"1f1b": Schedule1F1B, "gpipe": ScheduleGPipe}[sys.argv[2]]
MICRO_BATCHES = int(sys.argv[3])

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, stages = dist.get_rank(), dist.get_world_size()
torch.manual_seed(rank)
layers = nn.Sequential(*(nn.Linear(256, 256) for _ in range(4)))
stage = PipelineStage(layers, rank, stages, torch.device("cpu"))
schedule = SCHEDULE(stage, MICRO_BATCHES, loss_fn=nn.functional.mse_loss)
optimizer = torch.optim.AdamW(layers.parameters())
batch = torch.randn(256, 256)
for _ in range(STEPS):
    optimizer.zero_grad()
    if rank == 0:
        schedule.step(batch)
    else:
        schedule.step(target=batch)
    optimizer.step()
dist.destroy_process_group()
