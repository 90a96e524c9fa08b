"""Which calls of a step have inputs that the same module has had in it."""

import gc
import weakref
from functools import partial

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from esprof.recorder.injected.windows.repeated_calls import MOST_DIFFERENT, RepeatedCalls
from esprof.run.raw.call_marks import SAME_FORWARD, SAME_INPUTS


class Watched:
    """A model, with the calls of it and of the modules in it that have been marked, as (name, mark) in their order."""

    def __init__(self, model):
        self.model, self.found = model, []
        self._repeated = RepeatedCalls()
        self._repeated.add(model)
        for name, module in model.named_modules():
            module.register_forward_pre_hook(partial(self._begin, name), with_kwargs=True)
            module.register_forward_hook(lambda module, _, result: self._repeated.end(module, result))

    def _begin(self, name, module, arguments, options):
        marks = self._repeated.begin(module, tree_leaves((arguments, options)))
        self.found.extend((name, mark) for mark in marks)

    def next_step(self):
        """Names of the modules that are not watched any longer."""
        self.found.clear()
        idle = self._repeated.begin_step()
        return [name for name, module in self.model.named_modules() if id(module) in idle]

    def names(self, mark=SAME_INPUTS):
        return [name for name, one in self.found if one == mark]


class Encoder(nn.Module):
    """Encodes its input by three modules, `times` times."""

    def __init__(self, *middle, between=lambda x: x):
        super().__init__()
        self.stem, self.middle, self.deep = nn.Linear(4, 4), nn.Sequential(*middle), nn.Linear(4, 4)
        self.between = between

    def forward(self, x, times=2):
        for _ in range(times):
            found = self.deep(self.middle(self.between(self.stem(x))))
        return found


@pytest.fixture
def x():
    return torch.randn(3, 4)


def test_a_part_that_is_called_again_is_marked_with_all_that_it_leads_to(x):
    watched = Watched(Encoder(nn.Linear(4, 4), nn.ReLU(inplace=True)))
    watched.model(x)
    assert watched.names() == ["stem", "middle", "middle.0", "middle.1", "deep"]
    watched.model(x, times=1)  # The model itself has had this input, but never once alone.
    assert watched.names() == ["stem", "middle", "middle.0", "middle.1", "deep"] * 2
    watched.model(x, times=1)
    assert watched.names()[10] == ""


@pytest.mark.parametrize("view", [lambda x: x[:2], lambda x: x.unflatten(1, (2, 2)).flatten(1)])
def test_equal_views_of_equal_results_are_equal_inputs(view, x):
    watched = Watched(Encoder(between=view))
    watched.model(x)
    assert watched.names() == ["stem", "middle", "deep"]


def test_other_views_and_results_of_operations_are_not(x):
    rows = iter([slice(0, 2), slice(1, 3)])
    for between in (lambda one: one[next(rows)], torch.sigmoid, lambda one: one.add_(1)):
        watched = Watched(Encoder(between=between))
        watched.model(x)
        assert watched.names() == ["stem"]


def test_what_follows_random_numbers_differs(x):
    class Noise(nn.Module):
        def forward(self, x):
            return x + torch.randn_like(x)

    for random in (nn.Dropout(0.1), Noise()):
        watched = Watched(Encoder(random))
        watched.model(x)
        assert watched.names() == ["stem"]
    watched.model.middle[0].forward = lambda one: one
    watched.next_step()
    watched.model(x)
    assert watched.names() == ["stem", "middle", "middle.0", "deep"]


def test_a_module_that_hands_an_input_on_does_not_make_it_another(x):
    class Both(nn.Linear):
        def forward(self, x):
            return super().forward(x), x

    watched = Watched(model := nn.Sequential(Both(4, 4)))
    for _ in range(3):
        model[0](x)
    assert watched.names() == ["0", "0"]


def test_a_changed_weight_makes_the_next_call_another(x):
    watched = Watched(Encoder())
    watched.model(x, times=1)
    with torch.no_grad():
        watched.model.deep.weight.add_(1)
    watched.model(x, times=1)
    assert watched.names() == ["stem", "middle"]


def test_a_call_with_other_weights_in_their_place_is_another(x):
    watched = Watched(model := nn.Sequential(nn.Linear(4, 4)))
    for factor in (1, 2):
        other = {name: factor * one.detach() for name, one in model.named_parameters()}
        torch.func.functional_call(model, other, (x,))
    assert watched.found == []
    torch.func.functional_call(model, other, (x,))
    assert watched.names() == ["", "0"]


def test_transforms_of_functions_are_not_looked_into(x):
    watched = Watched(model := nn.Linear(4, 4))
    for _ in range(2):
        torch.vmap(model)(x)
        torch.func.grad(lambda one: model(one).sum())(x)
    assert watched.found == []


def test_statistics_count_if_they_are_read(x):
    watched = Watched(norm := nn.BatchNorm1d(4))
    norm(x), norm(x)
    assert watched.names() == [""]
    norm.eval()
    norm(x)
    norm.running_mean.add_(1)
    norm(x)
    assert watched.names() == [""]
    norm(x)
    assert watched.names() == ["", ""]


def test_the_backward_pass_of_the_first_call_with_gradients_is_needed(x):
    watched = Watched(model := nn.Linear(4, 4))
    with torch.no_grad():
        model(x)
    model(x)
    assert watched.found == [("", SAME_FORWARD)]
    model(x)
    with torch.no_grad():
        model(x)
    assert watched.found[1:] == [("", SAME_INPUTS)] * 2


def test_parts_are_watched_for_one_whole_step_and_as_long_as_they_repeat(x):
    watched = Watched(Encoder(nn.ReLU()))
    watched.model(x, times=1)
    assert watched.next_step() == []  # The window may have begun within the first step.
    watched.model(x)
    assert watched.next_step() == []
    watched.model(x, times=1)
    assert watched.next_step() == ["stem", "middle", "middle.0", "deep"]
    watched.model(x), watched.model(x)
    assert watched.names() == [""]


def test_few_different_calls_are_compared():
    watched = Watched(model := nn.Linear(4, 4))
    inputs = [torch.randn(1, 4) for _ in range(MOST_DIFFERENT + 1)]
    for one in (*inputs, inputs[0], inputs[-1]):
        model(one)
    assert watched.names() == [""]


def test_results_of_calls_that_are_not_compared_differ():
    watched = Watched(model := nn.ModuleDict({"first": nn.Linear(4, 4), "second": nn.Linear(4, 4)}))
    found = [model["first"](torch.randn(1, 4)) for _ in range(2 * MOST_DIFFERENT)]
    for one in found[MOST_DIFFERENT:]:
        model["second"](one)
    assert watched.names() == []


def test_results_are_not_kept_alive(x):
    watched = Watched(Encoder())
    gone = weakref.ref(watched.model(x))
    gc.collect()
    assert gone() is None
