"""Models of which optimizers hold some parameters only."""

import pytest
import torch
from torch import nn
from torch.optim import SGD

from esprof.recorder.injected import optimizers
from esprof.recorder.injected.windows.call_marks import CallMarks
from esprof.run.raw.call_marks import NOT_HELD, WEIGHTS_NOT_HELD

X = torch.ones(1, 2)


class Adapted(nn.Linear):
    """A layer with an adapter."""

    def __init__(self) -> None:
        super().__init__(2, 2)
        self.adapter = nn.Linear(2, 2, bias=False)


@pytest.fixture
def marked(monkeypatch):
    """The marks of a model's call and of those of all modules in it, in the order in which it has them. `trained` are the
    parameters that an optimizer holds."""
    monkeypatch.setattr(optimizers, "_alive", set())

    def of(model, trained, inputs=X):
        optimizers.add(SGD(trained, lr=1))
        marks = CallMarks()
        marks.add(model)
        return {name: found for name, one in model.named_modules() if (found := marks.of(one, (inputs,), {}))}

    return of


def layers():
    return nn.Sequential(nn.Embedding(4, 2), nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2), nn.LayerNorm(2))


def test_modules_before_the_one_that_learns_need_no_backward_pass(marked):
    model = layers()
    assert marked(model, model[3].parameters()) == {"0": [NOT_HELD], "1": [NOT_HELD], "4": [WEIGHTS_NOT_HELD]}


def test_modules_behind_one_that_learns_pass_the_gradient_on(marked):
    model = layers()
    assert marked(model, model[0].parameters()) == {name: [WEIGHTS_NOT_HELD] for name in "134"}


def test_a_layer_passes_the_gradient_to_its_own_adapter(marked):
    model = nn.Sequential(Adapted(), Adapted())
    adapters = [*model[0].adapter.parameters(), *model[1].adapter.parameters()]
    assert marked(model, adapters) == {"0": [WEIGHTS_NOT_HELD], "1": [WEIGHTS_NOT_HELD]}


def test_a_gradient_that_the_inputs_need_goes_through_all(marked):
    model = layers()
    found = marked(model, model[3].parameters(), torch.ones(1, 2, requires_grad=True))
    assert found == {name: [WEIGHTS_NOT_HELD] for name in "014"}


def test_parameters_of_the_model_itself_do_not_stand_for_its_layers(marked):
    model = layers()
    model.register_parameter("position", nn.Parameter(torch.zeros(2)))
    assert "" not in marked(model, model[3].parameters())


def test_frozen_and_trained_models_and_those_of_which_copies_are_trained_are_not_marked(marked):
    model = layers().requires_grad_(False)
    assert marked(model, model[3].requires_grad_(True).parameters()) == {}
    assert marked(model := layers(), model.parameters()) == {}
    assert marked(layers(), layers().parameters()) == {}
    with torch.no_grad():
        assert marked(model := layers(), model[3].parameters()) == {}
