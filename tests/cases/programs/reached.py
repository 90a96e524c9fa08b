"""State outside of the model: teachers, averages, counters, queues and generators that closures and globals hold."""

import copy
import random
from functools import lru_cache

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from torch.optim import SGD

from tests.cases.programs.script import WIDTH, Points, Script, equal, like, mean_loss, net, refused

# Modules that the loss holds.


def _distilled(teacher, **options):
    def loss(model, batch):
        with torch.no_grad():
            aim = teacher(batch[0])
        return mean_loss(model, batch) + F.mse_loss(model(batch[0]), aim)

    return Script(loss=loss, **options)


@equal
def teacher_with_batch_norm():
    """A teacher in training mode, whose statistics move, and which is evaluated with them after step 2."""
    teacher = net(nn.BatchNorm1d(WIDTH))

    def between(trainer, step):
        teacher.train(step < 2)

    return _distilled(teacher, between=between)


@equal
def teacher_with_dropout():
    """A teacher in training mode with dropout."""
    return _distilled(net(nn.Dropout(0.3)))


@equal
def average_that_teaches():
    """An average of weights and statistics, updated after each step, from which the model is distilled."""
    model = net(nn.BatchNorm1d(WIDTH))
    teacher = copy.deepcopy(model).requires_grad_(False)

    def loss(model, batch):
        return mean_loss(model, batch) + F.mse_loss(model(batch[0]), teacher(batch[0]))

    def between(trainer, step):
        with torch.no_grad():
            for mine, its in zip(teacher.state_dict().values(), model.state_dict().values(), strict=True):
                mine.copy_(0.9 * mine + 0.1 * its)

    return Script(model, loss, between=between)


# Numbers, tensors and lists that the loss changes.

CALLS, WEIGHT = 0, 1.0


@equal
def weight_renewed_in_a_global():
    """A loss weight that is renewed every fifth call, in globals."""
    globals().update(CALLS=0, WEIGHT=1.0)

    def loss(model, batch):
        global CALLS, WEIGHT
        value = mean_loss(model, batch)
        CALLS += 1
        if CALLS % 5 == 0:
            WEIGHT = 1 / (1 + value.item())
        return WEIGHT * value

    return Script(loss=loss)


@equal
def weight_renewed_in_a_closure():
    """The same by nonlocal."""
    calls, weight = 0, 1.0

    def loss(model, batch):
        nonlocal calls, weight
        value = mean_loss(model, batch)
        calls += 1
        if calls % 5 == 0:
            weight = 1 / (1 + value.item())
        return weight * value

    return Script(loss=loss)


@equal
def weight_renewed_in_an_object():
    """The same in attributes of a loss object that keeps the last values, and is held by a method."""

    class Balanced:
        def __init__(self):
            self.seen, self.weight = [], torch.ones(())

        def loss(self, model, batch):
            value = mean_loss(model, batch)
            self.seen.append(value.item())
            if len(self.seen) == 5:
                self.weight = torch.tensor(1 / (1 + sum(self.seen)))
                self.seen.clear()
            return self.weight * value

    return Script(loss=Balanced().loss)


@equal
def weight_renewed_in_place():
    """The same in a tensor that is written in place."""
    mean = torch.ones(1)

    def loss(model, batch):
        value = mean_loss(model, batch)
        mean.mul_(0.9).add_(0.1 * value.detach())
        return value / mean.squeeze()

    return Script(loss=loss)


@equal
def counter_of_the_loss_class():
    """A counter that all losses of a class share."""

    class Counted:
        calls = 0

        def __call__(self, model, batch):
            type(self).calls += 1
            return mean_loss(model, batch) * 0.95**self.calls

    return Script(loss=Counted())


@equal
def graph_kept_for_the_log():
    """A loss that leaves its parts, not detached, in a dict."""
    parts = {}

    def loss(model, batch):
        parts["whole"] = mean_loss(model, batch)
        parts["calls"] = parts.get("calls", 0) + 1
        return parts["whole"]

    return Script(loss=loss, between=lambda trainer, step: parts["whole"].item())


@refused
def object_renewed_by_the_loss():
    """An object that the loss makes anew every fifth call, and that nothing can copy."""

    class Weight:
        def __init__(self, value):
            self.value = value

    calls, weight = 0, Weight(1.0)

    def loss(model, batch):
        nonlocal calls, weight
        value = mean_loss(model, batch)
        calls += 1
        if calls % 5 == 0:
            weight = Weight(1 / (1 + value.item()))
        return weight.value * value

    return Script(loss=loss)


# Generators that the loss holds.


def _scaled_by(draw):
    return Script(loss=lambda model, batch: mean_loss(model, batch) * (0.5 + draw()))


@equal
def torch_generator_of_the_loss():
    """A torch.Generator in a closure."""
    generator = torch.Generator().manual_seed(0)
    return _scaled_by(lambda: torch.rand((), generator=generator))


@like("torch_generator_of_the_loss")
@equal
def random_generator_of_the_loss():
    """A random.Random in a closure."""
    return _scaled_by(random.Random(0).random)


@like("torch_generator_of_the_loss")
@equal
def numpy_generators_of_the_loss():
    """Two of NumPy's kinds in a closure."""
    new, old = np.random.default_rng(0), np.random.RandomState(0)
    return _scaled_by(lambda: new.random() + old.rand())


# Updates.


class Lookahead(SGD):
    """Pulls weights back to slow ones every second step; the slow ones are in no state_dict."""

    def __init__(self, parameters, **options):
        super().__init__(parameters, **options)
        self.slow = [parameter.detach().clone() for parameter in self.param_groups[0]["params"]]
        self.steps = 0

    @torch.no_grad()
    def step(self, closure=None):
        super().step(closure)
        self.steps += 1
        if self.steps % 2 == 0:
            for slow, fast in zip(self.slow, self.param_groups[0]["params"], strict=True):
                fast.copy_(slow.lerp_(fast, 0.5))


@equal
def lookahead():
    """Slow weights in an attribute of the optimizer."""
    return Script(optimizer=lambda model: Lookahead(model.parameters(), lr=0.1, momentum=0.9))


# Data.


class Levels(Points):
    """Points that grow with `by(level)`, of which loader processes have copies."""

    def __init__(self, by):
        self.by = by

    def __getitem__(self, index):
        point, kind = super().__getitem__(index)
        return point * self.by(), kind


@equal
def curriculum_in_a_closure():
    """A level that the script raises in a closure that loader processes hold."""
    level = [1.0]

    def between(trainer, step):
        level[0] = 1.0 + step / 4

    return Script(data=Levels(lambda: level[0]), between=between, batches={"num_workers": 1})


@refused
def cache_of_augmented_samples():
    """lru_cache on __getitem__ of samples with noise."""

    class Cached(Points):
        @lru_cache  # noqa: B019
        def __getitem__(self, index):
            point, kind = super().__getitem__(index)
            return point + 0.1 * torch.randn(WIDTH), kind

    return Script(data=Cached())
