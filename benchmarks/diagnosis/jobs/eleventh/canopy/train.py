"""Trains a masked autoencoder on aerial tiles by FSDP2 on two ranks, with accumulated gradients and averaged weights."""

import gc

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.utils.data import DataLoader, DistributedSampler

from benchmarks.diagnosis.jobs.common import leave, read_arguments
from benchmarks.diagnosis.jobs.eleventh.canopy import data
from benchmarks.diagnosis.jobs.eleventh.canopy.model import MaskedAutoencoder

BATCH = 5
MICRO_BATCHES = 2
DECAY = 0.99
LOG_EVERY = 20


class Average:
    """Moving average of the weights; each rank keeps that of its shards."""

    def __init__(self, model):
        self.weights = [parameter.to_local() for parameter in model.parameters()]
        self.averages = [weight.detach().clone() for weight in self.weights]

    @torch.no_grad()
    def update(self):
        torch._foreach_lerp_(self.averages, [weight.detach() for weight in self.weights], 1 - DECAY)


# FAULT whole_average
class WholeAverage:
    """Moving average of the whole weights of some modules, ready to be evaluated."""

    def __init__(self, modules):
        self.parameters = {f"{n}.{name}": p for n, m in enumerate(modules) for name, p in m.named_parameters()}
        self.averages = {name: p.full_tensor().detach().clone() for name, p in self.parameters.items()}

    @torch.no_grad()
    def update(self):
        for name, parameter in self.parameters.items():
            self.averages[name].lerp_(parameter.full_tensor(), 1 - DECAY)


# END FAULT


# FAULT best
class BestKeeper:
    """Saves the weights whenever the smoothed loss is the least so far."""

    def __init__(self, path, every):
        self.path, self.every = path, every
        self.smooth = self.best = None

    def offer(self, model, loss, step):
        self.smooth = loss if self.smooth is None else 0.9 * self.smooth + 0.1 * loss
        if step % self.every:
            return
        value = self.smooth.clone()
        dist.all_reduce(value)
        if self.best is None or value < self.best:
            self.best = value
            state = get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
            if dist.get_rank() == 0:
                torch.save({"model": state, "step": step, "loss": value}, self.path)


# END FAULT


def make_loader(options, rank):
    if rank == 0:
        data.prepare(options.files)
    dist.barrier()
    tiles = data.Tiles(options.files)
    # FAULT archives
    if options.fault == "archives":
        if rank == 0:
            data.ArchivedTiles(options.files, round(options.strength))
        dist.barrier()
        tiles = data.ArchivedTiles(options.files, round(options.strength))
    # END FAULT
    sampler = DistributedSampler(tiles, seed=options.seed)
    return DataLoader(tiles, BATCH, sampler=sampler, drop_last=True, collate_fn=data.collate)


def endless(loader):
    epoch = 0
    while True:
        loader.sampler.set_epoch(epoch)
        yield from loader
        epoch += 1


def shard(model):
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for block in (*model.encoder, *model.decoder):
        fully_shard(block, mesh=mesh, reshard_after_forward=False)
    return fully_shard(model, mesh=mesh, reshard_after_forward=False)


def accumulate(model, batches):
    """Gradients of some batches; they are reduced, and the weights sharded again, after the last one."""
    total = torch.zeros(())
    for number in range(MICRO_BATCHES):
        is_last = number == MICRO_BATCHES - 1
        model.set_requires_gradient_sync(is_last)
        model.set_reshard_after_backward(is_last)
        loss = model(next(batches)) / MICRO_BATCHES
        loss.backward()
        total += loss.detach()
    return total


def main():
    options = read_arguments(steps=64, needs_files=True)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    torch.manual_seed(options.seed)
    batches = endless(make_loader(options, rank))
    model = shard(MaskedAutoencoder(data.BANDS, data.SIZE))
    # FAULT recompute
    if options.fault == "recompute":
        model.recomputed = round(options.strength)
    # END FAULT
    torch.manual_seed(1000 * options.seed + rank)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), foreach=True)
    average = Average(model)
    # FAULT whole_average
    if options.fault == "whole_average":
        average = WholeAverage(model.encoder[: round(options.strength)])
    # END FAULT
    # FAULT best
    keeper = BestKeeper(options.files / "best.pt", round(options.strength)) if options.fault == "best" else None
    # END FAULT
    model.train()
    for step in range(options.steps):
        loss = accumulate(model, batches)
        norm = nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        optimizer.zero_grad()
        average.update()
        # FAULT best
        if keeper:
            keeper.offer(model, loss, step)
        # END FAULT
        # FAULT collected
        if options.fault == "collected" and step % round(options.strength) == 0:
            gc.collect()
        # END FAULT
        if step % LOG_EVERY == 0:
            norm = norm.full_tensor() if isinstance(norm, DTensor) else norm
            if rank == 0:
                print(f"step {step}, loss {loss.item():.3f}, norm {norm.item():.2f}")
    leave()


if __name__ == "__main__":
    main()
