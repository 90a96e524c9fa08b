"""What one EST leaves behind for the next is found where a step is run a second time, and harmless things are left alone."""

import random
from collections import UserList

import numpy as np
import pytest
import torch

from esprof.core.errors import UsageError
from tests.cases.elastic import loss_fn
from tests.cases.elastic_job import Net, bits, bits_of_ranks, small_trainer


class Own(Net):
    """Scales its output by something of its own; `noise` draws it."""

    def __init__(self, noise):
        super().__init__(5)
        self.own = noise()

    def forward(self, images):
        return super().forward(images) * self.draw()


class OfTorch(Own):
    def __init__(self):
        super().__init__(lambda: torch.Generator().manual_seed(1))

    def draw(self):
        return torch.rand((), generator=self.own)


class OfPython(Own):
    def __init__(self):
        super().__init__(lambda: random.Random(1))

    def draw(self):
        return self.own.random()


class OfNumpy(Own):
    def __init__(self):
        super().__init__(lambda: np.random.default_rng(1))

    def draw(self):
        return self.own.random()


class Recurrent(Own):
    """Adds to what it has seen before."""

    def __init__(self):
        super().__init__(lambda: torch.zeros(()))

    def draw(self):
        return 1 + self.own

    def forward(self, images):
        out = super().forward(images)
        self.own = out.detach().mean()
        return out


class Hidden(Own):
    """Counts its calls where nobody searches for state."""

    def __init__(self):
        super().__init__(UserList)

    def draw(self):
        self.own.append(1)
        return len(self.own)


@pytest.mark.parametrize("model", [OfTorch, OfPython, OfNumpy, Recurrent])
def test_what_a_module_keeps_is_that_of_an_est(model):
    static = bits(small_trainer(model=model), 3)
    assert bits_of_ranks([[3], [0, 1, 2]], model=model) == [static] * 2


def test_what_a_module_hides_is_found_and_named():
    with pytest.raises(UsageError, match="the loss of EST 3 differed when step 0 was run a second time") as raised:
        small_trainer(model=Hidden).step()
    assert "changed since: model.own" in raised.value.reason


backward_calls = UserList()


class Kept(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        return x

    @staticmethod
    def backward(context, gradient):
        backward_calls.append(1)
        return gradient * len(backward_calls)


def test_what_a_backward_pass_keeps_is_found():
    with pytest.raises(UsageError, match=r"the gradient of head.bias of EST 3 differed"):
        small_trainer(loss=lambda model, batch: Kept.apply(loss_fn(model, batch))).step()


def test_what_shows_in_the_second_step_alone_is_found():
    calls = UserList()

    def loss(model, batch):
        calls.append(1)
        return loss_fn(model, batch) * (2 if len(calls) > 9 else 1)  # Step 0 takes four turns, twice.

    trainer = small_trainer(loss=loss)
    trainer.step()
    with pytest.raises(UsageError, match="when step 1 was run a second time"):
        trainer.step()


class Harmless(Net):
    """Counts its calls, and uses them for nothing; writes to its input, and draws from the global generators."""

    def __init__(self):
        super().__init__(5)
        self.calls = 0
        self.last = None

    def forward(self, images):
        self.calls += 1
        self.last = images.add_(torch.rand(()) * random.random() * np.random.rand())
        return super().forward(images)


def test_what_is_harmless_is_left_alone():
    assert bits(small_trainer(model=Harmless), 3) == bits(small_trainer(model=Harmless, prove_every=0), 3)


@pytest.mark.parametrize(
    ("every", "more"), [(None, [4, 4, 0, 0, 0]), (0, [0] * 5), (2, [4, 4, 1, 0, 1]), (3, [4, 4, 0, 1, 0])]
)
def test_how_many_ests_run_again_in_which_steps(every, more):
    calls = UserList()

    def loss(model, batch):
        calls.append(1)
        return loss_fn(model, batch)

    trainer, found = small_trainer(loss=loss, prove_every=every), []
    for _ in range(5):
        calls.clear()
        trainer.step()
        found.append(len(calls) - 4)
    assert found == more


def test_the_step_that_goes_on_from_a_checkpoint_is_verified(tmp_path):
    trainer = small_trainer(folder=tmp_path, model=Hidden, prove_every=0)
    bits(trainer, 3)
    trainer.save()
    with pytest.raises(UsageError, match="when step 3 was run a second time"):
        small_trainer(folder=tmp_path, model=Hidden).step()


def test_verified_and_unverified_steps_have_the_same_bits():
    assert bits(small_trainer(prove_every=1, accumulate=2), 4) == bits(small_trainer(prove_every=0, accumulate=2), 4)
    ring = {"reduction": "ring", "bucket_mb": None}
    assert bits(small_trainer(**ring), 3) == bits(small_trainer(prove_every=0, **ring), 3)
