"""Programs that come to depend on the rank, the process, the number of processes or the time."""

import copy
import os
import time

import torch
import torch.distributed as dist
from torch import nn

from benchmarks.programs.training import LATE, MANY, Changed, Points, Training, late, mlp
from tests.cases.programs.script import mean_loss, rank

# What one rank does.


def _on_rank_0(change):
    """Between two steps rank 0 alone calls `change(model, optimizer)`, after the step LATE."""

    def between(trainer, step):
        if step == LATE and rank() == 0:
            change(trainer.state.model, trainer.state.optimizers[0])

    return between


@late
def weights_zeroed_on_one_rank():
    def zero(model, optimizer):
        weight = model[0].weight.data
        weight[weight.abs() < 0.05] = 0

    return Training(between=_on_rank_0(zero))


@late
def learning_rate_on_one_rank():
    return Training(between=_on_rank_0(lambda model, optimizer: optimizer.param_groups[0].update(lr=0.01)))


@late
def evaluation_mode_on_one_rank():
    return Training(mlp(nn.Dropout(0.3)), between=_on_rank_0(lambda model, optimizer: model.eval()))


@late
def momentum_cleared_on_one_rank():
    def clear(model, optimizer):
        for state in optimizer.state.values():
            state["momentum_buffer"].data.zero_()

    return Training(between=_on_rank_0(clear))


@late
def layer_frozen_on_one_rank():
    return Training(between=_on_rank_0(lambda model, optimizer: model[0].requires_grad_(False)))


@late
def average_on_one_rank():
    """All ranks train towards an average that rank 0 alone renews."""
    model, strength = mlp(), 0.0
    average = copy.deepcopy(model).requires_grad_(False)

    def loss(model, batch):
        pairs = zip(model.parameters(), average.parameters(), strict=True)
        return mean_loss(model, batch) + strength * sum((mine - its).square().sum() for mine, its in pairs)

    @torch.no_grad()
    def between(trainer, step):
        nonlocal strength
        for old, new in zip(average.parameters(), model.parameters(), strict=True):
            if rank() == 0:
                old.lerp_(new, 0.1)
        strength = 0.0 if step < LATE else 0.01

    return Training(model, loss, between=between)


def _watched(act):
    """A training in which each rank calls `act(trainer, step, loss)`, with the last loss of its ESTs, after each step."""
    last = 9.0

    def loss(model, batch):
        nonlocal last
        found = mean_loss(model, batch)
        last = float(found.detach())
        return found

    return Training(loss=loss, between=lambda trainer, step: act(trainer, step, last))


@late
def best_weights_by_own_loss():
    best, kept = 9.0, {}

    def act(trainer, step, loss):
        nonlocal best, kept
        if loss < best:
            best, kept = loss, copy.deepcopy(trainer.state.model.state_dict())
        if step == LATE:
            trainer.state.model.load_state_dict(kept)

    return _watched(act)


@late
def learning_rate_by_own_loss():
    def act(trainer, step, loss):
        if step > LATE and loss < 0.6:
            trainer.state.optimizers[0].param_groups[0]["lr"] *= 0.9

    return _watched(act)


# What depends on the rank, the process, the number of processes or the time.


def _scaled(scale):
    """A training whose loss is multiplied by `scale()` after the step LATE."""
    is_late = False

    def loss(model, batch):
        return mean_loss(model, batch) * (scale() if is_late else 1)

    def between(trainer, step):
        nonlocal is_late
        is_late = step >= LATE

    return Training(loss=loss, between=between)


@late
def loss_by_rank():
    return _scaled(lambda: 1 + 0.01 * rank())


@late
def loss_by_environment():
    return _scaled(lambda: 1 + 0.1 * int(os.environ["LOCAL_RANK"]))


@late
def loss_by_time():
    return _scaled(lambda: 1 + 1e-3 * (time.perf_counter() % 1))


@late
def loss_by_number_of_processes():
    share = 1.0

    def between(trainer, step):
        nonlocal share
        if step == LATE:
            share = 2 / dist.get_world_size()

    return Training(loss=lambda model, batch: share * mean_loss(model, batch), between=between)


@late
def learning_rate_by_number_of_processes():
    def between(trainer, step):
        if step == LATE:
            trainer.state.optimizers[0].param_groups[0]["lr"] = 0.05 * dist.get_world_size()

    return Training(between=between)


# What datasets do.


@late
def level_by_rank():
    harder = Changed(lambda data, index, point: point + data.level * torch.randn(16), level=0.0)

    def between(trainer, step):
        if step == LATE:
            harder.level = 0.1 * (1 + rank())

    return Training(data=harder, between=between)


@late
def samples_by_process():
    shifted = Changed(lambda data, index, point: point + data.is_late * 1e-4 * os.getpid(), is_late=False)

    def between(trainer, step):
        shifted.is_late = step >= LATE

    return Training(data=shifted, between=between)


class CountedSamples(Points):
    def __init__(self):
        super().__init__()
        self.loaded = 0

    def __getitem__(self, index):
        self.loaded += 1
        point, kind = super().__getitem__(index)
        return point * (1.0 if self.loaded < 8 * MANY else 0.9), kind


@late
def counter_of_the_dataset():
    return Training(data=CountedSamples())


class CentredSamples(Points):
    def __init__(self):
        super().__init__()
        self.mean, self.loaded = torch.zeros(16), 0

    def __getitem__(self, index):
        point, kind = super().__getitem__(index)
        self.mean, self.loaded = 0.99 * self.mean + 0.01 * point, self.loaded + 1
        return point - (self.mean if self.loaded > 8 * LATE else 0), kind


@late
def running_mean_in_loader_workers():
    return Training(data=CentredSamples(), batches={"num_workers": 2})


@late
def cache_of_augmented_samples():
    """It begins late."""

    def cached(data, index, point):
        if index in data.cache:
            return data.cache[index]
        noisy = point + 0.1 * torch.randn(16)
        return data.cache.setdefault(index, noisy) if data.is_late else noisy

    points = Changed(cached, cache={}, is_late=False)

    def between(trainer, step):
        points.is_late = step >= LATE

    return Training(data=points, between=between)
