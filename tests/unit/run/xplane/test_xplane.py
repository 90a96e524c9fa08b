"""Profiles of JAX as runs."""

import gzip
import random

import pytest

from esprof import load
from esprof.core.errors import InputError
from esprof.replay import answer
from tests.cases.xplane import NS, gpu_job, plane, space


@pytest.fixture
def read(tmp_path):
    """Write profiles of hosts, and read them."""

    def read(*contents):
        for number, content in enumerate(contents):
            (tmp_path / f"host{number}.xplane.pb").write_bytes(content)
        return load(tmp_path)

    return read


def events(run, rank=0):
    return run.events(rank).to_pandas()


def test_each_device_is_a_rank(read):
    run = read(gpu_job())
    assert (run.meta.source, run.ranks) == ("xplane", [0, 1])
    assert [rank.device for rank in run.meta.ranks] == ["NVIDIA H100", "NVIDIA H100"]
    assert run.meta.ranks[0].host == "node7"
    assert [warning.code for warning in run.warnings] == ["rank-guessed"]


def test_kernels_copies_and_collectives(read):
    found = events(read(gpu_job()))
    gemm = found[found.name == "gemm_fusion"].iloc[0]
    assert (gemm.kind, gemm.start_ns, gemm.dur_ns, gemm.stream, gemm.step) == ("kernel", NS + 60_000, 300_000, 13, 0)
    copy = found[found.name == "MemcpyD2H"].iloc[0]
    assert (copy.kind, copy.in_bytes) == ("memcpy", 4096)
    reduced = found[found.name.str.startswith("nccl")].iloc[0]
    assert (reduced.kind, reduced.collective, reduced.stream) == ("collective", "all_reduce", 20)
    assert not (found.name == "jit_step").any()


def test_events_of_the_host(read):
    found = events(read(gpu_job()))
    assert set(found[found.name == "cuLaunchKernel"].kind) == {"runtime"}
    assert set(found[found.name == "PjitFunction(step)"].kind) == {"op"}
    assert set(found[found.name == "train.py(12): main"].kind) == {"python"}
    assert not found.name.str.startswith("end: ").any()
    assert set(found[found.kind == "step"].step) == set(range(6))


def test_its_steps_and_what_launched_its_kernels(read):
    found = answer(read(gpu_job()))
    assert found.step_us == pytest.approx(1000)
    assert found.coverage.kernels_without_launch == 0
    assert found.coverage.collectives_matched == found.coverage.collectives == 12


def test_hosts_follow_each_other(read):
    run = read(gpu_job(), gpu_job())
    assert run.ranks == [0, 1, 2, 3]


def test_compressed(tmp_path):
    (tmp_path / "a.xplane.pb.gz").write_bytes(gzip.compress(gpu_job(devices=1)))
    run = load(tmp_path / "a.xplane.pb.gz")
    assert (run.ranks, run.warnings) == ([0], ())


def test_the_folder_that_jax_wrote(tmp_path):
    chrome = b'{"traceEvents": [{"ph": "M", "pid": 1, "name": "process_name", "args": {"name": "/host:CPU"}}]}'
    for date, devices in (("2026_01_01", 2), ("2026_01_02", 1)):
        folder = tmp_path / "plugins" / "profile" / date
        folder.mkdir(parents=True)
        (folder / "vm.xplane.pb").write_bytes(gpu_job(devices))
        (folder / "vm.trace.json.gz").write_bytes(gzip.compress(chrome))
    assert load(tmp_path).ranks == [0]
    assert load(folder).meta.source == "xplane"
    with pytest.raises(InputError, match="Chrome trace of a profile of JAX"):
        load(folder / "vm.trace.json.gz")


def test_a_host_without_devices(read):
    host = plane("/host:CPU", [(3, "python", [("train", 0.0, 50.0, {"step_num": 4}), ("dot", 5.0, 20.0, {})])])
    run = read(space(host))
    assert answer(run).steps[0].step == 4


def test_views_of_a_device_with_steps(read):
    ops = [("while", 0.0, 100.0, {}), ("fusion.1", 0.0, 40.0, {}), ("fusion.2", 50.0, 50.0, {})]
    tpu = plane("/device:TPU:0", [(1, "Steps", [("7", 0.0, 120.0, {})]), (2, "XLA Ops", ops), (3, "XLA Modules", ops)])
    host = plane("/host:CPU", [(3, "python", [("dispatch", 0.0, 5.0, {})])])
    found = events(read(space(tpu, host)))
    assert sorted(found[found.kind == "kernel"].name) == ["fusion.1", "fusion.2"]
    assert found[found.kind == "step"].step.tolist() == [7]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "holds no event"),
        (space(plane("/host:CPU", [])), "holds no event"),
        (b"\x0a\xff\x01", "truncated one"),
        (b"\x18\x01\x0b", "unknown type 3"),
        (b"\x08\x01", "a number stands where a message should"),
    ],
)
def test_other_bytes_are_refused(content, says, read):
    with pytest.raises(InputError, match=says) as error:
        read(content)
    assert error.value.remedy


def test_a_large_profile_is_refused(read, monkeypatch):
    monkeypatch.setenv("ESPROF_MEMORY_LIMIT", "4000")
    with pytest.raises(InputError, match="larger than the memory limit"):
        read(gpu_job())


@pytest.mark.parametrize("seed", range(5))
def test_mutated_profiles_are_read_or_refused(seed, read):
    chance, whole, remedies = random.Random(seed), gpu_job(steps=2), []
    for _ in range(20):
        content = bytearray(whole)
        for _ in range(chance.randrange(1, 6)):
            content[chance.randrange(len(content))] = chance.randrange(256)
        try:
            read(bytes(content[: chance.randrange(len(content) // 2, len(content))]))
        except InputError as error:
            remedies.append(error.remedy)
    assert remedies
    assert all(remedies)
