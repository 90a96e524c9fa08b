"""A job whose own profiler is on, by its first argument, around the whole loop or on a schedule of its own; its second
argument names the file that it writes its trace to, if any."""

import os
import sys
from contextlib import ExitStack

import torch
import torch.distributed as dist
from torch import nn
from torch.profiler import profile, schedule


def main(kind: str, path: str | None) -> None:
    dist.init_process_group("gloo")
    model = nn.parallel.DistributedDataParallel(nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 8)))
    optimizer = torch.optim.AdamW(model.parameters())
    torch.manual_seed(dist.get_rank())
    target = path and path.replace("RANK", os.environ["RANK"])
    # It is told of two steps where there is one.
    plan = schedule(wait=6, warmup=2, active=12, repeat=1) if kind == "scheduled" else None
    with ExitStack() as stack:
        profiler = stack.enter_context(profile(schedule=plan))
        for step in range(30):
            loss = model(torch.randn(32, 64)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            if plan:
                profiler.step()
                profiler.step()
            print(step, loss.item().hex())
    if target:
        profiler.export_chrome_trace(target)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:3], *[None] * (3 - len(sys.argv)))
