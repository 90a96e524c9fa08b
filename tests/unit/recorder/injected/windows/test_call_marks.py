"""Marks of calls: equal inputs, and gradients that no optimizer uses."""

import weakref

import pytest
import torch
from torch import nn
from torch.optim import SGD
from torch.optim.swa_utils import AveragedModel

from esprof.recorder.injected import optimizers
from esprof.recorder.injected.windows.call_marks import CallMarks
from esprof.run.raw.call_marks import DISCARDED, FLOAT64, NOT_OPTIMIZED, SAME_INPUTS


@pytest.fixture
def marks(monkeypatch):
    """Tells the marks of calls; models are added as they come."""
    monkeypatch.setattr(optimizers, "_alive", set())
    watched = CallMarks()

    def of(model, *arguments, **options):
        if id(model) not in watched.watched:
            watched.add(model)
        found = watched.of(model, arguments, options)
        watched.ended(model, None)
        return found

    of.watched = watched
    return of


def trained(*models):
    for model in models:
        optimizers.add(SGD(model.parameters(), lr=1))


@pytest.fixture
def model():
    return nn.Linear(2, 2)


def test_a_call_with_the_same_tensor_is_marked(marks, model):
    x = torch.ones(1, 2)
    with torch.no_grad():
        assert marks(model, x, scale=1.0) == []
        assert marks(model, x, scale=1.0) == [SAME_INPUTS]
        assert marks(model, {"x": [x]}) == []
        assert marks(model, {"x": [x]}) == [SAME_INPUTS]


def test_calls_with_other_inputs_are_not(marks, model):
    x = torch.ones(1, 2)
    assert [marks(model, torch.ones(1, 2)) for _ in range(2)] == [[], []]
    assert [marks(model, x, scale=scale) for scale in (1, True, 2, None)] == [[]] * 4
    assert [marks(model, object(), x) for _ in range(2)] == [[], []]
    assert [marks(model) for _ in range(2)] == [[], []]
    with torch.inference_mode():
        inferred = torch.ones(1, 2)
        assert [marks(model, inferred) for _ in range(2)] == [[], []]


def test_calls_after_a_change_are_not(marks, model):
    x = torch.ones(1, 2)

    def written():
        x.add_(1)

    def trained_meanwhile():
        with torch.no_grad():
            model.weight.add_(1)

    for change in (written, trained_meanwhile, model.eval, marks.watched.begin_step):
        marks(model, x)
        change()
        assert marks(model, x) == []


def test_gradients_of_a_model_without_optimizer_are_marked(marks, model):
    teacher, x = nn.Linear(2, 2), torch.ones(1, 2)
    trained(model)
    marks(model, x)
    assert marks(teacher, x) == [NOT_OPTIMIZED]


def test_models_that_learn_or_have_no_gradient_are_not(marks, model):
    trained(model)
    marks(model, torch.ones(1, 2))
    frozen = nn.Linear(2, 2).requires_grad_(False)
    assert marks(frozen, torch.ones(1, 2)) == []
    teacher = nn.Linear(2, 2)
    with torch.no_grad():
        assert marks(teacher, torch.ones(1, 2)) == []
    assert marks(teacher, torch.ones(1, 2, requires_grad=True)) == []  # the gradient goes on to the inputs
    by_hand = nn.Linear(2, 2)
    marks(by_hand, torch.ones(1, 2))
    with torch.no_grad():
        by_hand.weight -= 1
    assert marks(by_hand, torch.ones(1, 2)) == []
    trained(later := nn.Linear(2, 2))
    assert marks(later, torch.ones(1, 2)) == []


def test_a_teacher_that_is_a_moving_average_is_marked_once_its_gradients_have_grown_twice(marks, model):
    trained(model)
    teacher, found = AveragedModel(model), []
    for _ in range(4):
        x = torch.ones(1, 2)
        marks(model, x)
        found.append(marks(teacher, x))
        (model(x) - teacher(x)).square().sum().backward()
        marks.watched.optimizer_stepped(SGD(model.parameters(), lr=1))
        model.zero_grad()
        teacher.update_parameters(model)
    assert found == [[NOT_OPTIMIZED], [], [], [NOT_OPTIMIZED]]  # at first it looks as if nothing changed it


def test_gradients_that_are_discarded_before_the_optimizer_steps_are_marked(marks, model):
    critic, found = nn.Linear(2, 1), []
    trained(model, critic)
    for _ in range(2):
        for learns in (critic, model):
            x = torch.ones(1, 2)
            found.append(marks(model, x))
            learns.zero_grad()
            critic(model(x)).sum().backward()
            marks.watched.optimizer_stepped(SGD(learns.parameters(), lr=1))
    assert found == [[], [], [DISCARDED], []]


def test_modules_of_64_bits_among_others_are_marked(marks, model):
    exact, x = nn.Sequential(nn.Linear(2, 2).double(), nn.ReLU(), model), torch.ones(1, 2)
    marks(exact, x)
    assert [marks(one, x) for one in exact] == [[FLOAT64], [], []]


class Bank(nn.Module):
    """Filters without parameters."""

    def __init__(self, dtype):
        super().__init__()
        self.register_buffer("filters", torch.ones(2, 2, dtype=dtype))
        self.register_buffer("count", torch.zeros((), dtype=torch.float64))


def test_tables_of_64_bits_are_marked_in_modules_without_parameters(marks, model):
    x = torch.ones(1, 2)
    banks = nn.Sequential(Bank(torch.float64), Bank(torch.float32), model)
    marks(banks, x)
    sums = nn.Linear(2, 2)  # It learns in 32 bits, and counts in 64.
    sums.register_buffer("sums", torch.ones(2, dtype=torch.float64))
    assert [marks(one, x) for one in (*banks[:2], sums)] == [[FLOAT64], [], []]


def test_a_job_of_64_bits_needs_them(marks):
    exact, x = nn.Sequential(nn.Linear(2, 2), nn.Embedding(2, 2)).double(), torch.ones(1, 2)
    assert [marks(one, x) for one in (exact, *exact)] == [[], [], []]


def test_where_optimizers_hold_copies_nothing_is_known(marks, model):
    trained(nn.Linear(2, 2))
    assert [marks(model, torch.ones(1, 2)) for _ in range(2)] == [[], []]


def test_a_model_that_the_backward_pass_computes_again_is_not_marked(marks, model):
    seen = []

    class Again(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            seen.append(marks(model, x))
            return gradient

    x = torch.ones(1, 2, requires_grad=True)
    marks(model, x)
    Again.apply(x).sum().backward()
    assert seen == [[]]


def test_tensors_are_not_kept_alive(marks, model):
    x = torch.ones(1, 2)
    marks(model, x)
    gone = weakref.ref(x)
    del x
    assert gone() is None
