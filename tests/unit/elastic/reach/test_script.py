"""What a script reaches is listed at start, and numbers that samples count are told."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tests.cases.elastic import Samples, loss_fn
from tests.cases.elastic_job import bits, small_trainer


class Counted(Samples):
    """Counts what it has loaded, and caches the kinds."""

    def __init__(self):
        super().__init__(61, tokens=False)
        self.loaded, self.kinds = 0, {}

    def __getitem__(self, index):
        self.loaded += 1
        image, kind = super().__getitem__(index)
        return image, self.kinds.setdefault(index, kind)


@pytest.mark.parametrize("workers", [0, 1])
def test_numbers_that_samples_count_are_told_once(workers, capfd):
    bits(small_trainer(samples=Counted(), num_workers=workers, prove_every=1), 3)
    assert capfd.readouterr().err.count("esprof: making a sample changes dataset.loaded, of which each process") == 1


def test_what_the_script_reaches_is_listed(capfd):
    teacher, noise, queue, seen = nn.Flatten(), torch.Generator(), torch.zeros(4), []

    def loss(model, batch):
        seen.append(queue)
        return loss_fn(model, batch) + F.mse_loss(model(batch[0]), teacher(torch.rand(2, 5, generator=noise)))

    small_trainer(loss=loss)
    listed = "module loss.teacher (0 tensors, 0.0 MiB), generator loss.noise, tensor loss.queue"
    assert f"esprof: besides the model the script reaches {listed}:" in capfd.readouterr().err
