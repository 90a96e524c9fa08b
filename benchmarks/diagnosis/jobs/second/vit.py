"""A small vision transformer whose blocks are sharded by FSDP2; pictures are made up on the way.

torchrun --nproc-per-node 2 vit.py --files /tmp/vit
"""

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as checkpoint
from torch import nn
from torch.distributed.fsdp import FSDPModule, fully_shard

from benchmarks.diagnosis.jobs.common import leave, read_arguments

SIDE, PATCH, WIDTH = 32, 4, 72


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)])
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.project = nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x):
        rows, length, _ = x.shape
        q, k, v = self.qkv(self.norms[0](x)).view(rows, length, 3, 4, -1).permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(rows, length, WIDTH)
        x = x + self.project(mixed)
        return x + self.mlp(self.norms[1](x))


class Vit(nn.Module):
    def __init__(self):
        super().__init__()
        self.cut = nn.Conv2d(3, WIDTH, PATCH, stride=PATCH)
        self.blocks = nn.ModuleList([Block() for _ in range(3)])
        self.label = nn.Linear(WIDTH, 5)

    def forward(self, pictures):
        x = self.cut(pictures).flatten(2).transpose(1, 2)
        for block in self.blocks:
            x = block(x)
        return self.label(x.mean(1))


def sharded() -> FSDPModule:
    model = Vit()
    for block in model.blocks:
        fully_shard(block)
    return fully_shard(model)


def cutout(pictures, rng, boxes):
    """Blanks out boxes in each picture."""
    for picture in pictures:
        for top, left in rng.integers(0, SIDE - 6, (boxes, 2)):
            picture[:, top : top + 6, left : left + 6] = 0
    return pictures


def main():
    options = read_arguments(steps=60, needs_files=True)
    dist.init_process_group("gloo")
    torch.manual_seed(options.seed)
    rng = np.random.default_rng(options.seed + dist.get_rank())
    model = sharded()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, foreach=True)
    for step in range(options.steps):
        pictures = torch.from_numpy(cutout(rng.standard_normal((10, 3, SIDE, SIDE), dtype=np.float32), rng, 2))
        loss = nn.functional.cross_entropy(model(pictures), torch.from_numpy(rng.integers(0, 5, 10)))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        # FAULT sharded_save
        if options.fault == "sharded_save" and (step + 1) % round(options.strength) == 0:
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()["param_groups"][0]["lr"]}
            checkpoint.save(state, checkpoint_id=str(options.files / f"at-{step}"))
        # END FAULT
    if dist.get_rank() == 0:
        print(f"loss {loss.item():.3f}")
    leave()


if __name__ == "__main__":
    main()
