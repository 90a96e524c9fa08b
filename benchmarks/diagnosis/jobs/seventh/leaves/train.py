"""Tells kinds of leaves from few labels: a mean of past weights teaches on the pictures without one (mean teacher), by DDP.

torchrun --nproc-per-node 2 train.py --files /tmp/leaves
"""

import os

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from data import KINDS, Leaves
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import BatchSampler, DataLoader, DistributedSampler

from benchmarks.diagnosis.jobs.common import leave, read_arguments

BATCH = 36
LABELLED = 12
"""Of a batch; the kinds of the others are not looked at."""
HELD_OUT = 128


def network():
    layers = []
    for before, after in ((3, 24), (24, 32), (32, 48)):
        layers += [nn.Conv2d(before, after, 3, padding=1), nn.GroupNorm(8, after), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Conv2d(48, 48, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(48 * 16, KINDS))


def varied(pictures):
    """Mirrored, and with noise."""
    return pictures.flip(-1) + 0.1 * torch.randn_like(pictures)


# FAULT stretch
def stretched(pictures, many):
    """The first pictures with each colour spread between its darkest and brightest parts."""
    done = pictures.numpy().astype(np.float64)
    for picture in done[:many]:
        for colour in picture:
            low, high = np.percentile(colour, [2, 98])
            colour[:] = np.clip((colour - low) / max(high - low, 1e-3), 0, 1) * 2 - 1
    return torch.from_numpy(np.ascontiguousarray(done)).float()


# END FAULT


# FAULT protocol
def write_down(file, scores, many):
    """A line for each picture, on the disk before the next."""
    for row in scores[:many]:
        file.write(",".join(f"{score.item():.4f}" for score in row) + "\n")
        file.flush()
        os.fsync(file.fileno())


# END FAULT


# FAULT validate
def accuracy(model, pictures, kinds):
    with torch.no_grad():
        return (model(pictures).argmax(dim=1) == kinds).float().mean().item()


# END FAULT


def main():
    options = read_arguments(steps=70, needs_files=True)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(options.seed)
    torch.set_num_threads(1)
    leaves = Leaves()
    sampler = DistributedSampler(leaves, seed=options.seed)
    batches = BatchSampler(sampler, BATCH, drop_last=True)
    loader = DataLoader(leaves, sampler=batches, batch_size=None, num_workers=1, persistent_workers=True)
    model = DistributedDataParallel(network())
    teacher = AveragedModel(model.module, multi_avg_fn=get_ema_multi_avg_fn(0.99))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, fused=True)
    # FAULT threads
    if options.fault == "threads":
        torch.set_num_threads(round(options.strength))
    # END FAULT
    protocol = (options.files / f"protocol-{rank}.csv").open("w")
    held_out = leaves[range(HELD_OUT)]
    done = epoch = 0
    while done < options.steps:
        sampler.set_epoch(epoch)
        for pictures, kinds in loader:
            # FAULT stretch
            if options.fault == "stretch":
                pictures = stretched(pictures, round(options.strength))
            # END FAULT
            optimizer.zero_grad()
            scores = model(varied(pictures))
            # FAULT taught_back
            if options.fault == "taught_back":
                taught = teacher(pictures)
            # END FAULT
            else:
                with torch.no_grad():
                    taught = teacher(pictures)
            loss = F.cross_entropy(scores[:LABELLED], kinds[:LABELLED])
            loss = loss + F.mse_loss(scores.softmax(dim=1), taught.softmax(dim=1))
            loss.backward()
            optimizer.step()
            teacher.update_parameters(model.module)
            # FAULT protocol
            if options.fault == "protocol" and rank == options.rank:
                write_down(protocol, scores, round(options.strength))
            # END FAULT
            # FAULT validate
            if options.fault == "validate" and done % round(options.strength) == 0:
                accuracy(teacher, *held_out)
            # END FAULT
            done += 1
            if done == options.steps:
                break
        epoch += 1
    if rank == 0:
        print(f"{done} steps, loss {loss.item():.3f}")
    leave()


if __name__ == "__main__":
    main()
