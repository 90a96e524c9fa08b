"""What is looked for in the torch at hand, and what is done where it is not there."""

import os

import pytest
import torch
import torch.distributed as dist

from esprof.recorder.shared import torch_features


def test_flight_recorders_are_switched_on_unless_somebody_has_said_what_they_shall_do(monkeypatch):
    newer, older = torch_features._BUFFER_SIZES
    monkeypatch.delenv(newer, raising=False)
    monkeypatch.setenv(older, "0")
    torch_features.switch_on_flight_recorders()
    assert (newer in os.environ, os.environ[older]) == (False, "0")
    monkeypatch.delenv(older)
    torch_features.switch_on_flight_recorders()
    assert (os.environ.pop(newer), older in os.environ) == ("2000", False)
    monkeypatch.setattr(torch_features, "flight_dumps", list)
    torch_features.switch_on_flight_recorders()
    assert (newer in os.environ, os.environ.pop(older)) == (False, "2000")


class OlderConfig:
    """Takes one of the options that newer ones take."""

    def __init__(self, enable_cuda_sync_events: bool = False) -> None:
        self.enable_cuda_sync_events = enable_cuda_sync_events


def test_the_profiler_gets_the_options_that_this_torch_knows(monkeypatch):
    monkeypatch.setattr(torch._C._profiler, "_ExperimentalConfig", OlderConfig)
    config = torch_features.profiler_config(enable_cuda_sync_events=True, trace_only=True, disable_this=True)
    assert config.enable_cuda_sync_events is True


def test_missing_features_are_reported(monkeypatch):
    monkeypatch.setattr(torch._C._profiler, "_ExperimentalConfig", OlderConfig)
    monkeypatch.setattr(torch_features, "flight_dumps", list)
    flight, windows = torch_features.lacking()
    assert "gloo's collectives" in flight
    assert "closing a window takes longer" in windows


@pytest.fixture
def group(tmp_path):
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    yield dist.group.WORLD
    dist.destroy_process_group()


@pytest.mark.parametrize("has_newer_name", [True, False])
def test_tensors_are_gathered_by_whatever_name_there_is(group, monkeypatch, has_newer_name):
    if not has_newer_name:
        monkeypatch.delattr(dist, "all_gather_single", raising=False)
    out = torch.zeros(3)
    torch_features.all_gather(out, torch.arange(3.0), group).wait()
    assert out.tolist() == [0, 1, 2]


def test_clients_of_their_own_see_what_the_others_set():
    server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    store = dist.PrefixStore("job", server)
    torch_features.own_client(store).set("key", "value")
    assert torch_features.own_client(store).get("key") == b"value"


def test_precisions_have_the_same_names_with_older_settings(monkeypatch):
    names = torch_features.precision_settings().keys()

    class Matmul:
        allow_tf32 = True

    monkeypatch.setattr(torch.backends.cuda, "matmul", Matmul())
    older = torch_features.precision_settings()
    assert older.keys() == names
    assert older["cuda_matmul_precision"] == "tf32"
    assert older["cuda_matmul_fp16_accumulation"] is None
