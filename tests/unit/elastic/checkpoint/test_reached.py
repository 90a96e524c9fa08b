"""A resumed job goes on with what its script holds besides the model, or is refused by name."""

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from esprof.core.errors import MismatchError
from tests.cases.elastic import loss_fn
from tests.cases.elastic_job import Net, bits, small_trainer
from tests.cases.programs.reached import Lookahead


def lookahead():
    return {"optimizer": lambda parameters: Lookahead(parameters, lr=0.1, momentum=0.9)}


class Wrapped(torch.optim.Optimizer):
    """A lookahead optimizer that wraps another one, whose groups are its own, and whose momentum is not."""

    def __init__(self, inner):
        self.inner, self.steps = inner, 0
        super().__init__(inner.param_groups, {})
        self.param_groups = inner.param_groups

    @torch.no_grad()
    def step(self, closure=None):
        self.inner.step(closure)
        self.steps += 1
        for fast in self.param_groups[0]["params"]:
            slow = self.state[fast].setdefault("slow", fast.detach().clone())
            if self.steps % 2 == 0:
                fast.copy_(slow.lerp_(fast, 0.5))


def wrapped_optimizer():
    return {
        "optimizer": lambda parameters: Wrapped(torch.optim.SGD(parameters, lr=0.1, momentum=0.9)),
        "scheduler": lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9),
    }


def teacher_that_follows():
    """An average of the weights that `after_step` renews, and the loss distils from."""
    torch.manual_seed(0)
    model = Net(5)
    teacher = copy.deepcopy(model).requires_grad_(False)

    def loss(model, batch):
        return loss_fn(model, batch) + F.mse_loss(model(batch[0]), teacher(batch[0]))

    @torch.no_grad()
    def follow(result):
        for mine, its in zip(teacher.parameters(), model.parameters(), strict=True):
            mine.lerp_(its, 0.1)

    return {"model": lambda: model, "loss": loss, "after_step": follow}


def weights_by_name():
    """An average in a dict, which a later loss will use: the reference is what it holds."""
    model, average = Net(5), {}

    def loss(model, batch):
        return loss_fn(model, batch) + 0.01 * sum(average.values()).sum() if average else loss_fn(model, batch)

    def follow(result):
        for name, parameter in model.named_parameters():
            average[name] = 0.9 * average.get(name, torch.zeros(())) + 0.1 * parameter.detach().mean()

    return {"model": lambda: model, "loss": loss, "after_step": follow}


def generator_and_counter():
    """A weight that is drawn anew every fifth call."""
    generator, calls, weight = np.random.default_rng(0), 0, 1.0

    def loss(model, batch):
        nonlocal calls, weight
        calls += 1
        if calls % 5 == 0:
            weight = 0.5 + generator.random()
        return weight * loss_fn(model, batch)

    return {"loss": loss}


def extra_state_of_a_criterion():
    """A criterion outside of the model, with a state of its own that an update changes."""

    class Scaled(nn.Module):
        level = 1.0

        def get_extra_state(self):
            return {"level": self.level}

        def set_extra_state(self, state):
            self.level = state["level"]

    criterion = Scaled()

    def rise(result):
        criterion.level += 0.1

    return {"loss": lambda model, batch: criterion.level * loss_fn(model, batch), "after_step": rise}


@pytest.mark.parametrize(
    "script",
    [
        lookahead,
        wrapped_optimizer,
        teacher_that_follows,
        weights_by_name,
        generator_and_counter,
        extra_state_of_a_criterion,
    ],
)
def test_a_job_goes_on_with_what_its_script_holds(tmp_path, script):
    whole = bits(small_trainer(**script()), 6)
    first = small_trainer(folder=tmp_path, **script())
    assert bits(first, 3) == whole[:3]
    first.save()
    assert bits(small_trainer(folder=tmp_path, **script()), 3) == whole[3:]


def distilled(seed, temperature=2.0):
    torch.manual_seed(seed)
    teacher = Net(5).requires_grad_(False).eval()
    return {
        "loss": lambda model, batch: (
            loss_fn(model, batch) + F.mse_loss(model(batch[0]), teacher(batch[0]) / temperature)
        )
    }


@pytest.mark.parametrize(
    ("other", "why"),
    [
        ({"seed": 1}, "was trained with other weights in loss.teacher"),
        ({"seed": 0, "temperature": 3.0}, r"was trained with loss.temperature = 2.0, which is 3.0 now"),
    ],
)
def test_a_job_does_not_go_on_with_other_state(tmp_path, capfd, other, why):
    trainer = small_trainer(folder=tmp_path, **distilled(0))
    trainer.step()
    trainer.save()
    with pytest.raises(MismatchError, match=why):
        small_trainer(folder=tmp_path, **distilled(**other))
    assert small_trainer(folder=tmp_path, new_script=True, **distilled(**other)).next_step == 1
    assert why in capfd.readouterr().err


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (1, 2, "was trained with loss.given = 1, which is 2 now"),
        ({"until": 1}, {"until": 2}, "was trained with loss.given = dict"),
    ],
    ids=["number of processes", "options"],
)
def test_numbers_and_options_of_a_launch_are_told(tmp_path, capfd, before, after, said):
    def script(given):
        return {"loss": lambda model, batch: loss_fn(model, batch) * (1 if given else 2)}

    trainer = small_trainer(folder=tmp_path, **script(before))
    trainer.step()
    trainer.save()
    assert small_trainer(folder=tmp_path, **script(after)).next_step == 1
    assert said in capfd.readouterr().err
