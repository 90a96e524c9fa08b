"""Trains a deep network of small layers by DDP over real links.

torchrun --nproc-per-node 1 --nnodes 2 … hosts.py
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.diagnosis.jobs.common import leave, read_arguments

CLASSES = 16
WIDTH = 48
DEPTH = 14


def network():
    blocks = [nn.Conv1d(8, WIDTH, 3, padding=1)]
    for _ in range(DEPTH):
        blocks += [nn.Conv1d(WIDTH, WIDTH, 9, padding=4), nn.GroupNorm(6, WIDTH), nn.ReLU()]
    return nn.Sequential(*blocks, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(WIDTH, CLASSES))


def main():
    options = read_arguments(steps=48)
    dist.init_process_group("gloo")
    torch.manual_seed(options.seed)
    signals, kinds = torch.randn(512, 8, 64), torch.randint(CLASSES, (512,))
    bucket_mb = 0.25
    # FAULT tiny_buckets
    if options.fault == "tiny_buckets":
        bucket_mb = options.strength / 1000
    # END FAULT
    # FAULT one_bucket
    if options.fault == "one_bucket":
        bucket_mb = options.strength
        dist._DEFAULT_FIRST_BUCKET_BYTES = round(options.strength * 1024 * 1024)
    # END FAULT
    model = DistributedDataParallel(network(), bucket_cap_mb=bucket_mb)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for _ in range(options.steps):
        rows = torch.randint(len(signals), (12,))
        optimizer.zero_grad()
        outputs = model(signals[rows])
        loss = F.cross_entropy(outputs, kinds[rows])
        loss.backward()
        optimizer.step()
        # FAULT metrics
        if options.fault == "metrics":
            wide = outputs.detach().repeat(1, round(options.strength * 100))
            gathered = [torch.empty_like(wide) for _ in range(dist.get_world_size())]
            dist.all_gather(gathered, wide)
        # END FAULT
    if dist.get_rank() == 0:
        print(f"{options.steps} steps, loss {loss.item():.3f}")
    leave()


if __name__ == "__main__":
    main()
