"""Files of one model: profiles by microbatch and tensor degree, a description of a transformer, or both."""

import json
from pathlib import Path

import pytest

from esprof.analyzers.advisors.job.growth import Model
from esprof.analyzers.advisors.parallel.advise import advise_parallel
from esprof.analyzers.advisors.parallel.model import ParallelModel, read_model
from esprof.analyzers.advisors.parallel.profile import Devices, LayerProfile
from esprof.core.errors import InputError, UsageError
from tests.cases.layers import layer

_GPT = {"schema": "esprof.transformer/1", "layers": 2, "hidden": 64, "heads": 4, "vocabulary": 100, "sequence": 32}


def _written(path: Path, **content: object) -> Path:
    path.write_text(json.dumps(content))
    return path


def _profile(path: Path, microbatch: int, tensor: int) -> Path:
    times = {"A100": {"forward_us": 10.0, "backward_us": 20.0}}
    one = {"name": "a", "times": times, "output_bytes": 1, "parameter_bytes": 1}
    return _written(path, layers=[one], microbatch=microbatch, tensor=tensor)


def test_a_description_and_profiles_are_read_in_any_order(tmp_path: Path) -> None:
    gpt = _written(tmp_path / "gpt.json", **_GPT)
    profiles = [_profile(tmp_path / f"{tensor}.json", 2, tensor) for tensor in (1, 2)]
    model = read_model([profiles[0], gpt, profiles[1]])
    assert [(one.microbatch, one.tensor) for one in model.measured] == [(2, 1), (2, 2)]
    assert model.transformer is not None
    assert model.transformer.hidden == 64


def test_files_that_do_not_fit_together_are_refused(tmp_path: Path) -> None:
    gpt = _written(tmp_path / "gpt.json", **_GPT)
    with pytest.raises(UsageError, match="two files describe a transformer"):
        read_model([gpt, gpt])
    profile = _profile(tmp_path / "layers.json", 2, 1)
    with pytest.raises(UsageError, match="two profiles have the microbatch 2 and the tensor degree 1"):
        read_model([profile, profile])
    with pytest.raises(InputError, match="3 heads, which do not divide"):
        read_model([_written(tmp_path / "odd.json", **_GPT | {"heads": 3})])
    with pytest.raises(InputError, match="depth"):
        read_model([_written(tmp_path / "typo.json", **_GPT, depth=3)])


@pytest.mark.parametrize("size", [-1, 10**400])
def test_a_size_that_no_layer_has_is_refused(tmp_path: Path, size: int) -> None:
    one = {"name": "a", "times": {"A100": {"forward_us": 1, "backward_us": 2}}, "output_bytes": 1}
    with pytest.raises(InputError, match="negative or too large"):
        read_model([_written(tmp_path / "a.json", layers=[one | {"parameter_bytes": size}])])


def test_the_best_of_measured_tensor_degrees_and_microbatches_is_chosen() -> None:
    """Two devices share each layer in 60 % of its time; a microbatch of 2 takes as long as one of 1."""
    servers = Devices(devices={"V100": Model(count=2)}, network_gb_per_s=0.01, server_gb_per_s=0.01, per_server=2)
    alone, shared, larger = (
        LayerProfile(layers=(layer("a", took_us, parameter_bytes=10**6),), microbatch=microbatch, tensor=tensor)
        for took_us, microbatch, tensor in ((10, 1, 1), (6, 1, 2), (10, 2, 1))
    )
    for measured, tensor, microbatch in (((alone,), 1, 1), ((alone, shared), 2, 1), ((alone, shared, larger), 1, 2)):
        advice = advise_parallel(ParallelModel(measured=measured), servers, 8)
        best = advice.plans[0]
        assert (best.tensor, best.microbatch, best.stages[0].replicas) == (tensor, microbatch, 1)
        assert best.step_us == pytest.approx(8 / microbatch * 30 * (0.6 if tensor == 2 else 1))
        assert advice.lower_bound_us <= best.step_us


def test_a_tensor_group_larger_than_a_server_is_refused() -> None:
    profile = LayerProfile(layers=(layer("a"),), tensor=2)
    with pytest.raises(UsageError, match="no server has the 2 devices that share each layer"):
        advise_parallel(profile, Devices(devices={"V100": 4}, network_gb_per_s=1.0), 8)


def test_devices_are_grouped_within_servers() -> None:
    devices = Devices(devices={"V100": 10, "P100": Model(count=1, memory_gb=16)}, network_gb_per_s=1.0, per_server=4)
    grouped = devices.grouped(3)
    assert grouped is not None
    # Two full servers of four, and one with two: each has a group of three, or none.
    assert (grouped.counts, grouped.per_server) == ({"V100": 2}, 1)
    assert devices.grouped(1) == devices
