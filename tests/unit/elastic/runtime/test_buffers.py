"""Buffers are EST 0's on all ranks, however a module comes by new values."""

import pytest
import torch
from torch import nn

from esprof.core.errors import UsageError
from tests.cases.elastic_job import bits_of_ranks, small_trainer


class Averaged(nn.Module):
    """Takes the running mean off its inputs, and assigns a new tensor to it each time."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(64, 5)
        self.register_buffer("mean", torch.zeros(64))

    def forward(self, images):
        flat = images.flatten(1)
        self.mean = 0.9 * self.mean + 0.1 * flat.mean(0)
        return self.head(flat - self.mean)


@pytest.mark.parametrize("parts", [[[0, 1], [2, 3]], [[1, 3], [], [0, 2]]])
def test_a_buffer_assigned_anew_follows_est_0(parts):
    (static,) = bits_of_ranks([range(4)], model=Averaged)
    assert bits_of_ranks(parts, model=Averaged) == [static] * len(parts)


def test_the_model_keeps_its_tensor():
    trainer = small_trainer(model=Averaged)
    mean = trainer.state.model.mean
    trainer.step()
    assert trainer.state.model.mean is mean
    assert mean.any()


class Growing(Averaged):
    def forward(self, images):
        self.mean = torch.cat([self.mean, torch.zeros(1)])
        return self.head(images.flatten(1))


class Lazy(Averaged):
    def forward(self, images):
        self.register_buffer("seen", images.mean())
        return self.head(images.flatten(1))


@pytest.mark.parametrize(
    ("model", "reason"),
    [
        (Growing, r"buffer mean was float32 \[64\] on cpu before a step and float32 \[65\] on cpu during the step"),
        (Lazy, "a buffer was registered or deleted during a step"),
    ],
)
def test_a_buffer_that_cannot_be_carried_over_is_refused(model, reason):
    with pytest.raises(UsageError, match=reason):
        small_trainer(model=model).step()
