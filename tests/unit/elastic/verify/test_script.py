"""What a job compares of its script when it goes on: code of forward, losses and samples, its first batches, versions."""

import functools

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from esprof.core.errors import MismatchError, UsageError
from esprof.elastic.verify.script import code_of
from tests.cases.elastic import Samples, loss_fn
from tests.cases.elastic_job import Net, small_trainer


def scaled(value):
    """A helper of the losses below."""
    return 2 * value


def described(model, batch):
    """Of other lines, comments and words than `plain`."""
    # Nothing here computes.
    images, labels = batch

    return F.cross_entropy(model(images), labels)


def plain(model, batch):
    images, labels = batch
    return F.cross_entropy(model(images), labels)


def summed(model, batch):
    images, labels = batch
    return F.cross_entropy(model(images), labels, reduction="sum")


def helped(model, batch):
    return scaled(plain(model, batch))


def test_code_is_known_by_what_it_does():
    weighted = [functools.partial(plain, weight=weight) for weight in (1, 2)]
    assert code_of(plain) == code_of(described)
    assert len({code_of(one) for one in (plain, summed, helped, torch.relu, torch.tanh, F.gelu, *weighted)}) == 8


def test_code_of_what_is_called_counts(monkeypatch):
    before = code_of(helped)
    monkeypatch.setitem(globals(), "scaled", lambda value: 3 * value)
    assert code_of(helped) != before


class Activated(Net):
    """Holds its activation as a function."""

    def __init__(self, activation, scale=1.0, label="a"):
        super().__init__(5)
        self.activation, self.scale, self.label = activation, scale, label

    def forward(self, images):
        return self.scale * self.activation(super().forward(images))


class Labelled(Samples):
    """Its labels are numbered in the order of a set, which the process may have made in another one."""

    def __init__(self, names):
        super().__init__(61, tokens=False)
        self.numbers = {name: number for number, name in enumerate(names)}

    def __getitem__(self, index):
        return super().__getitem__(index)[0], self.numbers["abcde"[index % 5]]


def saved(folder, **options):
    trainer = small_trainer(folder=folder, **options)
    trainer.step()
    trainer.save()


def named(activation):
    """A model whose forward names its activation, a variable of a closure."""

    class Named(Net):
        def forward(self, images):
            return activation(super().forward(images))

    return Named(5)


def criterion(criterion):
    return lambda model, batch: criterion(model(batch[0]), batch[1])


CHANGES = {
    "function activation": (
        {"model": lambda: Activated(torch.relu)},
        {"model": lambda: Activated(torch.tanh)},
    ),
    r"model.scale \(1.0, now 0.5\)": (
        {"model": lambda: Activated(torch.relu)},
        {"model": lambda: Activated(torch.relu, scale=0.5)},
    ),
    r"forward of named.<locals>.Named": ({"model": lambda: named(torch.relu)}, {"model": lambda: named(torch.tanh)}),
    "module loss.criterion": (
        {"loss": criterion(nn.CrossEntropyLoss())},
        {"loss": criterion(nn.CrossEntropyLoss(label_smoothing=0.1))},
    ),
    "loss function": ({"loss": loss_fn}, {"loss": lambda model, batch: loss_fn(model, batch) * 2}),
    "the first batches": ({"samples": Labelled("abcde")}, {"samples": Labelled("bacde")}),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_job_does_not_go_on_with_another_script(tmp_path, what):
    before, after = CHANGES[what]
    saved(tmp_path, **before)
    with pytest.raises(MismatchError, match=f"was trained by another script: changed since are {what}\n"):
        small_trainer(folder=tmp_path, **after)
    assert small_trainer(folder=tmp_path, **before).next_step == 1


def test_a_changed_script_that_is_meant_is_told(tmp_path, capfd):
    before, after = CHANGES["loss function"]
    saved(tmp_path, **before)
    assert small_trainer(folder=tmp_path, new_script=True, **after).next_step == 1
    assert "esprof: since step-00000001 was saved: loss function has changed\n" in capfd.readouterr().err


def test_what_may_change_bits_or_not_is_told(tmp_path, capfd):
    saved(tmp_path, model=lambda: Activated(torch.relu))
    assert small_trainer(folder=tmp_path, model=lambda: Activated(torch.relu, label="b")).next_step == 1
    assert "model.label was a and is b" in capfd.readouterr().err


def test_samples_that_cannot_be_made_are_refused_at_once():
    class Broken(Samples):
        def __getitem__(self, index):
            raise KeyError("worker")

    with pytest.raises(UsageError, match="the first batch cannot be made in the training process: KeyError"):
        small_trainer(samples=Broken(61, tokens=False))
