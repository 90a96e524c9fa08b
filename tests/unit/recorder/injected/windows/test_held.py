"""What a process holds from step to step."""

import pytest

torch = pytest.importorskip("torch")

from esprof.recorder.injected.windows import held  # noqa: E402  needs torch


def test_each_kind_counts_once(monkeypatch):
    """Adam has two states of each parameter, and its number of steps; the last layer shares the weight of the first."""
    first, last = (torch.nn.Linear(8, 8, bias=False) for _ in range(2))
    model = torch.nn.Sequential(first, torch.nn.BatchNorm1d(8), last)
    model[2].weight = model[0].weight
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(4, 8)).sum().backward()
    optimizer.step()
    monkeypatch.setattr(held, "_living", lambda: ([model, *model], [optimizer]))
    parameters = 4 * (64 + 8 + 8)
    assert held.held_sizes() == {
        "parameters": parameters,
        "gradients": parameters,
        "buffers": 4 * (8 + 8) + 8,
        "optimizer": 2 * parameters + 3 * 4,
        "buckets": 0,
        "parameter_sizes": [32, 256],
    }


def test_living_models_are_found():
    model = torch.nn.Linear(3, 5)
    optimizer = torch.optim.SGD(model.parameters())
    modules, optimizers = held._living()
    assert any(one is model for one in modules)
    assert any(one is optimizer for one in optimizers)
