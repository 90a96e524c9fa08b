"""What is drawn outside the ESTs' turns is drawn equally on all ranks, wherever the ESTs run."""

import random

import numpy as np
import pytest
import torch

from esprof.elastic import Assignment
from tests.cases.elastic_job import bits, bits_of_ranks, on_threads, small_trainer

PARTS = [[[0, 1], [2, 3]], [[3], [0, 1, 2]], [[], [0, 1, 2, 3]]]


class NoisySgd(torch.optim.SGD):
    """Stochastic gradient Langevin dynamics, about."""

    @torch.no_grad()
    def step(self, closure=None):
        super().step(closure)
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.add_(0.01 * random.random() * torch.randn_like(parameter))


def noisy(parameters):
    return NoisySgd(parameters, lr=0.1)


def draws():
    return random.random(), np.random.rand(), torch.rand(()).item()


@pytest.mark.parametrize("parts", PARTS)
def test_a_noisy_optimizer_does_the_same_on_all_ranks(parts):
    (static,) = bits_of_ranks([range(4)], optimizer=noisy)
    assert bits_of_ranks(parts, optimizer=noisy) == [static] * 2


def test_a_noisy_optimizer_goes_on_from_a_checkpoint(tmp_path):
    whole = bits(small_trainer(optimizer=noisy), 5)
    first = small_trainer(optimizer=noisy, folder=tmp_path)
    seen = bits(first, 2)
    first.save()
    assert seen + bits(small_trainer(optimizer=noisy, folder=tmp_path), 3) == whole


def drawn(trainer, steps):
    found = [draws()]
    for _ in range(steps):
        trainer.step()
        found.append(draws())
    return found


@pytest.mark.parametrize("parts", PARTS)
def test_what_a_script_draws_between_steps_does_not_depend_on_the_assignment(parts):
    def body(transport):
        return drawn(small_trainer(transport=transport, assignment=Assignment.of(parts)), 3)

    static = drawn(small_trainer(), 3)
    assert len(set(static)) == 4
    assert on_threads(2, body) == [static, static]


def test_what_a_script_draws_between_steps_goes_on_from_a_checkpoint(tmp_path):
    whole = drawn(small_trainer(), 4)
    first = small_trainer(folder=tmp_path)
    found = drawn(first, 2)
    first.save()
    assert found[:-1] + drawn(small_trainer(folder=tmp_path), 2) == whole


def test_what_a_script_draws_changes_no_bits():
    untouched = bits(small_trainer(optimizer=noisy), 3)
    trainer, found = small_trainer(optimizer=noisy), []
    for _ in range(3):
        draws()
        found += bits(trainer, 1)
    assert found == untouched
