"""What is noted of modules at their first calls."""

import gc
import weakref

import pytest
import torch
from torch import nn

from esprof.recorder.injected.log.notes import Log
from esprof.recorder.injected.windows.module_sizes import ModuleSizes


def noted(model, given, names):
    """Rows of `model` and its direct children by name, as if each was called by it."""
    log = Log()
    sizes = ModuleSizes(log)
    originals = {}

    def through(name, module):
        def call(*arguments):
            return sizes.measured(name, module, originals[name], arguments, {})

        return call

    for name in names:
        module = getattr(model, name)
        originals[name] = lambda self, *arguments, run=module.forward: run(*arguments)
        module.forward = through(name, module)
    sizes.measured("model", model, lambda self, value: self.forward(value), (given,), {})
    assert not sizes._makers
    return {name: row for name, *row in log.tail("modules")}


class Skips(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(3, 4), nn.Linear(4, 4, bias=False), nn.Linear(4, 2)
        self.scale = nn.Parameter(torch.ones(5))

    def forward(self, x):
        a = self.a.forward(x).relu()
        return self.c.forward(a + self.b.forward(a))


def test_bytes_of_parameters_and_outputs():
    rows = noted(Skips(), torch.zeros(7, 3), ["a", "b", "c"])
    sizes = {name: row[:3] for name, row in rows.items()}
    inner = [4 * 16, 4 * 16, 4 * 10]
    assert sizes == {
        "a": [inner[0], inner[0], 4 * 28],
        "b": [inner[1], inner[1], 4 * 28],
        "c": [inner[2], inner[2], 4 * 14],
        "model": [20, 20 + sum(inner), 4 * 14],
    }


def test_whose_outputs_a_module_takes_and_returns():
    rows = noted(Skips(), torch.zeros(7, 3), ["a", "b", "c"])
    assert {name: set(row[3]) for name, row in rows.items()} == {
        "a": set(),
        "b": {"a"},
        "c": {"a", "b"},
        "model": set(),
    }
    assert rows["model"][4] == ["c"]


def test_shared_parameters_count_once():
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False))
    model[1].weight = model[0].weight
    assert noted(model, torch.zeros(1, 4), ["0", "1"])["model"][:3] == [0, 64, 16]


def test_what_only_passes_its_input_on_is_the_source_behind_it():
    model = nn.Sequential(nn.Linear(2, 2), nn.Identity(), nn.Linear(2, 2))
    rows = noted(model, torch.zeros(1, 2), ["0", "1", "2"])
    assert rows["1"][3] == ["0"]
    assert rows["2"][3] == ["1"]


def test_too_long_a_graph_is_unknown(monkeypatch):
    monkeypatch.setattr("esprof.recorder.injected.windows.module_sizes._MAX_NODES", 3)
    value = torch.zeros(1, requires_grad=True)
    for _ in range(9):
        value = value + 1
    assert noted(nn.Sequential(nn.Identity()), value, ["0"])["0"][3] is None


def test_a_fault_reaches_no_job(capfd):
    class Odd(nn.Linear):
        def parameters(self, recurse=True):
            raise ValueError("odd")

    sizes, odd = ModuleSizes(Log()), Odd(2, 2)
    for _ in range(2):
        assert sizes.measured("odd", odd, Odd.forward, (torch.zeros(1, 2),), {}).shape == (1, 2)
    assert capfd.readouterr().err.count("recording of the sizes of modules failed") == 1


def test_an_error_of_the_job_passes_and_leaves_nothing():
    sizes = ModuleSizes(Log())
    with pytest.raises(RuntimeError):
        sizes.measured("model", nn.Linear(2, 2), nn.Linear.forward, (torch.zeros(1, 3),), {})
    assert not sizes._makers
    assert sizes._depth == 0


def test_no_graph_is_kept():
    model = nn.Linear(2, 2)
    output = [ModuleSizes(Log()).measured("model", model, nn.Linear.forward, (torch.zeros(1, 2),), {})]
    node = weakref.ref(output[0])
    output.clear()
    gc.collect()
    assert node() is None
