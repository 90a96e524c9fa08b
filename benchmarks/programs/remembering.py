"""Programs whose loss or model remembers its calls, which matters late: each process would remember others."""

import copy

import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.programs.training import LATE, MANY, Training, late, mlp
from tests.cases.programs.script import mean_loss

CALLS = 0


@late
def counter_in_a_global():
    def loss(model, batch):
        global CALLS
        CALLS += 1
        return mean_loss(model, batch) * (1.0 if CALLS < MANY else 0.5)

    return Training(loss=loss)


@late
def counter_in_a_closure():
    seen = [0]

    def loss(model, batch):
        seen[0] += len(batch[0])
        return mean_loss(model, batch) * (1.0 if seen[0] < 8 * MANY else 0.3)

    return Training(loss=loss)


class Smoothed:
    def __init__(self):
        self.calls = 0

    def __call__(self, model, batch):
        self.calls += 1
        return F.cross_entropy(model(batch[0]), batch[1], label_smoothing=0.0 if self.calls < MANY else 0.2)


@late
def counter_of_the_loss_object():
    return Training(loss=Smoothed())


class CountedByClass(nn.Module):
    calls = 0

    def __init__(self):
        super().__init__()
        self.layers = mlp()

    def forward(self, points):
        CountedByClass.calls += 1
        return self.layers(points) * (1.0 if CountedByClass.calls < MANY else 0.9)


@late
def counter_of_the_class():
    return Training(CountedByClass())


@late
def cache_of_features():
    cache = {}

    def loss(model, batch):
        points, kinds = batch
        if len(cache) > MANY:
            points = points + 0.05 * cache[len(cache) % MANY].mean()
        cache[len(cache)] = points.detach()
        return F.cross_entropy(model(points), kinds)

    return Training(loss=loss)


@late
def memory_bank():
    """A list of past outputs, with which new ones are compared."""
    bank = []

    def loss(model, batch):
        said = model(batch[0])
        found = F.cross_entropy(said, batch[1])
        if len(bank) >= MANY:
            found = found + 0.1 * F.mse_loss(said.mean(dim=0), torch.stack(bank[-8:]).mean(dim=0))
        bank.append(said.detach().mean(dim=0))
        return found

    return Training(loss=loss)


class Centred(nn.Module):
    """Subtracts a running mean, which is no buffer, from its 60th call on."""

    def __init__(self):
        super().__init__()
        self.layers, self.mean, self.calls = mlp(), torch.zeros(16), 0

    def forward(self, points):
        self.calls += 1
        self.mean = 0.9 * self.mean + 0.1 * points.detach().mean(dim=0)
        return self.layers(points - self.mean if self.calls > LATE else points)


@late
def running_mean_of_the_model():
    return Training(Centred())


@late
def class_weights_renewed_by_calls():
    """From the labels that the process has seen."""
    counts, weights, calls = torch.ones(8), torch.ones(8), 0

    def loss(model, batch):
        nonlocal weights, calls
        calls += 1
        counts.add_(torch.bincount(batch[1], minlength=8))
        if calls % MANY == 0:
            weights = counts.sum() / (8 * counts)
        return F.cross_entropy(model(batch[0]), batch[1], weight=weights)

    return Training(loss=loss)


@late
def teacher_renewed_by_the_loss():
    model = mlp()
    teacher, calls = copy.deepcopy(model).requires_grad_(False), 0

    def loss(model, batch):
        nonlocal calls
        calls += 1
        if calls % MANY == 0:
            teacher.load_state_dict(model.state_dict())
        return mean_loss(model, batch) + F.mse_loss(model(batch[0]), teacher(batch[0]))

    return Training(model, loss)


@late
def dropout_by_calls():
    model, calls = mlp(nn.Dropout(0.1)), 0

    def loss(model, batch):
        nonlocal calls
        calls += 1
        model[1].p = 0.1 if calls < MANY else 0.4
        return mean_loss(model, batch)

    return Training(model, loss)


@late
def generator_of_the_loss():
    noise, is_late = torch.Generator().manual_seed(5), False

    def loss(model, batch):
        points = batch[0] + 0.1 * torch.randn(batch[0].shape, generator=noise) if is_late else batch[0]
        return F.cross_entropy(model(points), batch[1])

    def between(trainer, step):
        nonlocal is_late
        is_late = step >= LATE

    return Training(loss=loss, between=between)


@late
def layer_unfrozen_by_calls():
    model, seen = mlp(), 0
    model[0].bias.requires_grad_(False)

    def loss(model, batch):
        nonlocal seen
        seen += 1
        return mean_loss(model, batch)

    def between(trainer, step):
        if seen > LATE:
            model[0].bias.requires_grad_(True)

    return Training(model, loss, between=between)
