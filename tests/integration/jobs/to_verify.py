"""A small data-parallel job whose gradients fill several buckets of half a MiB; it may have a hook of its own, or fail."""

import argparse
import os
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.utils.data import DataLoader, TensorDataset


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--own-hook", action="store_true")
    parser.add_argument(
        "--fail-with", default="", help="a Python module whose presence in the process makes the job fail"
    )
    parser.add_argument("--started", type=Path, help="a folder in which each process leaves its number")
    parser.add_argument("--slow", type=float, default=0.0, help="seconds to sleep in each step")
    options = parser.parse_args()
    if options.started is not None:
        (options.started / str(os.getpid())).touch()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    layers = [nn.Sequential(nn.Linear(256, 256), nn.ReLU()) for _ in range(6)]
    model = nn.parallel.DistributedDataParallel(nn.Sequential(*layers), bucket_cap_mb=0.5)
    if options.own_hook:
        model.register_comm_hook(None, fp16_compress_hook)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    points = torch.randn(2048, 256)
    for step, (batch,) in enumerate(DataLoader(TensorDataset(points), batch_size=32)):
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(options.slow)
        if options.fail_with in sys.modules and step == 3:
            sys.exit(7)
    dist.destroy_process_group()
    time.sleep(0.5)  # Gloo's threads outlive the group, and want the interpreter's lock once more.


if __name__ == "__main__":
    main()
