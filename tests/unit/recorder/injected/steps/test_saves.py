"""What is noted of saves, in this very process."""

import copy
import importlib
import io
import pickle
import sys
import threading
import types
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.distributed as dist

from esprof.recorder.injected.log.circuit_breaker import CircuitBreaker
from esprof.recorder.injected.log.notes import Log
from esprof.recorder.injected.steps.saves import SaveProbe, rebind
from esprof.run.raw.stages import STAGING


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


@pytest.fixture
def dcp():
    """torch.distributed.checkpoint, in a job of one rank; its functions are as they were afterwards."""
    import torch.distributed.checkpoint as dcp

    originals = dcp.save, dcp.async_save
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield dcp
    dist.destroy_process_group()
    for original in originals:
        rebind(getattr(dcp, original.__name__), original)


class Stager:
    """Copies the state in a thread, or fails."""

    should_synchronize_after_execute = False

    def __init__(self, *, fails):
        self.fails, self.threads = fails, ThreadPoolExecutor(1)

    def stage(self, state):
        if self.fails:
            raise OSError("no memory")
        return self.threads.submit(copy.deepcopy, state)

    def close(self):
        self.threads.shutdown()


@pytest.mark.parametrize("stages_later", [False, True])
def test_an_asynchronous_save_goes_on_until_it_is_written(dcp, noted, tmp_path, stages_later):
    probe, rows = noted
    probe.wrap_loaded()
    stager = Stager(fails=False) if stages_later else None
    saved = dcp.async_save({"a": torch.ones(1000)}, checkpoint_id=tmp_path / "saved", async_stager=stager)
    getattr(saved, "upload_completion", saved).result()
    if stager is not None:
        stager.close()
    name = "torch.distributed.checkpoint.async_save"
    expected = [(name, False), (name, True), *([(name + STAGING, True)] if stages_later else [])]
    # What torch's own thread writes for it is no save of its own.
    assert sorted((row[0], row[3]) for row in rows) == expected
    assert len({start for _, start, _, _ in rows}) == 1
    assert (tmp_path / "saved" / ".metadata").exists()


def test_to_gather_the_state_of_a_sharded_model_belongs_to_the_save(noted):
    from torch.distributed.checkpoint import state_dict as gathering

    probe, rows = noted
    probe.wrap_loaded()
    wrapped = gathering.get_model_state_dict
    assert wrapped(torch.nn.Linear(1, 1)).keys() == {"weight", "bias"}
    assert [name for name, *_ in rows] == ["torch.distributed.checkpoint.state_dict.get_model_state_dict"]
    rebind(wrapped, wrapped.__wrapped__)


def test_a_failed_asynchronous_save_leaves_no_trace_on_the_next(dcp, noted):
    probe, rows = noted
    probe.wrap_loaded()
    with pytest.raises(OSError, match="no memory"):
        dcp.async_save({"a": torch.ones(1)}, async_stager=Stager(fails=True))
    other = threading.Thread(target=torch.save, args=({}, io.BytesIO()))
    other.start()
    other.join()
    assert [name for name, *_ in rows] == ["torch.distributed.checkpoint.async_save", "torch.save"]


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
