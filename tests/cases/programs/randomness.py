"""Where random numbers, and other things that nobody can repeat, come from."""

import os
import random
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from tests.cases.programs.script import Script, either, equal, like, mean_loss, net, refused


class Noisy(nn.Module):
    """Scales its input by what `draw` returns, at each call."""

    def __init__(self, draw):
        super().__init__()
        self.draw = draw

    def forward(self, x):
        return x * (0.5 + self.draw())


def _scaled(number):
    """The loss, times 1 to 1.96 by a whole number."""
    return lambda model, batch: mean_loss(model, batch) * (1 + number(batch) % 97 / 100)


# Generators that each EST has of its own.


@equal
def dropout():
    """nn.Dropout."""
    return Script(net(nn.Dropout(0.3)))


@like("dropout")
@equal
def depth_by_torch():
    """Stochastic depth by torch.rand."""
    return Script(net(Noisy(lambda: torch.rand(()))))


@like("depth_by_numpy")
@equal
def depth_by_random():
    """Stochastic depth by random.random."""
    return Script(net(Noisy(random.random)))


@equal
def depth_by_numpy():
    """Stochastic depth by numpy.random.rand."""
    return Script(net(Noisy(np.random.rand)))


@like("depth_by_numpy")
@equal
def mixup():
    """Mixes the batch with its reverse, by a weight that numpy draws."""

    def loss(model, batch):
        points, kinds = batch
        weight = float(np.random.beta(0.4, 0.4))
        out = model(weight * points + (1 - weight) * points.flip(0))
        return weight * F.cross_entropy(out, kinds) + (1 - weight) * F.cross_entropy(out, kinds.flip(0))

    return Script(loss=loss)


@equal
def seed_in_the_loss():
    """The loss seeds torch itself, the same at each call."""

    def loss(model, batch):
        torch.manual_seed(1)
        return mean_loss(model, batch)

    return Script(net(nn.Dropout(0.3)), loss)


@equal
def forked_generator():
    """Noise from a generator that is put back afterwards."""

    def loss(model, batch):
        points, kinds = batch
        with torch.random.fork_rng():
            torch.manual_seed(int(kinds.sum()))
            points = points + 0.1 * torch.randn_like(points)
        return F.cross_entropy(model(points), kinds)

    return Script(net(nn.Dropout(0.3)), loss)


@equal
def draws_between_steps():
    """The script draws from all generators between two steps, the same on all ranks, and noise lands in the weights."""

    def between(trainer, step):
        with torch.no_grad():
            noise = torch.randn(()) + random.random() + np.random.rand()
            next(trainer.state.model.parameters()).add_(0.01 * noise)

    return Script(net(nn.Dropout(0.3)), between=between)


@like("seed_in_the_loss")
@equal
def ready_generator_for_a_constant():
    """A new generator at each call, always with the same seed."""
    return Script(net(Noisy(lambda: torch.rand((), generator=torch.Generator().manual_seed(3)))))


# Generators that nobody switches from one EST to the next.


@like("numpy_generator_of_a_module")
@either
def torch_generator_of_a_module():
    """A module draws from a torch.Generator of its own."""
    generator = torch.Generator().manual_seed(0)
    noisy = Noisy(lambda: torch.rand((), generator=noisy.generator))
    noisy.generator = generator
    return Script(net(noisy))


@like("numpy_generator_of_a_module")
@either
def random_generator_of_a_module():
    """A module draws from a random.Random of its own."""
    noisy = Noisy(lambda: noisy.generator.random())
    noisy.generator = random.Random(0)
    return Script(net(noisy))


@either
def numpy_generator_of_a_module():
    """A module draws from a numpy Generator of its own."""
    noisy = Noisy(lambda: noisy.generator.random())
    noisy.generator = np.random.default_rng(0)
    return Script(net(noisy))


@equal
def generator_of_the_loss():
    """Mixup's weight is drawn from a generator that only the loss function holds."""
    generator = np.random.default_rng(0)
    return Script(loss=lambda model, batch: mean_loss(model, batch) * (0.5 + generator.random()))


# What nobody can repeat.


@refused
def noise_of_the_system():
    """random.SystemRandom, which has no seed."""
    return Script(net(Noisy(random.SystemRandom().random)))


@like("noise_of_the_system")
@refused
def seed_of_the_system():
    """torch.seed(), in the loss."""

    def loss(model, batch):
        torch.seed()
        return mean_loss(model, batch)

    return Script(net(nn.Dropout(0.3)), loss)


@refused
def clock():
    """The time of day in the loss."""
    return Script(loss=_scaled(lambda batch: time.time_ns() // 1000))


@like("address")
@refused
def process_number():
    """os.getpid() in the loss."""
    return Script(loss=_scaled(lambda batch: os.getpid()))


@refused
def address():
    """id() of a tensor in the loss."""
    return Script(loss=_scaled(lambda batch: id(batch[0]) // 16))
