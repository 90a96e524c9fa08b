"""What is noted of saves, in this very process."""

import io
import pickle
import sys
import threading
import types

import pytest
import torch

from esprof.recorder.injected.fuse import Fuse
from esprof.recorder.injected.log import Log
from esprof.recorder.injected.saves import SaveProbe


@pytest.fixture
def noted(monkeypatch):
    """Names of the saves that a probe notes; torch is as it was afterwards."""
    original = torch.serialization.save
    monkeypatch.setattr(torch, "save", original)
    monkeypatch.setattr(torch.serialization, "save", original)
    rows = []
    probe = SaveProbe(rows.append, Fuse("saves", Log()))
    probe.look()
    return probe, rows


def test_a_save_is_a_stage_with_its_span(noted):
    _, rows = noted
    torch.save({"a": 1}, io.BytesIO())
    ((name, start, end),) = rows
    assert name == "torch.save"
    assert 0 < start <= end


def test_only_the_thread_that_trains_counts(noted):
    _, rows = noted
    other = threading.Thread(target=torch.save, args=({}, io.BytesIO()))
    other.start()
    other.join()
    assert rows == []


def test_the_outermost_save_counts_alone(noted, monkeypatch):
    probe, rows = noted
    module = types.ModuleType("safetensors.torch")

    def save_file(state, file):
        torch.save(state, file)
        torch.save(state, file)

    save_file.__module__ = module.__name__
    module.save_file = save_file
    monkeypatch.setitem(sys.modules, module.__name__, module)
    probe.look()
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
