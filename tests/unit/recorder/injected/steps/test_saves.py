"""What is noted of saves, in this very process."""

import importlib
import io
import pickle
import sys
import threading
import types
from concurrent.futures import Future

import pytest
import torch

from esprof.recorder.injected.log.circuit_breaker import CircuitBreaker
from esprof.recorder.injected.log.notes import Log
from esprof.recorder.injected.steps.saves import SaveProbe, rebind


@pytest.fixture
def noted(monkeypatch):
    """Names of the saves that a probe notes; torch is as it was afterwards."""
    original = torch.save
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    rows = []
    probe = SaveProbe(rows.append, CircuitBreaker("saves", Log()))
    probe.install()
    yield probe, rows
    rebind(torch.save, original)


def test_a_save_is_a_stage_with_its_span(noted):
    _, rows = noted
    torch.save({"a": 1}, io.BytesIO())
    ((name, start, end, is_background),) = rows
    assert (name, is_background) == ("torch.save", False)
    assert 0 < start <= end


def test_a_save_of_another_thread_is_in_the_background(noted):
    _, rows = noted
    other = threading.Thread(target=torch.save, args=({}, io.BytesIO()))
    other.start()
    other.join()
    assert [(name, is_background) for name, *_, is_background in rows] == [("torch.save", True)]


def test_an_asynchronous_save_goes_on_until_its_futures_are_done(noted, monkeypatch):
    probe, rows = noted
    module, staging, upload = types.ModuleType("torch.distributed.checkpoint"), Future(), Future()
    module.async_save = lambda: types.SimpleNamespace(staging_completion=staging, upload_completion=upload)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    probe._wrap(module.__name__, "async_save")
    module.async_save()
    assert [row[0] for row in rows] == ["torch.distributed.checkpoint.async_save"]
    # What torch writes meanwhile, in a thread of its own, is this save.
    other = threading.Thread(target=torch.save, args=({}, io.BytesIO()))
    other.start()
    other.join()
    staging.set_result(None)
    upload.set_result(None)
    assert [(name, is_background) for name, *_, is_background in rows[1:]] == [
        ("torch.distributed.checkpoint.async_save (staging)", True),
        ("torch.distributed.checkpoint.async_save", True),
    ]
    assert rows[0][1] == rows[1][1] == rows[2][1]


def test_the_outermost_save_counts_alone(noted, monkeypatch):
    probe, rows = noted
    module = types.ModuleType("safetensors.torch")

    def save_file(state, file):
        torch.save(state, file)
        torch.save(state, file)

    save_file.__module__ = module.__name__
    module.save_file = save_file
    monkeypatch.setitem(sys.modules, module.__name__, module)
    probe.wrap_loaded()
    module.save_file({}, io.BytesIO())
    assert [name for name, *_ in rows] == ["safetensors.torch.save_file"]


def test_a_save_that_fails_fails_as_before_and_the_next_is_noted(noted):
    _, rows = noted
    with pytest.raises(Exception, match="pickle"):
        torch.save(lambda: None, io.BytesIO())
    torch.save({}, io.BytesIO())
    assert len(rows) == 2


def test_the_function_can_still_be_pickled(noted):
    assert pickle.loads(pickle.dumps(torch.save)) is torch.save


def package_that_saves(folder, then=""):
    """A `safetensors.torch` of a few lines, to be imported from `folder`; `then` stands in it before its functions."""
    (folder / "safetensors").mkdir()
    (folder / "safetensors" / "__init__.py").write_text("")
    saves = "def save_file(state, file):\n    file.write(bytes(state))\n"
    (folder / "safetensors" / "torch.py").write_text(f"{then}\n{saves}")


@pytest.fixture
def importable(tmp_path, monkeypatch):
    """A folder to import from; what was imported from it is gone afterwards."""
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("safetensors", "safetensors.torch"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    yield tmp_path
    for name in ("safetensors", "safetensors.torch"):
        sys.modules.pop(name, None)


def test_a_function_that_is_imported_by_its_own_name_is_seen_from_its_first_call(noted, importable):
    _, rows = noted
    package_that_saves(importable)
    from safetensors.torch import save_file

    save_file(b"1", io.BytesIO())
    assert [name for name, *_ in rows] == ["safetensors.torch.save_file"]


def test_a_module_that_was_being_imported_is_wrapped_when_it_is_whole(noted, importable):
    """As one that imports torch, and thereby the recorder, before it defines what saves."""
    probe, rows = noted
    sys.wraps = probe.wrap_loaded
    package_that_saves(importable, "import sys\nsys.wraps()")
    sys.meta_path.pop(0)
    module = importlib.import_module("safetensors.torch")
    user = types.ModuleType("user_of_it")
    user.store = module.save_file
    sys.modules["user_of_it"] = user
    try:
        probe.wrap_loaded()
        user.store(b"1", io.BytesIO())
    finally:
        del sys.wraps, sys.modules["user_of_it"]
    assert [name for name, *_ in rows] == ["safetensors.torch.save_file"]


def test_to_ask_whether_a_module_is_there_imports_nothing(noted, importable):
    package_that_saves(importable)
    assert importlib.util.find_spec("safetensors.torch") is not None
    assert "safetensors.torch" not in sys.modules
