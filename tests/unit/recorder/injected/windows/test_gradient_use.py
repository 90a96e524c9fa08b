"""Gradients that are computed while another model learns: used later, or discarded."""

import pytest
import torch
from torch import nn
from torch.optim import SGD

from esprof.recorder.injected.windows.gradient_use import GradientUse


class Pair:
    """A generator and a critic that learn in turns; each call of the generator with gradients is followed."""

    def __init__(self) -> None:
        self.generator, self.critic = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2)), nn.Linear(2, 1)
        self.mine, self.other = SGD(self.generator.parameters(), lr=0.1), SGD(self.critic.parameters(), lr=0.1)
        self.use = GradientUse([*self.generator.parameters()])
        self.answers: list[bool] = []

    def drawn(self) -> torch.Tensor:
        self.answers.append(self.use.called())
        return self.generator(torch.ones(4, 2))

    def step(self, optimizer: SGD) -> None:
        optimizer.step()
        self.use.stepped({id(one) for group in optimizer.param_groups for one in group["params"]})

    def critic_learns(self, drawn: torch.Tensor) -> None:
        self.other.zero_grad()
        self.critic(drawn).sum().backward()
        self.step(self.other)

    def generator_learns(self, *, set_to_none: bool = True) -> None:
        self.mine.zero_grad(set_to_none=set_to_none)
        self.critic(self.drawn()).sum().backward()
        self.step(self.mine)


@pytest.fixture
def pair():
    return Pair()


def test_a_call_of_which_the_gradients_are_discarded_is_told_from_the_second_time_on(pair):
    for _ in range(3):
        pair.critic_learns(pair.drawn())
        pair.generator_learns()
    assert pair.answers == [False, False, True, False, True, False]


def test_of_several_such_calls_each_is_told(pair):
    for _ in range(2):
        pair.critic_learns(pair.drawn())
        pair.critic_learns(pair.drawn())
        pair.generator_learns()
    assert pair.answers == [False] * 3 + [True, True, False]


def test_once_the_output_is_detached_no_call_is_told(pair):
    pair.critic_learns(pair.drawn())
    pair.generator_learns()
    for _ in range(3):
        pair.critic_learns(pair.drawn().detach())
        pair.generator_learns()
    assert pair.answers[2:] == [True] + [False] * 5


def test_gradients_that_were_there_before_do_not_count(pair):
    """The window begins between two steps, and gradients of the last one are still there."""
    pair.generator_learns()
    pair.use, pair.answers = GradientUse([*pair.generator.parameters()]), []
    for _ in range(2):
        pair.critic_learns(pair.drawn().detach())
        pair.generator_learns()
    assert pair.answers == [False] * 4


def test_gradients_that_are_kept_are_used(pair):
    for _ in range(2):
        pair.critic_learns(pair.drawn())
        pair.critic(pair.drawn()).sum().backward()
        pair.step(pair.mine)
    assert pair.answers == [False] * 4


def test_gradients_of_one_loss_for_two_optimizers_are_used_even_if_they_are_replaced(pair):
    for _ in range(2):
        pair.mine.zero_grad()
        pair.critic_learns(pair.drawn())
        for one in pair.generator.parameters():
            one.grad = one.grad * 0.5
        pair.step(pair.mine)
    assert pair.answers == [False] * 2


def test_gradients_that_are_set_to_zero_in_place_are_not_told_from_kept_ones(pair):
    for _ in range(2):
        pair.critic_learns(pair.drawn())
        pair.generator_learns(set_to_none=False)
    assert pair.answers == [False] * 4


def test_a_model_without_parameters_to_train_has_no_gradients():
    use = GradientUse([*nn.Linear(2, 2).requires_grad_(False).parameters()])
    use.stepped(set())
    assert not use.called()


class Taught:
    """A teacher that no optimizer holds, called with gradients. `change` is what the job does to its gradients in a step."""

    def __init__(self, change) -> None:
        self.teacher, self.model = nn.Linear(2, 2), nn.Linear(2, 2)
        self.optimizer = SGD(self.model.parameters(), lr=0.1)
        self.change = change
        self.use = GradientUse([*self.teacher.parameters()])

    def steps(self, count: int) -> bool:
        """Whether the gradients only grow, after so many steps."""
        for _ in range(count):
            self.use.called()
            (self.model(torch.ones(1, 2)) - self.teacher(torch.ones(1, 2))).square().sum().backward()
            self.optimizer.step()
            self.use.stepped({id(one) for one in self.model.parameters()})
            self.change(self.teacher)
        return self.use.only_grow


def test_gradients_that_nothing_resets_only_grow_from_the_third_step_on():
    taught = Taught(lambda teacher: None)
    assert not taught.steps(2)
    assert taught.steps(1)
    with torch.no_grad():  # A moving average changes the weights, not the gradients.
        taught.teacher.weight.add_(1)
    assert taught.steps(1)


@pytest.mark.parametrize(
    "change",
    [
        lambda teacher: teacher.zero_grad(),
        lambda teacher: teacher.zero_grad(set_to_none=False),
        lambda teacher: [one.grad.mul_(0.5) for one in teacher.parameters()],  # somebody looks after them
    ],
)
def test_gradients_that_are_reset_or_changed_may_be_used(change):
    assert not Taught(change).steps(6)
