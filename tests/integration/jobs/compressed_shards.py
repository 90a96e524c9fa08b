"""Trains a model of FSDP2 whose gradients travel as bf16; each rank writes what came out to a file of its own.

torchrun … compressed_shards.py FOLDER
"""

import json
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

from esprof.core.errors import UsageError
from esprof.elastic.compress.sharded import compress_sharded


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(10, 30), nn.ReLU(), nn.Linear(30, 7))


def gradients(net, rank):
    x = torch.randn(8, 10, generator=torch.Generator().manual_seed(rank))
    return torch.autograd.grad(net(x).square().mean(), list(net.parameters()))


if __name__ == "__main__":
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    results = {}
    try:
        compress_sharded(model())
    except UsageError as error:
        results["plain"] = str(error)
    net = model()
    fully_shard(net[0])
    fully_shard(net)
    compressed = compress_sharded(net)
    x = torch.randn(8, 10, generator=torch.Generator().manual_seed(rank))
    net(x).square().mean().backward()
    # What it should be: each rank's gradient rounded to bf16, added in 32 bits.
    alone = [gradients(model(), other) for other in range(world)]
    results["equal"], results["elements"] = [], 0
    for number, parameter in enumerate(net.parameters()):
        mean = sum(grads[number].to(torch.bfloat16).float() for grads in alone) / world
        results["equal"].append(torch.equal(parameter.grad.full_tensor(), mean))
        rows = -(-parameter.shape[0] // world) * world
        results["elements"] += rows * parameter[0].numel() if parameter.dim() > 1 else rows
    results["sent"] = compressed.sent_bytes
    Path(sys.argv[1], f"{rank}.json").write_text(json.dumps(results))
    dist.destroy_process_group()
    time.sleep(0.5)  # Gloo's threads outlive the group, and must not meet an interpreter on its way out.
