"""Trains a transformer on sequences of numbers, its parameters sharded by FSDP2.

torchrun --nproc-per-node 2 fsdp.py --files /tmp/fsdp
"""

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn.functional as F
from torch import nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from benchmarks.diagnosis.jobs.common import leave, read_arguments

WIDTH, LENGTH, KINDS = 96, 48, 8


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.enter = nn.Linear(16, WIDTH)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True) for _ in range(3)
        )
        self.head = nn.Linear(WIDTH, KINDS)

    def forward(self, x):
        x = self.enter(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(x.mean(1))


def augment(signals, views):
    """The mean of several noisy views, each filtered in frequency."""
    total = torch.zeros_like(signals)
    for _ in range(views):
        total += torch.fft.irfft(
            torch.fft.rfft(signals + 0.1 * torch.randn_like(signals), dim=1)[:, :20], n=LENGTH, dim=1
        )
    return total / views


def main():
    options = read_arguments(steps=60, needs_files=True)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(options.seed)
    signals, kinds = torch.randn(1024, LENGTH, 16), torch.randint(KINDS, (1024,))
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    model = Model()
    for layer in model.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    views = 10
    # FAULT much_more_work
    if options.fault == "much_more_work" and rank == options.rank:
        views = round(10 * options.strength)
    # END FAULT
    for step in range(1, options.steps + 1):
        rows = torch.randint(len(signals), (12,))
        loss = F.cross_entropy(model(augment(signals[rows], views)), kinds[rows])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        # FAULT dcp_save
        if options.fault == "dcp_save" and step % round(options.strength) == 0:
            dcp.save({"model": get_model_state_dict(model)}, checkpoint_id=options.files / f"step-{step}")
        # END FAULT
    if rank == 0:
        print(f"{step} steps, loss {loss.item():.3f}")
    leave()


if __name__ == "__main__":
    main()
