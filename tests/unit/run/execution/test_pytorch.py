"""PyTorch's execution traces joined to the Kineto traces of the same steps."""

import json

import pytest

from esprof import load
from esprof.core.errors import InputError
from tests.cases.execution import execution_trace, node
from tests.cases.kineto import comms, document, group, kernel, launch, row, step, write

SHAPED = [("Tensor(float)", [4, 8]), ("GenericList[Int,Int]", [[], []]), ("Int", [])]


def kineto(*, key="function", pid=1, **described):
    """A step with a multiplication (id 10) and an all-reduce (id 11)."""
    return document(
        step(1, 0, 1000, pid=pid),
        row("aten::mm", 10, 50, pid=pid, **{key: 10}),
        comms(200, dur=60, pid=pid, **{key: 11}, **described),
        launch(210, 1, pid=pid),
        kernel(250, 1, name="ncclDevKernel_AllReduce", dur=100, stream=20),
        rank=0,
        world=4,
        groups=[group("3", [0, 2])],
    )


def trace(*, pid=1, name="aten::mm"):
    reduced = {"collective_name": "allreduce", "dtype": "Float", "in_msg_nelems": 500, "out_msg_nelems": 500}
    return execution_trace(
        node(10, name, SHAPED),
        node(11, "record_param_comms", [("Tensor(float)", [500])], pg_name="3", **reduced),
        pid=pid,
    )


@pytest.fixture
def read(tmp_path):
    """Write the files, and read them as one run."""

    def read(**files):
        paths = [
            write(tmp_path / name.replace("_gz", ".json.gz").replace("_json", ".json"), of)
            for name, of in files.items()
        ]
        return load(paths)

    return read


def events(run, name):
    return run.events(0).to_pandas().query("name == @name").iloc[0]


def codes(run):
    return [warning.code for warning in run.warnings]


@pytest.mark.parametrize("key", ["function", "external_id"])
def test_shapes_groups_and_sizes_come_from_the_execution_trace(key, read):
    run = read(rank0_json=kineto(key=key), et_gz=trace())
    assert events(run, "aten::mm").shapes == "[[4, 8], [], []]"
    collective = events(run, "ncclDevKernel_AllReduce")
    assert (collective.collective, collective.group, collective["dtype"]) == ("all_reduce", "0,2", "Float")
    assert (collective.in_bytes, collective.out_bytes) == (2000, 2000)
    assert codes(run) == ["rank-missing"]


def test_what_kineto_has_stays(read):
    own = {"collective": "allreduce", "in_elements": 7, "dtype": "Double"}
    run = read(rank0_json=kineto(**own), et_gz=trace())
    assert events(run, "ncclDevKernel_AllReduce").in_bytes == 56


def test_ranks_of_a_group_that_kineto_does_not_name(read):
    alone = {"collective_name": "allreduce", "global_rank_start": 1, "global_rank_stride": 2, "pg_size": 2}
    run = read(rank0_json=kineto(), et_gz=execution_trace(node(11, "record_param_comms", **alone)))
    assert events(run, "ncclDevKernel_AllReduce").group == "1,3"


def test_groups_of_the_job_come_from_the_execution_trace(read):
    named = node(1, "## process_group:init ##", [("String", [])])
    named["inputs"]["values"] = [json.dumps([{"pg_name": "3", "ranks": [0, 2], "pg_desc": "model"}])]
    without = kineto() | {"distributedInfo": {"rank": 0, "world_size": 4}}
    run = read(rank0_json=without, et_gz=execution_trace(named, *trace()["nodes"]))
    assert [(one.name, one.description) for one in run.meta.groups] == [("0,2", "model")]
    assert events(run, "ncclDevKernel_AllReduce").group == "0,2"


def test_the_schema_of_2022(read):
    old = {"name": "aten::mm", "id": 2, "rf_id": 10, "inputs": [[1, 2]], "input_shapes": [[4, 8]]}
    first = {"schema": "1.0.1", "pid": 1, "nodes": [old | {"input_types": ["Tensor(float)"]}]}
    assert events(read(rank0_json=kineto(), et_json=first), "aten::mm").shapes == "[[4, 8]]"


def test_each_process_has_its_own(read):
    other = kineto(pid=2)
    other["distributedInfo"]["rank"] = 1
    second = execution_trace(node(10, "aten::mm", [("Tensor(float)", [5])]), pid=2)
    run = read(rank0_json=kineto(), rank1_json=other, a_gz=second, b_gz=trace())
    assert events(run, "aten::mm").shapes == "[[4, 8], [], []]"
    assert run.events(1).to_pandas().query("name == 'aten::mm'").iloc[0].shapes == "[[5]]"


def test_ranks_tell_processes_with_one_id_apart(read):
    other = kineto()
    other["distributedInfo"]["rank"] = 1
    second = execution_trace(node(10, "aten::mm", [("Tensor(float)", [5])]))
    run = read(rank0_json=kineto(), rank1_json=other, et_rank1_gz=second, et_rank0_gz=trace())
    assert events(run, "aten::mm").shapes == "[[4, 8], [], []]"
    assert run.events(1).to_pandas().query("name == 'aten::mm'").iloc[0].shapes == "[[5]]"


@pytest.mark.parametrize(
    ("twin", "says"),
    [
        (trace(pid=7), "it is of none of the traces"),
        (execution_trace(node(10, "aten::relu", SHAPED), node(11, "aten::t", SHAPED)), "it is of none of the traces"),
        (b'{"schema": "1.1.1", "nodes": [', "malformed execution trace"),
    ],
)
def test_one_that_does_not_fit_is_left_out(twin, says, read):
    run = read(rank0_json=kineto(), et_json=twin)
    assert run.events(0).texts("shapes") == [None] * len(run.events(0))
    assert any(says in warning.message for warning in run.warnings if warning.code == "execution-trace-left-out")


def test_numbers_beyond_reason_are_left_out(read):
    huge = {"collective_name": "allreduce", "in_msg_nelems": 1 << 80, "global_rank_start": 1 << 70, "pg_size": 2}
    twin = execution_trace(
        node(1 << 70, "aten::mm", SHAPED), node(11, "record_param_comms", global_rank_stride=1, **huge)
    )
    collective = events(read(rank0_json=kineto(), et_json=twin), "ncclDevKernel_AllReduce")
    assert collective.collective == "all_reduce"
    assert collective.in_bytes != collective.in_bytes  # NaN


def test_alone_it_has_no_times(read):
    with pytest.raises(InputError, match="operations and tensors, but no times") as error:
        read(et_json=trace())
    assert "export_chrome_trace" in error.value.remedy


def test_a_large_one_is_left_out(read, monkeypatch):
    monkeypatch.setenv("ESPROF_MEMORY_LIMIT", "8000")
    large = execution_trace(*(node(number, "aten::mm", SHAPED) for number in range(10, 40)))
    run = read(rank0_json=kineto(), et_gz=large)
    assert "execution-trace-left-out" in codes(run)
