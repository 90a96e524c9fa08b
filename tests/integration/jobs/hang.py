"""Training on gloo in which one rank leaves the others waiting, in one of the ways that `WAYS` names."""

import os
import signal
import sys
import time

import torch
import torch.distributed as dist
from torch import nn

BAD_STEP = 8


def wander() -> None:
    """Do anything but join the others."""
    time.sleep(600)


def save_checkpoint() -> None:
    time.sleep(float(sys.argv[2]))


def asleep(rank: int) -> None:
    if rank == 1:
        wander()
    dist.all_reduce(torch.ones(512))


def other_collective(rank: int) -> None:
    if rank == 1:
        dist.broadcast(torch.ones(7), src=0)
    else:
        dist.all_reduce(torch.ones(512))


def skips(rank: int) -> None:
    """One all-reduce of two is left out; the next is of another kind, and the last is waited in for ever."""
    if rank != 1:
        dist.all_reduce(torch.ones(512))
    dist.barrier()
    dist.all_reduce(torch.ones(512))


def leaves(rank: int) -> None:
    if rank == 1:
        sys.exit()
    dist.all_reduce(torch.ones(512))


def is_killed(rank: int) -> None:
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.all_reduce(torch.ones(512))


def stops(rank: int) -> None:
    if rank == 1:
        os.kill(os.getpid(), signal.SIGSTOP)
    dist.all_reduce(torch.ones(512))


def crosses(rank: int) -> None:
    """Each of two ranks enters first the group that the other enters last."""
    first, last = GROUPS if rank == 0 else reversed(GROUPS)
    dist.all_reduce(torch.ones(512), group=first)
    dist.all_reduce(torch.ones(512), group=last)


def checkpoint(rank: int) -> None:
    if rank == 0:
        save_checkpoint()
    dist.barrier()


def late_in_validation(rank: int) -> None:
    """Long after the step has become too long, in a pass without optimizer steps."""
    for _ in range(40):
        time.sleep(0.05)
        dist.all_reduce(torch.ones(16))
    asleep(rank)


WAYS = (asleep, other_collective, skips, leaves, is_killed, stops, crosses, checkpoint, late_in_validation)
GROUPS: list[dist.ProcessGroup] = []


def main() -> None:
    go_wrong = next(way for way in WAYS if way.__name__ == sys.argv[1])
    torch.manual_seed(0)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    GROUPS.extend(dist.new_group() for _ in range(2))
    model = nn.parallel.DistributedDataParallel(nn.Linear(64, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    for step in range(2 * BAD_STEP):
        optimizer.zero_grad()
        model(torch.ones(4, 64)).sum().backward()
        optimizer.step()
        if step == BAD_STEP:
            go_wrong(rank)
        elif step > BAD_STEP:
            time.sleep(0.3)  # The launcher looks once a second whether the job goes on.
    dist.destroy_process_group()
    time.sleep(0.5)  # gloo's threads need Python's lock once more, or PyTorch 2.13 may abort the process


if __name__ == "__main__":
    main()
