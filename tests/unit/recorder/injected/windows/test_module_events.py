"""The calls of modules as events, with a context manager in place of the profiler's."""

import gc
import weakref
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from esprof.recorder.injected.log.notes import Log
from esprof.recorder.injected.windows import module_events as module
from esprof.recorder.injected.windows.module_events import ModuleEvents

ORIGINAL = nn.Module.__call__


@pytest.fixture
def watched(monkeypatch):
    """(the recorder's events, what has begun `+` and ended `-`)"""
    happened = []

    @contextmanager
    def event(name):
        happened.append("+" + name.removeprefix("nn.Module: "))
        try:
            yield
        finally:
            happened.append("-" + name.removeprefix("nn.Module: "))

    monkeypatch.setattr(module, "annotation", event)
    monkeypatch.setattr(module, "is_profiled_here", lambda: True)
    monkeypatch.setattr(module, "sys", SimpleNamespace(modules={"torch._dynamo": None}))
    events = ModuleEvents(Log())
    events.start()
    yield events, happened
    events.stop()
    assert nn.Module.__call__ is ORIGINAL


def begun(happened):
    return [one.removeprefix("+") for one in happened if one.startswith("+")]


class Calls(nn.Module):
    """Calls the modules in it one after the other, or fails."""

    def __init__(self, fails=False, **modules):
        super().__init__()
        self.fails = fails
        for name, one in modules.items():
            self.add_module(name, one)

    def forward(self, x):
        if self.fails:
            raise KeyError("the job's")
        for one in self.children():
            x = one(x)
        return x


def test_modules_are_named_by_their_place_in_the_model(watched):
    events, happened = watched
    Calls(head=nn.Identity(), blocks=nn.Sequential(nn.Identity()))(torch.zeros(1))
    assert happened == [
        *("+Calls", "+Calls.head", "-Calls.head", "+Calls.blocks"),
        *("+Calls.blocks.0", "-Calls.blocks.0", "-Calls.blocks", "-Calls"),
    ]
    events.stop()
    nn.Identity()(torch.zeros(1))
    assert happened[-1] == "-Calls"


def test_of_several_models_each_has_a_name_of_its_own(watched):
    one, other = Calls(a=nn.Identity()), Calls(a=nn.Identity())
    for model in (one, other, one, loss := nn.Identity(), loss):
        model(torch.zeros(1))
    assert begun(watched[1]) == ["Calls", "Calls.a", "Calls_2", "Calls_2.a", "Calls", "Calls.a", "Identity", "Identity"]


def test_wrappers_are_not_part_of_the_names_in_the_model(watched):
    block = Calls(_checkpoint_wrapped_module=Calls(a=nn.Identity(), b=nn.Identity()))
    Calls(module=nn.Sequential(block, nn.Identity()))(torch.zeros(1))
    inner = ["Sequential.0", "Sequential.0", "Sequential.0.a", "Sequential.0.b", "Sequential.1"]
    assert begun(watched[1]) == ["Calls", "Sequential", *inner]


def test_an_exception_of_a_module_ends_its_event_and_reaches_the_job(watched):
    with pytest.raises(KeyError, match="the job's"):
        Calls(a=Calls(fails=True))(torch.zeros(1))
    assert watched[1] == ["+Calls", "+Calls.a", "-Calls.a", "-Calls"]


def test_a_fault_in_naming_ends_the_events_and_not_the_job(watched, capfd):
    class Odd(nn.Identity):
        def named_modules(self, *arguments, **options):
            raise ValueError("odd")

    for _ in range(2):
        assert Odd()(torch.ones(1)) == 1
    assert nn.Module.__call__ is ORIGINAL
    assert begun(watched[1]) == ["Odd"]
    assert capfd.readouterr().err.count("recording of modules failed") == 1


def test_of_modules_that_are_made_all_the_time_the_first_have_numbers(watched, monkeypatch):
    monkeypatch.setattr(module, "_MAX_ROOTS", 2)
    for model in [nn.Identity() for _ in range(4)]:
        model(torch.zeros(1))
    assert begun(watched[1]) == ["Identity", "Identity_2", "Identity", "Identity"]


def test_modules_are_not_kept_alive_and_leave_no_name_behind(watched):
    events, _ = watched
    model = Calls(a=nn.Identity())
    model(torch.zeros(1))
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None
    assert not events._names


def test_modules_of_threads_without_a_profiler_get_no_numbers(watched, monkeypatch):
    monkeypatch.setattr(module, "is_profiled_here", lambda: False)
    for model in [nn.Identity() for _ in range(3)]:
        model(torch.zeros(1))
    assert begun(watched[1]) == ["Identity"] * 3


def test_what_dynamo_takes_for_the_original_stays(monkeypatch):
    modules = {}
    monkeypatch.setattr(module, "sys", SimpleNamespace(modules=modules))
    events = ModuleEvents(Log())
    try:
        events.start()
        ours = nn.Module.__call__
        modules["torch._dynamo"] = None
        events.stop()
        assert nn.Module.__call__ is ours
        assert nn.Identity()(torch.ones(1)) == 1
        events.start()
        assert nn.Module.__call__ is ours
    finally:
        nn.Module.__call__ = ORIGINAL
