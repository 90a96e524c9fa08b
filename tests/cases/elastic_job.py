"""A small elastic job with every option of ElasticTrainer open, for tests of stopping and resuming."""

import copy
import os
import random
import signal
import time
from dataclasses import fields

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from esprof.core.errors import EsprofError
from esprof.elastic import Assignment, Checkpoint, Data, Drain, ElasticTrainer, Gradients, Placement, Proof, Updates
from tests.cases.elastic import Samples, loss_fn, on_threads, state_hash

N_EST = 4


class Net(nn.Module):
    """Its BatchNorm and dropout show when a buffer or a generator was forgotten."""

    def __init__(self, classes):
        super().__init__()
        self.conv = nn.Conv2d(1, 3, 3)
        self.norm = nn.BatchNorm2d(3)
        self.drop = nn.Dropout(0.3)
        self.head = nn.Linear(3 * 36, classes)

    def forward(self, images):
        return self.head(self.drop(torch.relu(self.norm(self.conv(images)))).flatten(1))


class Tempered(Net):
    """Its temperature is neither a parameter nor a buffer."""

    def __init__(self):
        super().__init__(5)
        self.temperature = 1.0

    def forward(self, images):
        return super().forward(images) / self.temperature


def adamw(parameters):
    return torch.optim.AdamW(parameters, lr=1e-2)


GROUPS = {
    "data": Data,
    "updates": Updates,
    "gradients": Gradients,
    "checkpoint": Checkpoint,
    "proof": Proof,
    "drain": Drain,
    "placement": Placement,
}


def grouped(options):
    """ElasticTrainer's options from flat keywords: tests, and JSON for other processes, name only those that matter."""
    rest = dict(options)
    for name, group in GROUPS.items():
        asked = {field.name: rest.pop(field.name) for field in fields(group) if field.name in rest}
        if asked:
            rest[name] = group(**asked)
    return rest


def small_trainer(
    n_est=N_EST,
    *,
    loss=loss_fn,
    model=None,
    optimizer=adamw,
    scheduler=None,
    classes=5,
    threads=1,
    samples=None,
    **options,
):
    """`model` and `scheduler` make one, of nothing and of the optimizer; `options` are ElasticTrainer's, flat."""
    torch.manual_seed(0)
    model = model() if model else Net(classes)
    made = optimizer(model.parameters())
    options = {"batch_size": 2, "clip_norm": 1.0, "bucket_mb": 0.001, "threads": threads} | options
    options["dataset"] = samples or Samples(61, tokens=False)
    options["scheduler"] = scheduler and scheduler(made)
    return ElasticTrainer(model, made, loss, n_est=n_est, **grouped(options))


def bits(trainer, steps):
    """(losses, state hash after the step) of each of the next `steps`."""
    return [(trainer.step().losses, state_hash(trainer.state.model, trainer.state.optimizers[0])) for _ in range(steps)]


def bits_of_ranks(parts, steps=3, **options):
    """The same for each rank of a job with the assignment `parts`; ranks are threads."""

    def body(transport):
        return bits(small_trainer(transport=transport, assignment=Assignment.of(parts), **options), steps)

    return on_threads(len(parts), body)


def averaged(until, folder, lone=None):
    """Train to a step, with an average of the weights, and save; returns what the average is, or the error. The rank `lone`
    does not update it."""
    torch.manual_seed(0)
    model = Net(5)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    try:
        trainer = small_trainer(model=lambda: model, state={"average": average}, folder=folder)
        while trainer.next_step < until:
            trainer.step()
            if dist.get_rank() != lone:
                average.update_parameters(model)
        trainer.save()
    except EsprofError as error:
        return str(error)
    return state_hash(average, trainer.state.optimizers[0])


def holding(until, folder, ests=None):
    """Train to a step, and save to the folder, if there is one. Returns the bits of each step.

    The script holds an average of the weights, from which its loss distils, and a weight of that, drawn anew every fifth
    call of the loss.
    """
    torch.manual_seed(0)
    model, calls, weight, generator = Net(5), 0, 1.0, random.Random(0)
    average = copy.deepcopy(model).requires_grad_(False)

    def loss(model, batch):
        nonlocal calls, weight
        calls += 1
        if calls % 5 == 0:
            weight = generator.random()
        return loss_fn(model, batch) + weight * F.mse_loss(model(batch[0]), average(batch[0]))

    @torch.no_grad()
    def follow(result):
        for mine, its in zip(average.parameters(), model.parameters(), strict=True):
            mine.lerp_(its, 0.1)

    options = {"assignment": Assignment.of(ests)} if ests else {}
    trainer = small_trainer(
        model=lambda: model, loss=loss, after_step=follow, **options, **({"folder": folder} if folder else {})
    )
    found = [str(one) for one in bits(trainer, until - trainer.next_step)]
    if folder:
        trainer.save()
    trainer.close()
    return found


def trained(until, ests=None, options=None, *, save=False, threads=None, die_at=None, pause_s=0.0, edited_at=None):
    """Train on this rank to a step, from the last checkpoint if there is one; returns what befell it.

    `ests` are those of each rank, `threads` says how many a rank has if not one. Rank 1 kills itself in the midst of the
    step `die_at`. Each step is followed by a pause. Rank 0 alone changes a weight just before the step `edited_at`.
    """
    rank = dist.get_rank() if dist.is_initialized() else 0
    torch.manual_seed(time.time_ns())  # Nothing may depend on what the process starts from.
    options = (options or {}) | ({"assignment": Assignment.of(ests)} if ests else {})

    def loss(model, batch):
        if rank == 1 and die_at == trainer.next_step:
            os.kill(os.getpid(), signal.SIGKILL)
        if edited_at == trainer.next_step:
            time.sleep(0.3)  # So that the checkpoint before this step is written before the step ends.
        return loss_fn(model, batch)

    try:
        trainer = small_trainer(loss=loss, threads=(threads or {}).get(rank, 1), **options)
        first = trainer.next_step
        while trainer.next_step < until:
            if rank == 0 and edited_at == trainer.next_step:
                trainer.state.model.head.weight.data.mul_(2)
            trainer.step()
            time.sleep(pause_s)
        if rank == 0 and edited_at == until:
            trainer.state.model.head.weight.data.mul_(2)
        if save:
            trainer.save()
        trainer.flush()
    except EsprofError as error:
        return {"rank": rank, "error": str(error)}
    return {"rank": rank, "first": first}
