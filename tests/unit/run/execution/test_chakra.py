"""Chakra execution traces, alone and joined to Kineto traces."""

import random

import pytest

from esprof import load
from esprof.core.errors import InputError
from esprof.replay import answer
from tests.cases import chakra
from tests.cases.kineto import document, row, step, write
from tests.cases.protobuf import delimited

SHAPED = ("[[4, 8], [[], []]]", "['Tensor(float)', 'GenericList[Int,Int]']")


def test_nodes_with_times_are_a_run(tmp_path):
    run = load(chakra.write_job(tmp_path))
    assert (run.meta.source, run.ranks, run.world_size) == ("chakra", [0, 1], 2)
    events = run.events(1).to_pandas()
    gemm = events[events.name == "gemm"].iloc[0]
    assert (gemm.start_ns, gemm.dur_ns, gemm.stream) == (1000 * (chakra.US + 60), 300_000, 7)
    reduced = events[events.name == "ncclDevKernel_AllReduce"].iloc[0]
    assert (reduced.collective, reduced.in_bytes, reduced.stream) == ("all_reduce", 4096, 20)
    assert events[events.name == "aten::mm"].iloc[0].shapes == "[[4, 8], [8, 2]]"


def test_its_steps_are_those_of_the_optimizer(tmp_path):
    found = answer(load(chakra.write_job(tmp_path)))
    assert found.step_us == pytest.approx(1000)
    assert found.coverage.collectives_matched == found.coverage.collectives == 8


def test_collectives_with_other_names_are_communication(tmp_path):
    coll = {"kind": chakra.COLLECTIVE, "comm_type": 2, "comm_size": 64}
    content = chakra.trace(chakra.node(1, "work", 10, 50), chakra.node(2, "AG", 70, 30, **coll))
    (tmp_path / "a.et").write_bytes(content)
    events = load(tmp_path / "a.et").events(0).to_pandas()
    assert events[events.kind == "collective"].iloc[0].collective == "all_gather"


def test_files_without_metadata(tmp_path):
    (tmp_path / "a.et").write_bytes(delimited([chakra.node(1, "first", 10, 50), chakra.node(2, "second", 70, 30)]))
    assert load(tmp_path / "a.et").events(0).texts("name") == ["first", "second"]


def test_without_start_times_it_needs_a_kineto_trace(tmp_path):
    (tmp_path / "a.et").write_bytes(chakra.trace(chakra.node(1, "work", None, 50)))
    with pytest.raises(InputError, match="no start times") as error:
        load(tmp_path / "a.et")
    assert "Kineto trace" in error.value.remedy


def test_it_gives_shapes_to_a_kineto_trace(tmp_path):
    write(tmp_path / "rank0.json", document(step(1, 0, 100), row("aten::mm", 10, 50, function=10), rank=0, world=1))
    node = chakra.node(5, "aten::mm", None, 40, inputs=SHAPED, rf_id=10, is_cpu_op=True)
    (tmp_path / "rank0.et").write_bytes(chakra.trace(node))
    run = load(tmp_path)
    assert run.events(0).to_pandas().query("name == 'aten::mm'").iloc[0].shapes == "[[4, 8], []]"
    assert run.warnings == ()


@pytest.mark.parametrize("content", [b"", b"\x05", b'{"traceEvents": []}', b"\x80\x80\x80"])
def test_other_bytes_are_refused(content, tmp_path):
    (tmp_path / "a.et").write_bytes(content)
    with pytest.raises(InputError):
        load(tmp_path / "a.et")


def test_a_large_file_is_refused(tmp_path, monkeypatch):
    chakra.write_job(tmp_path)
    monkeypatch.setenv("ESPROF_MEMORY_LIMIT", "2000")
    with pytest.raises(InputError, match="larger than the memory limit"):
        load(tmp_path / "job.0.et")


@pytest.mark.parametrize("seed", range(5))
def test_mutated_files_are_read_or_refused(seed, tmp_path):
    chance, whole = random.Random(seed), chakra.job(0, steps=2)
    remedies = []
    for _ in range(30):
        content = bytearray(whole)
        for _ in range(chance.randrange(1, 6)):
            content[chance.randrange(len(content))] = chance.randrange(256)
        (tmp_path / "a.et").write_bytes(content[: chance.randrange(1, len(content))])
        try:
            load(tmp_path / "a.et")
        except InputError as error:
            remedies.append(error.remedy)
    assert remedies
    assert all(remedies)
