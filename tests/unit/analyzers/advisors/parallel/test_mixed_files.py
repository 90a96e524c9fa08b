"""Readers of published profiles and plans for mixed GPUs."""

import json
from pathlib import Path
from typing import Any

import pytest

from esprof.analyzers.advisors.parallel.mixed.files import MixedFiles, is_mixed
from esprof.analyzers.advisors.parallel.mixed.profile import GivenPlan, MixedStage, Replica
from esprof.core.errors import EsprofError, InputError, UsageError
from tests.cases.mixed import published_plan, published_sizes, published_times, written

_KINDS = ("A", "B")
_WHOLE = ([0, 1, 2, 3], [("A", 1), ("B", 2)])


def _read(folder: Path, **files: Any) -> MixedFiles:
    known = {"times": published_times(A=1, B=2), "sizes": published_sizes()}
    return MixedFiles(written(folder, **known | files))


def _read_plans(folder: Path, plan: dict[str, Any]) -> list[GivenPlan]:
    files = _read(folder, plan=plan)
    return list(files.given(files.profile(None, _KINDS)))


def test_times_sizes_and_plans_are_read(tmp_path: Path) -> None:
    plan = published_plan(([0, 1, 2], [("A", 1)]), ([3], [("B", 2)]), real=1.5)
    files = _read(tmp_path, plan=plan, unmeasured=published_plan(_WHOLE, real=0.0))
    profile = files.profile(None, _KINDS)
    assert profile.model == "tiny"
    assert profile.times["B"][2][2][0] == (0.00025, 0.0005, 0.0001)
    assert (profile.sizes[2][0].parameter_bytes, profile.sizes[2][0].kept_bytes) == (4_000, 2_000)
    first, second = files.given(profile)
    assert first.plan.stages == (MixedStage(0, 3, (Replica("A", 1),)), MixedStage(3, 4, (Replica("B", 2),)))
    assert (first.name, first.batch, first.measured_us, first.plan.microbatch) == ("plan.json", 16, 1.5e6, 2)
    assert (second.measured_us, second.plan.pipelines) == (None, 2)
    assert files.warnings == []


def test_a_layer_named_twice_is_repaired_by_its_position(tmp_path: Path) -> None:
    files = _read(tmp_path, plan=published_plan(([0, 1], [("A", 1)]), ([3, 3], [("B", 1)])))
    (given,) = files.given(files.profile(None, _KINDS))
    assert [(stage.first, stage.end) for stage in given.plan.stages] == [(0, 2), (2, 4)]
    assert files.warnings == ["plan.json does not name each layer once, in order: its stages are read by their sizes"]


def test_a_measurement_without_memory_is_left_out(tmp_path: Path) -> None:
    times = published_times(A=1)
    times["tiny"]["A"]["2"]["1"]["0"] = [1 << 30, 0.1, 0.1]
    assert list(_read(tmp_path, times=times).profile(None, _KINDS).times["A"][2]) == [2]


def test_types_and_tensor_degrees_that_cannot_be_used_are_left_out(tmp_path: Path) -> None:
    times = published_times(A=1, C=1)
    times["tiny"]["A"]["2"]["8"] = times["tiny"]["C"]["2"]["4"] = {"0": [1, 1, 1]}
    files = _read(tmp_path, times=times)
    profile = files.profile(None, _KINDS)
    assert {device: list(found[2]) for device, found in profile.times.items()} == {"A": [1, 2]}
    assert files.warnings == ["no sizes are given for tensor degrees 8 (A): they are left out"]


@pytest.mark.parametrize(
    ("plan", "reason"),
    [
        (published_plan(([0, 1], [("A", 1)])), "has 2 layers in stages, but tiny has 4"),
        (published_plan(([0, 1], [("A", 1)]), ([2, 3], [("A", 1), ("A", 1)])), "unlike numbers of replicas"),
        (published_plan(_WHOLE) | {"pipeline_list": []}, "has 0 pipelines"),
        (published_plan(_WHOLE, mbs="two"), "Expected `int`, got `str`"),
        (published_plan(_WHOLE, mbs=0), "Expected `int` >= 1"),
        (published_plan(([0, 1, 2, 3], [])), "or none"),
    ],
)
def test_a_plan_that_cannot_be_predicted_is_refused(tmp_path: Path, plan: dict[str, Any], reason: str) -> None:
    with pytest.raises(InputError, match=reason) as raised:
        _read_plans(tmp_path, plan)
    assert raised.value.path == tmp_path / "plan.json"


def test_a_replica_on_two_types_is_refused(tmp_path: Path) -> None:
    plan = published_plan(_WHOLE)
    plan["pipeline_list"][0]["tmp_per_stage"][0][0][0].append(["B", 1, "zone"])
    with pytest.raises(InputError, match="several groups of devices"):
        _read_plans(tmp_path, plan)


def _changed(times: dict[str, Any], layer: str, value: Any) -> dict[str, Any]:
    times["tiny"]["A"]["2"]["1"][layer] = value
    return times


@pytest.mark.parametrize(
    ("times", "reason"),
    [
        (_changed(published_times(A=1), "0", [0.1, 0.2]), "length 3"),
        (_changed(published_times(A=1), "0", [-1, 0.2, 0.1]), "microbatch 2, tensor degree 1: a time is negative"),
        (_changed(published_times(A=1), "9", [1, 1, 1]), "not numbered 0, 1, 2"),
        (_changed(published_times(A=1), "4", [1, 1, 1]), "times of 5 layers, but sizes of 4"),
    ],
)
def test_wrong_times_are_refused(tmp_path: Path, times: dict[str, Any], reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        _read(tmp_path, times=times).profile(None, _KINDS)


def test_wrong_sizes_are_refused_by_the_name_of_their_file(tmp_path: Path) -> None:
    sizes = published_sizes()
    sizes["tiny"]["2"]["0"]["params_bytes"] = -1
    with pytest.raises(InputError, match="negative size at tensor degree 2") as raised:
        _read(tmp_path, sizes=sizes).profile(None, _KINDS)
    assert raised.value.path == tmp_path / "sizes.json"


def test_what_is_missing_twice_or_unknown_is_named(tmp_path: Path) -> None:
    times, sizes, other = written(tmp_path, times=published_times(A=1), sizes=published_sizes(), other={"a": [1]})
    with pytest.raises(UsageError, match="no file with sizes of layers"):
        MixedFiles([times])
    with pytest.raises(UsageError, match="both give times"):
        MixedFiles([times, sizes, times])
    with pytest.raises(InputError, match="has neither times nor sizes"):
        MixedFiles([times, sizes, other])
    with pytest.raises(UsageError, match="tiny was measured on A, but the inventory has C"):
        MixedFiles([times, sizes]).profile(None, ["C"])
    with pytest.raises(UsageError, match=r"has no model huge"):
        MixedFiles([times, sizes]).profile("huge", _KINDS)
    with pytest.raises(EsprofError, match="cannot be read"):
        MixedFiles([tmp_path / "none.json"])
    times.write_text(json.dumps(published_times(A=1) | {"huge": {}}))
    with pytest.raises(UsageError, match="several models: tiny, huge"):
        MixedFiles([times, sizes]).profile(None, _KINDS)


def test_only_files_of_this_form_are_taken_for_one(tmp_path: Path) -> None:
    plan = published_plan(_WHOLE)
    paths = written(
        tmp_path, times=published_times(A=1), sizes=published_sizes(), plan=plan, own={"layers": []}, number=1, empty={}
    )
    assert [is_mixed(path) for path in paths] == [True, True, True, False, False, False]
    assert not is_mixed(tmp_path / "missing.json")
