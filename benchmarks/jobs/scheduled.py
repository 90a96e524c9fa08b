"""Linear layers as a pipeline of a stage a rank, run by a schedule of torch.distributed.pipelining."""

import argparse

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleavedZeroBubble

from benchmarks.jobs.loop import worker

SCHEDULES = {"1f1b": Schedule1F1B, "gpipe": ScheduleGPipe, "zb1p": ScheduleInterleavedZeroBubble}


def train(schedule: str, microbatches: int, width: int, batch: int, layers: int, steps: int) -> None:
    rank, stages = dist.get_rank(), dist.get_world_size()
    model = nn.Sequential(*(nn.Linear(width, width) for _ in range(layers)))
    stage = PipelineStage(model, rank, stages, torch.device("cpu"))
    taken = [stage] if schedule == "zb1p" else stage
    pipeline = SCHEDULES[schedule](taken, microbatches, loss_fn=nn.functional.mse_loss)  # type: ignore[arg-type]
    optimizer = torch.optim.AdamW(model.parameters())
    samples = torch.randn(batch, width)
    for _ in range(steps):
        optimizer.zero_grad()
        if rank == 0:
            pipeline.step(samples)
        else:
            pipeline.step(target=samples)
        optimizer.step()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--schedule", choices=SCHEDULES, default="1f1b")
    parser.add_argument("--microbatches", type=int, default=6, help="of a step")
    parser.add_argument("--width", type=int, default=512, help="of each layer")
    parser.add_argument("--batch", type=int, default=480, help="samples a step")
    parser.add_argument("--layers", type=int, default=8, help="of a stage")
    parser.add_argument("--steps", type=int, default=20, help="optimizer steps")
    options = parser.parse_args()
    with worker(seed=0):
        train(**vars(options))


if __name__ == "__main__":
    main()
