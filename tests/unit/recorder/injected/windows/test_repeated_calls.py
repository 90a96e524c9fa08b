"""Which calls of a step have inputs that the same module has had in it."""

import gc
import weakref
from functools import partial

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_flatten

from esprof.recorder.injected.windows.repeated_calls import MOST_DIFFERENT, RepeatedCalls


class Watched:
    """A model, with the names of the modules in it whose calls repeat earlier ones, in their order."""

    def __init__(self, model):
        self.model, self.found = model, []
        self.repeated = RepeatedCalls()
        self.repeated.add(model)
        for name, module in model.named_modules():
            module.register_forward_pre_hook(partial(self._begin, name), with_kwargs=True)
            module.register_forward_hook(lambda module, _, result: self.repeated.end(module, result))

    def _begin(self, name, module, arguments, options):
        if self.repeated.begin(module, *tree_flatten((arguments, options))):
            self.found.append(name)

    def next_step(self):
        """Names of the modules that are not watched any longer."""
        self.found.clear()
        idle = self.repeated.begin_step()
        return [name for name, module in self.model.named_modules() if id(module) in idle]


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
    assert watched.found == ["stem", "middle", "middle.0", "middle.1", "deep"]
    watched.model(x, times=1)  # The model itself has had this input, but never once alone.
    assert watched.found == ["stem", "middle", "middle.0", "middle.1", "deep"] * 2
    watched.model(x, times=1)
    assert watched.found[10] == ""


@pytest.mark.parametrize("view", [lambda x: x[:2], lambda x: x.unflatten(1, (2, 2)).flatten(1)])
def test_equal_views_of_equal_results_are_equal_inputs(view, x):
    watched = Watched(Encoder(between=view))
    watched.model(x)
    assert watched.found == ["stem", "middle", "deep"]


def test_other_views_and_results_of_operations_are_not(x):
    rows = iter([slice(0, 2), slice(1, 3)])
    for between in (lambda one: one[next(rows)], torch.sigmoid, lambda one: one.add_(1)):
        watched = Watched(Encoder(between=between))
        watched.model(x)
        assert watched.found == ["stem"]


def test_what_follows_random_numbers_differs(x):
    class Noise(nn.Module):
        def forward(self, x):
            return x + torch.randn_like(x)

    for random in (nn.Dropout(0.1), Noise()):
        watched = Watched(Encoder(random))
        watched.model(x)
        assert watched.found == ["stem"]
    watched.model.middle[0].forward = lambda one: one
    watched.next_step()
    watched.model(x)
    assert watched.found == ["stem", "middle", "middle.0", "deep"]


def test_a_module_that_hands_an_input_on_does_not_make_it_another(x):
    class Both(nn.Linear):
        def forward(self, x):
            return super().forward(x), x

    watched = Watched(model := nn.Sequential(Both(4, 4)))
    for _ in range(3):
        model[0](x)
    assert watched.found == ["0", "0"]


def test_a_changed_weight_makes_the_next_call_another(x):
    watched = Watched(Encoder())
    watched.model(x, times=1)
    with torch.no_grad():
        watched.model.deep.weight.add_(1)
    watched.model(x, times=1)
    assert watched.found == ["stem", "middle"]


def test_a_call_with_other_weights_in_their_place_is_another(x):
    watched = Watched(model := nn.Sequential(nn.Linear(4, 4)))
    for factor in (1, 2):
        other = {name: factor * one.detach() for name, one in model.named_parameters()}
        torch.func.functional_call(model, other, (x,))
    assert watched.found == []
    torch.func.functional_call(model, other, (x,))
    assert watched.found == ["", "0"]


def test_transforms_of_functions_are_not_looked_into(x):
    watched = Watched(model := nn.Linear(4, 4))
    for _ in range(2):
        torch.vmap(model)(x)
        torch.func.grad(lambda one: model(one).sum())(x)
    assert watched.found == []


def test_statistics_count_if_they_are_read(x):
    watched = Watched(norm := nn.BatchNorm1d(4))
    norm(x), norm(x)
    assert watched.found == [""]
    norm.eval()
    norm(x)
    norm.running_mean.add_(1)
    norm(x)
    assert watched.found == [""]
    norm(x)
    assert watched.found == ["", ""]


def test_attributes_that_a_call_reads_make_it_another(x):
    class Switched(nn.Linear):
        def __init__(self, **attributes):
            super().__init__(4, 4)
            self.__dict__.update(attributes)

    adapter = torch.zeros(4)
    changes = {
        "_disabled": (False, True),
        "width": (2, 4),
        "active": (["a"], ["b"]),
        "memory": ({"v": 0.0}, {"v": adapter}),
        "cache": (adapter, adapter.clone()),
    }
    for name, (before, after) in changes.items():
        watched = Watched(nn.Sequential(model := Switched(**{name: before})))
        watched.model(x)
        setattr(model, name, after)
        watched.model(x)
        assert watched.found == [], name
        watched.model(x)
        assert watched.found == ["", "0"], name


def test_autocast_makes_a_call_another(x):
    watched = Watched(model := nn.Linear(4, 4))
    with torch.autocast("cpu", torch.bfloat16):
        model(x)
    model(x)
    assert watched.found == []


def test_arguments_of_other_names_are_others(x):
    class Named(nn.Linear):
        def forward(self, image=None, sound=None, more=()):
            return super().forward(next(one for one in (image, sound, *more) if one is not None))

    watched = Watched(model := Named(4, 4))
    model(image=x), model(sound=x), model(more=[x]), model(more=(x,))
    assert watched.found == []
    model(sound=x)
    assert watched.found == [""]


def test_weights_that_changed_without_a_new_version_make_the_next_call_another(x):
    watched = Watched(model := nn.Linear(4, 4))
    with torch.no_grad():
        model(x)
        model.weight.data = model.weight.data + 1  # As optimizers of zeroth order do.
        model(x)
    assert watched.found == []
    model(x).sum().backward()
    model.weight.data.add_(1)  # As adversarial training does.
    model(x)
    watched.repeated.optimizer_stepped()
    model(x)
    assert watched.found == [""]  # The third call, for which nothing has changed.


def test_a_call_without_gradients_after_a_backward_pass_repeats_the_first(x):
    watched = Watched(model := nn.Linear(4, 4))
    model(x).sum().backward()
    with torch.no_grad():
        model(x)
    assert watched.found == [""]


def test_modules_are_watched_for_one_whole_step_and_as_long_as_they_repeat(x):
    watched = Watched(Encoder(nn.ReLU()))
    watched.model(x, times=1)
    assert watched.next_step() == []  # The window may have begun within the first step.
    watched.model(x)
    assert watched.next_step() == [""]
    watched.model(x, times=1)
    assert watched.next_step() == ["stem", "middle", "middle.0", "deep"]


def test_a_model_that_is_called_several_times_is_watched(x):
    watched = Watched(model := nn.Linear(4, 4))
    for _ in range(3):
        model(torch.randn(1, 4)), model(torch.randn(1, 4))
        assert watched.next_step() == []
    model(x), model(x)
    assert watched.found == [""]


@pytest.mark.parametrize(("others", "found"), [(MOST_DIFFERENT - 2, [""]), (MOST_DIFFERENT - 1, [])])
def test_few_different_calls_are_compared(others, found, x):
    watched = Watched(model := nn.Linear(4, 4))
    for one in (x, *(torch.randn(1, 4) for _ in range(others)), x):
        model(one)
    assert watched.found == found


def test_results_of_calls_that_are_not_compared_differ():
    watched = Watched(model := nn.ModuleDict({"first": nn.Linear(4, 4), "second": nn.Linear(4, 4)}))
    found = [model["first"](torch.randn(1, 4)) for _ in range(2 * MOST_DIFFERENT)]
    for one in found[MOST_DIFFERENT:]:
        model["second"](one)
    assert watched.found == []


def test_comparing_calls_makes_no_operations(x):
    def operations(model):
        with torch.profiler.profile() as profiler:
            model(x[:2]), model(x.T[:3].T[:, [0, 1, 2, 2]])
        return [event.name for event in profiler.events()]

    plain, watched = (nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Dropout(0.5)) for _ in range(2))
    Watched(watched)
    assert operations(watched) == operations(plain)


def test_results_are_not_kept_alive(x):
    watched = Watched(Encoder())
    gone = weakref.ref(watched.model(x))
    gc.collect()
    assert gone() is None
