"""Forecast traffic at the crossings of towns by a graph network: messages along roads, a town after another. DDP on hosts.

torchrun --nnodes 2 … train.py --files /tmp/roads
"""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from data import FEATURES, town
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.diagnosis.jobs.common import leave, read_arguments

WIDTH, ROUNDS, TOWNS, CROSSINGS = 128, 4, 6, 320


class Messages(nn.Module):
    """Each crossing hears from its neighbours, and changes."""

    def __init__(self) -> None:
        super().__init__()
        self.say = nn.Sequential(nn.Linear(2 * WIDTH + 1, WIDTH), nn.SiLU(), nn.Linear(WIDTH, WIDTH))
        self.hear = nn.GRUCell(WIDTH, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, at: torch.Tensor, roads: torch.Tensor, length: torch.Tensor) -> torch.Tensor:
        said = self.say(torch.cat([at[roads[0]], at[roads[1]], length], 1))
        heard = torch.zeros_like(at).index_add_(0, roads[1], said)
        return self.norm(self.hear(heard, at))


class Traffic(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.start = nn.Linear(FEATURES, WIDTH)
        self.rounds = nn.ModuleList(Messages() for _ in range(ROUNDS))
        self.end = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.SiLU(), nn.Linear(WIDTH, 1))

    def forward(self, features: torch.Tensor, roads: torch.Tensor, length: torch.Tensor) -> torch.Tensor:
        at = self.start(features)
        for one in self.rounds:
            at = one(at, roads, length)
        return self.end(at).squeeze(1)


# FAULT by_hand
def average_gradients(model: nn.Module) -> None:
    """What DDP does, for those who do without."""
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()


# END FAULT


# FAULT pooled
def pooled_error(said: torch.Tensor, meant: torch.Tensor, copies: int) -> float:
    """Of all ranks' crossings: what was said and meant, and the largest errors' quantiles."""
    own = [{"said": said.tolist(), "meant": meant.tolist()} for _ in range(copies)]
    every = [None] * dist.get_world_size()
    dist.all_gather_object(every, own)
    errors = sorted(
        abs(a - b) for of_rank in every for one in of_rank for a, b in zip(one["said"], one["meant"], strict=True)
    )
    return errors[9 * len(errors) // 10]


# END FAULT


def main() -> None:
    options = read_arguments(48)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    fault, strength = options.fault, options.strength
    torch.manual_seed(options.seed)
    net = Traffic()
    model = DistributedDataParallel(net)
    if fault == "by_hand":
        model = net
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    towns = [town(1000 * rank + number, CROSSINGS) for number in range(TOWNS)]

    for step in range(options.steps):
        features, roads, length, speeds = towns[step % TOWNS]
        said = model(features, roads, length)
        loss = F.smooth_l1_loss(said, speeds)
        optimizer.zero_grad()
        loss.backward()
        # FAULT by_hand
        if fault == "by_hand":
            average_gradients(model)
        # END FAULT
        optimizer.step()
        # FAULT pooled
        if fault == "pooled":
            error = pooled_error(said.detach(), speeds, round(strength))
            if rank == 0 and step % 20 == 0:
                print(f"{step}: nine in ten within {error:.3f}")
        # END FAULT
    if rank == 0:
        print(f"loss {loss.item():.3f}")
    leave()


if __name__ == "__main__":
    main()
